"""The hot path: what runs inside the program's spans, and once a span in the collector.

One seam: everything above asks this package, never a twin by name. There are two that do the same: `compiled`, in C,
where its extension was built, and `pure`, in Python, everywhere. ``TWIN`` says which is in use and ``WHY`` why;
``GPUTRACE_PURE=1`` asks for the pure one.
"""

from __future__ import annotations

import os

from gputrace.hot.shared import INVALID_HANDLE, MOST_SPANS, MOST_WINDOWS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

_NO = ("", "0")


def _choose() -> tuple[str, str]:
    if os.environ.get("GPUTRACE_PURE", "") not in _NO:
        return "pure", "GPUTRACE_PURE is set"
    try:
        __import__("gputrace.hot._hot")
        from gputrace.hot import compiled as compiled
    except ModuleNotFoundError:
        return "pure", _why_not_built()
    except Exception as error:  # built for another kind of machine, or from other sources than these
        return "pure", f"the compiled part does not work here: {type(error).__name__}: {error}"
    return "compiled", "the compiled part is installed"


def _why_not_built() -> str:
    from gputrace.sourcetree import root_of

    tree = root_of(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    if not tree:
        return "the compiled part was not built for this Python (`pip install -v` says why)"
    return (
        f"gputrace is imported from its source tree, {tree}, where the compiled part was not built for this Python: "
        f"`pip install -v -e {tree}` builds it there, or says why not; elsewhere an installed gputrace is found"
    )


_chosen = _choose()
TWIN: Final[str] = _chosen[0]
WHY: Final[str] = _chosen[1]

if TYPE_CHECKING:
    from gputrace.hot import pure as _twin
elif TWIN == "compiled":
    from gputrace.hot import compiled as _twin
else:
    from gputrace.hot import pure as _twin

OPERATORS = _twin.OPERATORS
counter = _twin.counter
current_number = _twin.current_number
drop_queue = _twin.drop_queue
failure = _twin.failure
forget_everything = _twin.forget_everything
idle = _twin.idle
instant = _twin.instant
pause = _twin.pause
queues = _twin.queues
resume = _twin.resume
span = _twin.span
stats = _twin.stats
switch_off = _twin.switch_off
use_stream = _twin.use_stream
window = _twin.window

__all__ = [
    "INVALID_HANDLE",
    "MOST_SPANS",
    "MOST_WINDOWS",
    "OPERATORS",
    "TWIN",
    "WHY",
    "counter",
    "current_number",
    "drop_queue",
    "failure",
    "forget_everything",
    "idle",
    "instant",
    "pause",
    "queues",
    "resume",
    "span",
    "stats",
    "switch_off",
    "use_stream",
    "window",
]
