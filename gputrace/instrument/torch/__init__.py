"""PyTorch's patches. Each gets torch from its site: nothing here imports it.

What they share: torch's compiler must neither compile nor count the frames that they put into its way.
"""

from __future__ import annotations

from gputrace import hot

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType
    from typing import Any

    from gputrace.instrument.site import Site


def prepare(site: Site, torch: Any) -> None:
    """Have torch's compiler run every frame of this site's as it is, and compile what it calls as without it.

    Raises `AttributeError` where this torch has no such switch: the patch is left out then.
    """
    frames = torch._C._dynamo.eval_frame
    skip, default = frames._FrameAction.SKIP, frames._FrameAction.DEFAULT
    here_alone = frames._FrameExecStrategy(skip, default)
    and_below = frames._FrameExecStrategy(skip, skip)

    def on_code(code: CodeType, *, wrapper: bool) -> None:
        frames.set_code_exec_strategy(code, here_alone if wrapper else and_below)

    site.on_code = on_code
    if hot.TWIN == "pure":
        from gputrace.hot.pure import Span

        for method in (Span.__enter__, Span.__exit__):
            on_code(method.__code__, wrapper=False)
