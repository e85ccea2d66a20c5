"""`cupy.ranges`: CuPy's own copy of NVTX, which `cupyx.profiler.time_range` uses too. It knows no kernel."""

from __future__ import annotations

import functools

from gputrace.instrument.capturing import Ranges
from gputrace.instrument.nvtx_ranges import OpenRanges, beside, fenced

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from gputrace.instrument.site import Site


def ranges(site: Site) -> None:
    """Show pushed ranges as spans, started ones as windows, marks as instants; CuPy's own functions still run."""
    nvtx = site.module.cuda.nvtx
    state = OpenRanges(Ranges(site))
    started: dict[Any, Any] = {}
    range_start, range_end = nvtx.RangeStart, nvtx.RangeEnd

    def push(message: Any, *_: Any, **__: Any) -> None:
        state.push(message)

    def mark(message: Any, *_: Any, **__: Any) -> None:
        state.mark(message)

    beside_each: dict[str, Callable[..., Any]] = {
        "RangePush": push,
        "RangePushC": push,
        "RangePop": state.pop,
        "Mark": mark,
        "MarkC": mark,
    }
    for name, ours in beside_each.items():
        site.set(nvtx, name, beside(site, getattr(nvtx, name), ours))

    @functools.wraps(range_start)
    def RangeStart(message: Any, *args: Any, **kwargs: Any) -> Any:
        number = range_start(message, *args, **kwargs)
        window = None if site.broken else fenced(site, state.open, message)
        if window is not None:
            started[number] = window
        return number

    @functools.wraps(range_end)
    def RangeEnd(number: Any) -> Any:
        window = started.pop(number, None)
        if window is not None:
            window.close()
        return range_end(number)

    site.set(nvtx, "RangeStart", RangeStart)
    site.set(nvtx, "RangeEnd", RangeEnd)
