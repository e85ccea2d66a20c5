"""`torch.cuda`: where the host waits for the device, makes streams wait, and captures and replays graphs; and with
``--capture-range cuda-profiler``, where the program starts and stops CUDA's profiler.

It asks the device nothing, so it is safe inside a capture.
"""

from __future__ import annotations

import functools

from gputrace import hot
from gputrace.fence import let_through
from gputrace.instrument.registry import CUDA_PROFILER
from gputrace.instrument.torch import prepare, streams

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Final

    from gputrace.instrument.site import Site
    from gputrace.regions import Regions

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
    runtime = getattr(torch._C, "_cudart", None)
    if site.regions is not None and runtime is not None and site.options.get("capture_range") == CUDA_PROFILER:
        _profiler(site, runtime, site.regions)


def _profiler(site: Site, runtime: Any, regions: Regions) -> None:
    """What torch.cuda.profiler calls, and a program by torch.cuda.cudart()."""

    def telling(original: Any, on: bool) -> Any:
        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            try:
                if not site.broken:
                    regions.profile(on)
            except Exception as error:
                let_through(error)
                site.fail(error)
            return result

        return call

    for name, on in (("cudaProfilerStart", True), ("cudaProfilerStop", False)):
        site.set(runtime, name, telling(getattr(runtime, name), on))
