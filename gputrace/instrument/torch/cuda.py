"""`torch.cuda`: where the host waits for the device, makes streams wait, and captures and replays graphs.

It asks the device nothing, so it is safe inside a capture.
"""

from __future__ import annotations

from gputrace import hot
from gputrace.instrument.torch import prepare, streams

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Final

    from gputrace.instrument.site import Site

#: By class of ``torch.cuda``, the methods that show.
_METHODS: Final = {
    "Stream": ("synchronize", "wait_event", "wait_stream"),
    "Event": ("synchronize", "wait"),
    "CUDAGraph": ("capture_begin", "capture_end", "reset"),
}


def cuda(site: Site) -> None:
    """Show synchronizations, waits between streams, and graphs: a slice a call, a graph's replay as a whole."""
    torch = site.module
    prepare(site, torch)
    site.spans(torch.cuda.synchronize, "cuda.synchronize")
    for kind, names in _METHODS.items():
        for name in names:
            method = vars(getattr(torch.cuda, kind)).get(name)
            if method is not None:
                site.spans(method, f"{kind}.{name}")

    def replay(graph: Any) -> Any:
        return hot.span("CUDAGraph.replay", streams.here())

    site.swap(torch.cuda.CUDAGraph.replay, replay)
