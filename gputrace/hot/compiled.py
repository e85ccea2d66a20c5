"""The compiled twin's Python half: what is seldom called, said over `_hot`, which does the rest.

Same names as `gputrace.hot.pure`, as far as programs and the tracer use them.
"""

from __future__ import annotations

from gputrace.fence import EXHAUSTED
from gputrace.hot import _hot
from gputrace.hot.arguments import as_name, describe
from gputrace.hot.shared import Stats, UseStream, plain_number

TYPE_CHECKING = False
if TYPE_CHECKING:
    from contextvars import ContextVar
    from typing import Any, Final
else:
    from _contextvars import ContextVar  # the builtin part of `contextvars`

__all__ = [
    "OPERATORS",
    "Calls",
    "Span",
    "StreamQueue",
    "Window",
    "counter",
    "current_number",
    "current_stream",
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

#: Which `_hot.pyi` this is written to. In a source tree the extension may be an older one, or a newer.
INTERFACE: Final = 6
if getattr(_hot, "INTERFACE", 0) != INTERFACE:
    raise ImportError("it was built from other sources than these: install gputrace anew")

#: What slices are begun and ended by without the GIL: see native/operators.c.
OPERATORS = _hot.OPERATORS

Calls = _hot.Calls
Span = _hot.Span
StreamQueue = _hot.StreamQueue
Window = _hot.Window
current_number = _hot.current_number
instant = _hot.instant
pause = _hot.pause
queues = _hot.queues
resume = _hot.resume
span = _hot.span
switch_off = _hot.switch_off
window = _hot.window

_current_stream: ContextVar[StreamQueue | None] = ContextVar("gputrace.stream", default=None)
_stats = Stats()


def counter(name: str, value: float, unit: str = "") -> None:
    """Give a counter's value from now on; one row of the trace a name. ``unit``: "bytes", "ns", "percent" or none.

    Raises nothing: a value that is no number is not recorded.
    """
    try:
        if _hot.is_on():
            number = plain_number(name, value, _stats)
            if number is not None:
                _hot.sample(as_name(name), number, as_name(unit))
    except EXHAUSTED:
        pass


def failure(error: object, stream: Any = None) -> None:
    """Device work failed: every traced window open now, on a stream or (``stream=None``) on all, carries the error.

    The windows still close; none is taken for a fast success. Raises nothing.
    """
    try:
        if _hot.is_armed():
            if stream is None:
                hit = list(_hot.all_queues())
            else:
                queue = _hot.queue_of(stream)
                hit = [] if queue is None else [queue]
            _hot.mark_failure(describe(error), hit)
    except EXHAUSTED:
        pass


class use_stream(UseStream):
    __slots__ = ()
    __doc__ = UseStream.__doc__

    def _variable(self) -> ContextVar[StreamQueue | None] | None:
        if not _hot.is_armed():
            return None
        _hot.stream_used()
        return _current_stream

    def _queue_of(self, stream: Any) -> StreamQueue | None:
        return _hot.queue_of(stream)


def current_stream() -> ContextVar[StreamQueue | None]:
    """What `use_stream` sets in this recording."""
    return _current_stream


def forget_everything() -> None:
    """A state of its own for this process or this recording: see `gputrace.hot.pure.forget_everything`."""
    global _current_stream, _stats
    for queue in _hot.all_queues():
        queue.refuse("forgotten")
    _current_stream = ContextVar("gputrace.stream", default=None)
    _stats = Stats()
    _hot.forget()


def stats() -> Stats:
    """What the program's side gave up."""
    state = _hot.state()
    _stats.dropped_spans, _stats.dropped_windows = state["dropped_spans"], state["dropped_windows"]
    _stats.failed, _stats.uncaptured = state["lost"], state["uncaptured"]
    _stats.short_calls = state["short_calls"]
    return _stats


def drop_queue(queue: StreamQueue) -> None:
    """A stream that nobody will pass again."""
    queue.forget()
    if queue in _hot.all_queues():
        _hot.all_queues().remove(queue)


def idle() -> bool:
    """Has the collector taken all that was handed over?"""
    return not _hot.threads()[1] and not any(queue.unread for queue in _hot.all_queues())
