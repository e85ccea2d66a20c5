"""``--capture-range nvtx:NAME``: tells which of a program's ranges are those that it asks to have recorded.

What patches ranges opens them here. It knows neither whose ranges they are nor what else decides what is recorded.
"""

from __future__ import annotations

from gputrace import hot
from gputrace.instrument.registry import NVTX

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from gputrace.instrument.site import Site
    from gputrace.regions import Regions


class Ranges:
    """Opens spans and windows for ranges of the program, and records the process around those of the name asked for."""

    __slots__ = ("_name", "_regions")

    def __init__(self, site: Site) -> None:
        asked = str(site.options.get("capture_range", ""))
        self._regions = site.regions
        self._name = asked.removeprefix(NVTX) if asked.startswith(NVTX) and site.regions is not None else None

    def span(self, name: str, stream: Any = None, **args: Any) -> Any:
        """As `gputrace.span`."""
        if name == self._name and self._regions is not None:
            return _Span(self._regions, name, stream, args)
        return hot.span(name, stream, **args)

    def window(self, name: str, stream: Any = None, **args: Any) -> Any:
        """As `gputrace.window`, with nothing but its ``close()``."""
        if name == self._name and self._regions is not None:
            return _Window(self._regions, name, stream, args)
        return hot.window(name, stream, **args)


class _Span:
    """A range that is recorded, and all in it."""

    __slots__ = ("_args", "_name", "_regions", "_span", "_stream")

    def __init__(self, regions: Regions, name: str, stream: Any, args: dict[str, Any]) -> None:
        self._regions = regions
        self._name = name
        self._stream = stream
        self._args = args

    def __enter__(self) -> _Span:
        self._regions.enter_range()
        self._span: Any = hot.span(self._name, self._stream, **self._args)
        self._span.__enter__()
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self._span.__exit__(kind, error, trace)
        self._regions.leave_range()


class _Window:
    """As `_Span`, from here until `close`, on whichever thread."""

    __slots__ = ("_open", "_regions", "_window")

    def __init__(self, regions: Regions, name: str, stream: Any, args: dict[str, Any]) -> None:
        self._regions = regions
        self._open = [True]
        regions.enter_range()
        self._window: Any = hot.window(name, stream, **args)

    def close(self) -> None:
        try:
            self._open.pop()  # of two threads that close it, one does
        except IndexError:
            return
        self._window.close()
        self._regions.leave_range()
