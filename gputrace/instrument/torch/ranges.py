"""`torch.ranges`: ranges that stand in the program already, `record_function`'s and `torch.cuda.nvtx`'s.

They mean what they mean to torch's own profiler, and go on meaning it.
"""

from __future__ import annotations

from _thread import _local
from sys import _getframe

from gputrace import hot
from gputrace.instrument.capturing import Ranges
from gputrace.instrument.site import NOTHING, Nothing
from gputrace.instrument.torch import prepare, streams

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from gputrace.instrument.site import Site


def ranges(site: Site) -> None:
    """Show the program's own ranges, and not those that torch puts around its own work."""
    torch = site.module
    prepare(site, torch)

    def span_of(range: Any) -> Any:
        return None if _is_torchs_own() else hot.span(range.name, streams.here())

    around_ranges(site, torch.autograd.profiler.record_function, span_of)
    nvtx = torch.cuda.nvtx
    marks = _Marks(Ranges(site))
    for function, opened in ((nvtx.range_push, marks.push), (nvtx.range_start, marks.start), (nvtx.mark, marks.mark)):
        site.swap(function, _Message, opened)
    site.swap(nvtx.range_pop, marks.pop)
    site.swap(nvtx.range_end, marks.end)


def _is_torchs_own() -> bool:
    """Is it torch that opened the range which is being opened?"""
    frame: Any = _getframe(1)
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if name == "torch" or (name.startswith("torch.") and name not in _BETWEEN):
            return True
        if name not in _BETWEEN and not name.startswith("gputrace."):
            return False
        frame = frame.f_back
    return False


class _Marks:
    """The nvtx ranges open now: pushed ones by thread, started ones by the number that torch gave them."""

    def __init__(self, opening: Ranges) -> None:
        self._opening = opening
        self._pushed = _local()
        self._started: dict[Any, Any] = {}

    def push(self, message: _Message, depth: Any) -> None:
        try:
            stack = self._pushed.stack
        except AttributeError:
            stack = self._pushed.stack = []
        span: Any = self._opening.span(message.text, streams.here())
        stack.append(span)
        span.__enter__()

    def pop(self) -> Any:
        stack = getattr(self._pushed, "stack", None)
        if stack:
            stack.pop().__exit__(None, None, None)
        return NOTHING

    def start(self, message: _Message, number: Any) -> None:
        self._started[number] = self._opening.window(message.text, streams.here())

    def end(self, number: Any) -> Any:
        window = self._started.pop(number, None)
        if window is not None:
            window.close()
        return NOTHING

    def mark(self, message: _Message, returned: Any) -> None:
        hot.instant(message.text)


class _Message(Nothing):
    """Around a call that gets a message and must succeed first: where nvtx is missing, it raises."""

    __slots__ = ("text",)

    def __init__(self, text: Any) -> None:
        self.text = text


#: Modules between a range and whoever wrote it.
_BETWEEN = frozenset(("contextlib", "torch.autograd.profiler", "torch.utils._contextlib"))


def around_ranges(site: Site, record_function: Any, span_of: Callable[[Any], Any]) -> None:
    """The span that ``span_of(range)`` makes around each ``record_function`` range, none where it makes None."""
    # By the range's identity, as it may end on another thread. One that never ends goes when its number is used again.
    open_spans: dict[int, Any] = {}

    # Named so that the span belongs to whoever wrote the `with`: see `gputrace.hot.scope`.
    def __enter__(range: Any) -> Any:
        span = span_of(range)
        if span is not None:
            open_spans[id(range)] = span
            span.__enter__()
        return NOTHING

    def __exit__(range: Any, kind: Any, error: Any, trace: Any) -> Any:
        span = open_spans.pop(id(range), None)
        if span is not None:
            span.__exit__(kind, error, trace)
        return NOTHING

    site.swap(record_function.__enter__, __enter__)
    site.swap(record_function.__exit__, __exit__)
