"""What both twins of the hot path do alike and seldom: a span used twice, a number that is none, a stream made current.

It knows no buffer and no device.
"""

from __future__ import annotations

import sys
from _thread import get_ident

from gputrace.errors import DeviceError
from gputrace.fence import EXHAUSTED, let_through
from gputrace.hot.arguments import LONGEST_DESCRIPTION, as_name, describe, on_device, sanitize, shorten, type_name
from gputrace.hot.scope import find_scope

__all__ = ["let_through"]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from contextvars import ContextVar
    from typing import Any, Final

#: GPU windows opened and not yet written, in the whole process. Beyond, a span is a host slice alone, and counted.
MOST_WINDOWS: Final = 65_536
#: Host-only spans opened and not yet written. Beyond, a span is not recorded at all, and counted.
MOST_SPANS: Final = 65_536
#: What a binding raises for a result code that it does not know, or a function that the driver lacks. Nothing wider:
#: the program's signal handlers run between our lines, and what they raise is the program's.
BINDING_ERRORS: Final = (ValueError, TypeError, AttributeError, RuntimeError, DeviceError)
INVALID_HANDLE: Final = 400  # CUDA_ERROR_INVALID_HANDLE
MOST_COMPLAINTS: Final = 16

_modules = sys.modules


class Stats:
    """What the program's side gave up, since the switch was last turned on. Approximate under races: each is only told.

    ``complaints`` is what a user should hear, once each; ``failed`` counts windows that the device refused,
    ``uncaptured`` those that a capture forbade, ``short_calls`` function calls left out for being shorter than asked.
    """

    __slots__ = ("complaints", "dropped_spans", "dropped_windows", "failed", "short_calls", "uncaptured")

    def __init__(self) -> None:
        self.complaints: list[str] = []
        self.dropped_spans = 0
        self.dropped_windows = 0
        self.failed = 0
        self.uncaptured = 0
        self.short_calls = 0

    def complain(self, text: str) -> None:
        """Something of the program's could not be recorded: the recording's end says so, once."""
        if text not in self.complaints and len(self.complaints) < MOST_COMPLAINTS:
            self.complaints.append(text)


class Nothing:
    """Stands for a span that there was no depth or no memory left to open."""

    __slots__ = ()

    def __enter__(self) -> Nothing:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        return None

    def __call__(self, function: Any) -> Any:
        return function

    def close(self) -> None:
        return None

    abandon = close

    def failure(self, error: object) -> None:
        return None


NOTHING: Final = Nothing()


def note_use(again: list[tuple[int, int, Any]], made: Any, frame: Any) -> None:
    """``made`` does the work behind a shared object, for this thread and task, until `last_use` takes it off."""
    again.append((get_ident(), find_scope(frame), made))


def last_use(again: list[tuple[int, int, Any]], frame: Any) -> Any:
    """The last use of a shared object by this thread and task, taken off the list; None if none is there."""
    who = (get_ident(), find_scope(frame))
    for index in range(len(again) - 1, -1, -1):
        if again[index][:2] == who:
            return again.pop(index)[2]
    return None


def thread_name() -> str:
    """This thread's name, without making an object for a thread that the threading module does not know."""
    threading = _modules.get("threading")
    if threading is None:
        return "MainThread"
    try:
        ident = threading.get_ident()
        return next((as_name(thread.name) for thread in threading.enumerate() if thread.ident == ident), "")
    except Exception as error:
        let_through(error)
        return ""


#: What ``@gputrace.span`` without parentheses decorates; anything else is a name.
FUNCTIONS: Final = (type(lambda: None), classmethod, staticmethod)


def decorate_with(function: Any, name: str, stream: Any, args: dict[str, Any]) -> Any:
    """``function`` with a span of this name, stream and args around each call; without a name, of the function's.

    Raises `TypeError`: see `decorate`.
    """
    from gputrace import hot
    from gputrace.hot.decorate import decorate

    named = name or as_name(getattr(function, "__name__", ""))

    def open_span() -> Any:
        try:
            return hot.span(named, stream, **args)
        except EXHAUSTED:
            return NOTHING

    return decorate(function, open_span)


def decorate_bare(function: Any) -> Any:
    """What ``@gputrace.span`` without parentheses makes of a function; None for what is no function, but a name."""
    if type(function) not in FUNCTIONS:
        return None
    return decorate_with(function, "", None, {})


def span_again(name: str, args: dict[str, Any]) -> Any:
    """A pickled span, where it is loaded."""
    from gputrace import hot

    return hot.span(name, None, **args)


def reduced(name: Any, args: dict[str, Any]) -> tuple[Any, ...]:
    """A span as pickle takes it, which another process may load: without its stream."""
    return span_again, (as_name(name), sanitize(args))


def plain_number(name: object, value: Any, stats: Stats) -> int | float | None:
    """A counter's value as an int or a float; None, and a complaint, for what is none. Raises nothing."""
    kind = type(value)
    if kind is int or kind is float:
        return value  # type: ignore[no-any-return]
    try:
        if on_device(value):
            raise TypeError("it lies on the device, and reading it would wait for that: pass a number")
        return int(value) if isinstance(value, int) else float(value)
    except Exception as error:  # whatever the program's object raises
        let_through(error)
        named, said = shorten(as_name(name), LONGEST_DESCRIPTION), describe(error)
        stats.complain(f"counter {named!r} got a {type_name(value)} that is no number: {said}")
        return None


class UseStream:
    """Make a stream current: ``with gputrace.use_stream(s): ...``. Spans opened inside without a ``stream=`` get a GPU
    window on it; ``use_stream(None)`` makes none current.

    A task's own where there are tasks, and inherited by tasks and `asyncio.to_thread` calls started inside; threads
    started inside begin without. Raises nothing.
    """

    __slots__ = ("_before", "_stream")

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._before: list[Any] = []

    def __enter__(self) -> UseStream:
        try:
            variable, stream = self._variable(), self._stream
            queue = None if stream is None or variable is None else self._queue_of(stream)
            if variable is not None:
                self._before.append((variable, variable.get()))
                variable.set(queue)
            else:
                self._before.append(None)
        except EXHAUSTED:
            pass
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        try:
            before = self._before.pop() if self._before else None
            if before is not None:
                # Not by its token: a generator may end in another context than it began in.
                variable, queue = before
                variable.set(queue)
        except EXHAUSTED:
            pass

    # A twin's.

    def _variable(self) -> ContextVar[Any] | None:
        """Where what is current is kept, which from now on is asked; None with tracing off."""
        raise NotImplementedError

    def _queue_of(self, stream: Any) -> Any:
        raise NotImplementedError
