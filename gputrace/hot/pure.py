"""The hot path in pure Python: what a span costs the program is written here, and nowhere else.

A span is a pooled object that owns its two events. Opening one appends it to its thread's buffer and, after recording
its first event, to its stream's queue; closing it appends it to both again. The collector takes from the front of
those lists (see `take`), so a span appears twice in each, the first time as a begin, the second as an end. Every list
operation used is atomic; nothing here waits for the collector, the device or a lock.

Invariants the collector relies on:

- A span is in its thread's buffer before it is in its stream's queue, at both ends.
- Once a host-only span has been appended the second time to its thread's buffer, or a GPU span the second time to its
  stream's queue, this side touches it no more: the collector may recycle it.
- A span's state changes right before the append that it tells of, with no call between, so a signal's handler that
  raises leaves state and lists in agreement; what it strands is closed once the object has died (`bury`).
- An object that anyone else still refers to is never recycled (`recycle` asks its reference count), so a program that
  keeps a span, enters it again or enters it twice at once gets fresh ones behind it, never another's.

Every hook is fenced: an exception of ours costs the span, not the program.
"""

from __future__ import annotations

import sys
from _operator import attrgetter
from _thread import _local, get_ident, get_native_id
from itertools import count, islice
from sys import _getframe, getrefcount

from gputrace.fence import EXHAUSTED, let_through
from gputrace.hostclock import now_ns
from gputrace.hot.arguments import LONGEST_NAME, as_name, describe, kind_name, sanitize
from gputrace.hot.drain import NEVER_CLOSED
from gputrace.hot.marks import FailureMark, Instant, Sample
from gputrace.hot.scope import ENTERS, PLAIN, SUSPENDABLE, find_scope, running_loop, task_scope
from gputrace.hot.shared import (
    BINDING_ERRORS,
    FUNCTIONS,
    INVALID_HANDLE,
    MOST_SPANS,
    NOTHING,
    Stats,
    UseStream,
    decorate_bare,
    decorate_with,
    last_use,
    note_use,
    plain_number,
    reduced,
    thread_name,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from contextvars import ContextVar
    from types import TracebackType
    from typing import Any, Final, Protocol, TypeVar, overload

    from gputrace.model import Args

    F = TypeVar("F", bound=Callable[..., Any])

    class SpanLike(Protocol):
        """What `span` returns: a context manager, and a decorator that leaves a function's type as it is."""

        def __enter__(self) -> Any: ...
        def __exit__(self, kind: Any, error: Any, trace: Any, /) -> None: ...
        def __call__(self, function: F, /) -> F: ...

    class WindowLike(Protocol):
        """What `window` returns."""

        def __enter__(self) -> Any: ...
        def __exit__(self, kind: Any, error: Any, trace: Any, /) -> None: ...
        def close(self) -> None: ...
        def abandon(self) -> None: ...
        def failure(self, error: object, /) -> None: ...


if TYPE_CHECKING:
    from collections import defaultdict, deque
else:
    from _collections import defaultdict, deque  # the builtin parts of `collections` and `contextvars`
    from _contextvars import ContextVar

# A fresh span is in no list, an open one once in its thread's buffer, an ended one twice; a closed one is done with.
# What is being opened is no more fresh: another thread that enters it meanwhile opens one of its own.
_FRESH, _OPEN, _ENDED, _CLOSED, _OPENING = 0, 1, 2, 3, 4
CAPTURE_IMPLICIT: Final = 906  # CUDA_ERROR_STREAM_CAPTURE_IMPLICIT: the legacy stream, beside one being captured
#: The compiled twin alone begins and ends slices without the GIL.
OPERATORS: Final = None
_EXHAUSTED: Final = "there was no depth or no memory left"
_NEVER_CLOSED: Final = str(NEVER_CLOSED["ended"])


class Pool(list["Span"]):
    """Spans to use again. Once ``closed`` it takes none back from those that die (`bury`)."""

    __slots__ = ("closed",)

    def __init__(self) -> None:
        self.closed = False

    def pour_into(self, other: list[Span]) -> None:
        """Move every span. One by one: the program's threads go on taking some, and none may be in two hands."""
        try:
            while True:
                other.append(self.pop())
        except IndexError:
            pass


class ThreadBuffer:
    """One host thread's edges, in order, until the collector takes them.

    ``edges`` holds spans (twice each), instants and counters.
    ``number`` is unique among threads, which reuse ``tid``. ``ended`` is set when the thread is gone. ``waiting`` holds
    open calls, outermost first, that are not among the edges yet, as they may prove shorter than ``least_ns``.
    """

    __slots__ = ("append", "edges", "ended", "least_ns", "name", "number", "tid", "timeline", "waiting")

    def __init__(self, number: int, tid: int, name: str) -> None:
        self.edges: list[Any] = []
        self.waiting: deque[Span] = deque()
        self.least_ns = 0
        self.number = number
        self.append = self.edges.append
        self.tid = tid
        self.name = name
        self.ended = False
        self.timeline: Any = None  # the collector's

    def settle(self) -> None:
        """Something is to come behind the begins of the calls that wait: put them among the edges. Any thread may."""
        try:  # in one call, so that nobody puts one of them elsewhere in between
            self.edges.extend(iter(self.waiting.popleft, None))
        except IndexError:
            pass  # its end

    def settle_old(self, now_ns: int) -> None:
        """Put those that are old enough by now among the edges."""
        began_by = now_ns - self.least_ns
        old = sum(span.t0 <= began_by for span in tuple(self.waiting))
        try:  # fewer where their thread ends some meanwhile
            self.edges.extend(islice(iter(self.waiting.popleft, None), old))
        except IndexError:
            pass


class StreamQueue:
    """One stream's edges, in the order their events were recorded, until the collector takes them.

    ``record`` and ``capturing`` are the device's raw calls, ``free`` the pool of spans that own events of its context.
    A queue may be refused (`refuse`): its spans are then host slices alone.
    """

    __slots__ = ("append", "capturing", "entries", "free", "handle", "make", "native", "record", "timeline")

    def __init__(
        self,
        native: Any,
        handle: int,
        record: Callable[[Any, Any], Any],
        capturing: Callable[[Any], Any],
        free: Pool,
        make: Callable[[], Span | None],
    ) -> None:
        self.entries: list[Any] = []
        self.append = self.entries.append
        self.native = native
        self.handle = handle
        self.record = record
        self.capturing = capturing
        self.free = free
        self.make = make
        self.timeline: Any = None  # the collector's
        _all_queues.append(self)

    def forget(self) -> None:
        """Ask anew about this handle when it is passed next: drivers give a destroyed stream's handle out again."""
        for key in (self.handle, self.native):
            try:
                if _queues.get(key) is self:
                    del _queues[key]
            except TypeError:
                pass  # not hashable: it is no key

    def refuse(self, why: str) -> None:
        """Record nothing more here. No call reaches the device, from whichever thread, once this returns."""

        def refused(*_: Any) -> tuple[str, str]:
            return why, why

        self.record = self.capturing = refused


class _ThreadEnd:
    """Lives in a thread's local storage; goes when the thread does."""

    __slots__ = ("buffer",)

    def __init__(self, buffer: ThreadBuffer) -> None:
        self.buffer = buffer

    def __del__(self) -> None:
        buffer = getattr(self, "buffer", None)
        if buffer is not None:
            buffer.ended = True


# The process's state. Rebound as a whole after a fork (`forget_everything`), never locked on the hot path.
_on = False  # are spans recorded now?
_armed = False  # is there a recording, be it paused?
_local_state = _local()
_threads: list[ThreadBuffer] = []
_queues: dict[Any, StreamQueue] = {}  # by what programs pass, where it means one stream: a handle, or an object
_all_queues: list[StreamQueue] = []
# What `use_stream` made current: a task's own, and inherited by what it starts, as a request's stream should be. Asked
# only once somebody has used it.
_current_stream: ContextVar[StreamQueue | None] = ContextVar("gputrace.stream", default=None)
_stream_used = False
_next_thread = count(1).__next__
_host_free = Pool()
_nowhere = Pool()
_nowhere.closed = True
_resolve: Callable[[Any], StreamQueue | None]
_lend: Callable[[], Span | None]
_wake: Callable[[], None]
_modules = sys.modules
# Spans that nobody can close any more, and when they died: to look one up is to note it.
_deaths: defaultdict[Span, int] = defaultdict(now_ns)


class Span:
    """One use of `span()`: a context manager and a decorator.

    ``scope`` says what it may nest in: `PLAIN` for code that runs straight down its thread, the identity of a task or a
    generator for code that can be suspended with the span open, None for an explicit window, which nests in nothing.
    ``gpu`` is the queue its window was recorded on, None for a host slice alone. ``reason`` says why the window's end
    could not be recorded; ``error`` what went wrong inside; ``misread``, the collector's, why an event could not be
    read.
    """

    __slots__ = (
        "again",
        "args",
        "end",
        "error",
        "flow",
        "free",
        "gpu",
        "gpu_open",
        "host_open",
        "misread",
        "name",
        "queue",
        "reason",
        "scope",
        "start",
        "state",
        "t0",
        "t1",
        "thread",
    )

    # Set by `span`, each time.
    name: str
    args: Args | None
    queue: StreamQueue | None  # its stream's; None for a host slice alone
    # Set at its two ends; the times are the host clock's, in ns.
    thread: ThreadBuffer
    t0: int
    t1: int

    def __init__(self, free: Pool, start: Any = None, end: Any = None) -> None:
        self.free = free  # the pool it goes back to
        self.start = start
        self.end = end
        self.scope: int | None = PLAIN
        self.gpu: StreamQueue | None = None
        self.gpu_open: bool | None = False
        self.host_open: bool | None = False
        self.error: str | None = None
        self.reason: str | None = None
        self.misread: str | None = None
        self.again: list[tuple[int, int, Span]] | None = None  # by thread and scope: see `_another`
        self.flow = 0
        self.state = _FRESH

    _died = property(_deaths.__getitem__)  # see `bury`

    def __enter__(self) -> Span:
        try:
            made = self if not self.state and _on else self._another(_getframe(1))
            if made.state:
                return self  # nothing records it
            made.state = _OPENING  # no other thread runs between this and the look at it
            try:
                thread = made.thread = _local_state.buffer
            except AttributeError:
                thread = made.thread = _new_thread()
            # Who can be suspended with this span open? A generator's or coroutine's frame says so; a task, by its loop.
            code = _getframe(1).f_code
            if code.co_flags & SUSPENDABLE or code.co_name in ENTERS:
                made.scope = find_scope(_getframe(1))
            elif ("_asyncio" in _modules and running_loop[0]() is not None) or "greenlet" in _modules:
                made.scope = task_scope()
            queue = made.queue
            if thread.waiting:
                thread.settle()
            made.t0 = now_ns()
            made.state = _OPEN
            try:
                thread.append(made)
            except EXHAUSTED:
                made.state = _FRESH
                raise
            if queue is not None:
                made._record_begin(queue)
        except EXHAUSTED:
            _stats.dropped_spans += 1
        return self

    def _record_begin(self, queue: StreamQueue) -> None:
        try:
            captured = queue.capturing(queue.native)
            if captured[0] or captured[1]:
                self.reason = _why_not(captured, "the stream is being captured", "the driver refused its stream")
            elif code := queue.record(self.start, queue.native)[0]:
                self._refused(queue, code)
            else:
                self.gpu = queue
                queue.append(self)
        except EXHAUSTED:
            self.gpu, self.reason = None, _EXHAUSTED
        except BINDING_ERRORS as error:
            let_through(error)
            self.reason = "the driver refused its opening event"
            _stats.failed += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self.again:
                other = last_use(self.again, _getframe(1))
                if other is not None:
                    other.__exit__(kind, error, trace)
                    return
            if self.state != _OPEN:
                return
            if kind is not None and kind is not GeneratorExit:  # which is a generator's way to end early
                said = kind_name(kind)
                if self.state != _OPEN:
                    return  # what the program's own kind of exception did for its name closed it
                self.error = said
            queue = self.gpu
            if self.thread.waiting:
                self.thread.settle()
            self.t1 = now_ns()
            if queue is None:
                self.state = _CLOSED
                self.thread.append(self)
                return
            self.state = _ENDED
            self.thread.append(self)
            try:
                captured = queue.capturing(queue.native)
                if captured[0] or captured[1]:
                    self.reason = _why_not(captured, "a stream capture began inside", "the driver refused its stream")
                elif queue.record(self.end, queue.native)[0]:
                    self.reason = "the driver refused its closing event"
            except EXHAUSTED:
                self.reason = _EXHAUSTED
            except BINDING_ERRORS as refusal:
                let_through(refusal)
                self.reason = "the driver refused its closing event"
            self.state = _CLOSED
            queue.append(self)
        except EXHAUSTED:
            pass  # without an end, it is open until its finaliser or the recording ends it

    def _refused(self, queue: StreamQueue, code: Any) -> None:
        """The driver did not take the opening event. If the handle is another context's stream by now, try that one."""
        if code == INVALID_HANDLE:
            queue.forget()
            fresh = _resolve(queue.handle)
            donor = None
            if fresh is not None and fresh is not queue:
                # Not by asking first whether the pool is empty: another thread may take the last one in between.
                try:
                    donor = fresh.free.pop()
                except IndexError:
                    donor = fresh.make()
            if fresh is not None and donor is not None:
                # Its events for ours, each to the pool of its own context.
                for name in ("free", "start", "end"):
                    ours, theirs = getattr(self, name), getattr(donor, name)
                    setattr(self, name, theirs)
                    setattr(donor, name, ours)
                donor.free.append(donor)
                self.queue = fresh
                if not fresh.record(self.start, fresh.native)[0]:
                    self.gpu = fresh
                    fresh.append(self)
                    return
        self.reason = "the driver refused its opening event"
        _stats.failed += 1

    def _end_without_event(self, why: str) -> None:
        """End an open or half ended span where it stands, recording nothing."""
        queue = self.gpu
        if self.state == _OPEN:
            if self.thread.waiting:
                self.thread.settle()
            self.reason = why
            self.t1 = now_ns()
            self.state = _CLOSED if queue is None else _ENDED
            self.thread.append(self)
        if queue is not None:
            self.reason = why
            self.state = _CLOSED
            queue.append(self)

    def __call__(self, function: Any) -> Any:
        """Decorate: one span a call."""
        try:
            return decorate_with(function, self.name, self._stream(), dict(self.args or {}))
        except EXHAUSTED:
            return function

    def _stream(self) -> Any:
        """The stream it was made with."""
        return None if self.queue is None or self.queue is _current_stream.get() else self.queue.handle

    def __copy__(self) -> _Off:
        """A copy, as of an object of the program's that holds this one, is used by itself; an open window's does
        nothing.
        """
        return _Off(self.name, self._stream(), dict(self.args or {}))

    def __deepcopy__(self, memo: Any) -> _Off:
        return self.__copy__()

    def __reduce__(self) -> tuple[Any, ...]:
        return reduced(self.name, dict(self.args or {}))

    def _another(self, frame: Any) -> Span:
        """This object is in use, or was used: a fresh one does the work behind it, for whoever entered it here."""
        fresh = span(self.name, None if self.queue is None else self.queue.handle, **(self.args or {}))
        made = fresh if isinstance(fresh, Span) else _closed_span()  # recording is off, or out of room
        _note_use(self, made, frame)
        return made


def _closed_span() -> Span:
    """Stands for a use that is not recorded, so that its exit closes no other."""
    made = Span(_nowhere)
    made.state = _CLOSED
    return made


def _note_use(shared: Span | _Off, made: Span, frame: Any) -> None:
    if shared.again is None:
        shared.again = []
    note_use(shared.again, made, frame)


class Window(Span):
    """An explicit window: opened here, closed or abandoned anywhere, by any thread, in any order.

    It nests in nothing, so nothing that overlaps it can bend it. Methods raise nothing, and do nothing once it is
    closed. From `gputrace.window`.
    """

    __slots__ = ("ticket",)
    scope = property(lambda self: None, lambda self, value: None)

    def open(self) -> Window:
        """Open it; `gputrace.window` has done so."""
        self.ticket = [self.state]  # whoever takes it closes the window: threads may try at once
        Span.__enter__(self)
        return self

    def _take_ticket(self) -> bool:
        try:
            self.ticket.pop()
        except IndexError:
            return False
        return True

    def __enter__(self) -> Window:
        """It is open already: ``with gputrace.window(...) as w:`` closes it at the block's end."""
        return self

    def close(self) -> None:
        """Close the window at its stream's current position."""
        try:
            if self._take_ticket():
                Span.__exit__(self, None, None, None)
        except EXHAUSTED:
            pass

    def failure(self, error: object) -> None:
        """Something failed inside: the window still closes, and its slice carries the error."""
        if self.state == _OPEN:
            _stats.failed += self.error is None
            try:
                self.error = describe(error)
            except EXHAUSTED:
                self.error = _EXHAUSTED

    def abandon(self) -> None:
        """Drop the window: no closing event is recorded, and its slice, if already drawn, ends where its stream is."""
        try:
            if self._take_ticket():
                self._end_without_event("abandoned")
        except EXHAUSTED:
            pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is not None:
                self.failure(error)
            self.close()
        except EXHAUSTED:
            pass


_stats = Stats()


class _Off:
    """What `span` returns with tracing off: does nothing, unless it is kept and entered when tracing is on."""

    __slots__ = ("again", "args", "name", "stream")

    def __init__(self, name: str, stream: Any, args: dict[str, Any]) -> None:
        self.name = name
        self.stream = stream
        self.args = args
        self.again: list[tuple[int, int, Span]] | None = None  # as a span's

    def __enter__(self) -> _Off:
        try:
            if _on:
                made = span(self.name, self.stream, **self.args)
                if isinstance(made, Span):
                    _note_use(self, made, _getframe(1))
                    made.__enter__()
            elif self.again:
                _note_use(self, _closed_span(), _getframe(1))  # entered again while recording is paused
        except EXHAUSTED:
            _stats.dropped_spans += 1
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        try:
            if self.again:
                made = last_use(self.again, _getframe(1))
                if made is not None:
                    made.__exit__(kind, error, trace)
        except EXHAUSTED:
            pass

    def __call__(self, function: Any) -> Any:
        try:
            return decorate_with(function, self.name, self.stream, self.args)
        except EXHAUSTED:
            return function

    def __copy__(self) -> _Off:
        return _Off(self.name, self.stream, dict(self.args))

    def __deepcopy__(self, memo: Any) -> _Off:
        return self.__copy__()

    def __reduce__(self) -> tuple[Any, ...]:
        return reduced(self.name, self.args)

    # An explicit window's methods, for `window` with tracing off.

    def close(self) -> None:
        return None

    abandon = close

    def failure(self, error: object) -> None:
        return None


class _Dropped(_Off):
    """What `span` returns at memory's bound: counted, and not tried again when it is entered."""

    __slots__ = ()

    def __enter__(self) -> _Off:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        return None


_off_by_name: dict[str, _Off] = {}


if TYPE_CHECKING:

    @overload
    def span(function: F, /) -> F: ...
    @overload
    def span(name: str, /, stream: Any = None, **args: Any) -> SpanLike: ...


def span(name: Any, /, stream: Any = None, **args: Any) -> Any:
    """A slice on this thread while the block or the decorated call runs and, where a stream is known, a window on it.

    ``with gputrace.span("forward", stream=s, batch=32): ...``, ``@gputrace.span("step")``, or ``@gputrace.span`` for a
    function's own name. ``stream`` is any of the handles in `gputrace.devices.stream_handle`; None takes what
    `use_stream` made current, and with neither there is no GPU window; the legacy default stream is used only when
    passed, as 0. ``args`` are kept with both slices: ints, floats, strings and bools as they are, anything else as a
    short ``str``. Raises nothing; with tracing off it costs about two empty context managers.
    """
    try:
        if not _on:
            if stream is None and not args:
                try:
                    return _off_by_name[name]
                except (KeyError, TypeError):
                    return _remember_off(name)
            return _Off(name, stream, args)
        if stream is None:
            queue = _current_stream.get() if _stream_used else None
        else:
            try:
                queue = _queues[stream]
            except Exception as error:  # not seen yet, or no int, or what the program's object raises when it is hashed
                let_through(error)
                queue = _resolve(stream)
        try:
            made = (_host_free if queue is None else queue.free).pop()
        except IndexError:
            new, queue = _make(queue)
            if new is None:
                decorated = decorate_bare(name) if stream is None and not args else None
                return _Dropped(name, stream, args) if decorated is None else decorated
            made = new
        if type(name) is str and len(name) <= LONGEST_NAME:
            made.name = name
        else:
            if stream is None and not args and (decorated := decorate_bare(name)) is not None:
                made.free.append(made)
                return decorated
            made.name = as_name(name)
        made.queue = queue
        made.args = sanitize(args) if args else None
        return made
    except EXHAUSTED:
        _stats.dropped_spans += 1
        try:
            return name if stream is None and not args and name.__class__ in FUNCTIONS else NOTHING
        except Exception:  # whatever the program's object says of its class
            return NOTHING


def call(name: str, args: dict[str, Any] | None, least_ns: int, /) -> Span | None:
    """Begin a slice of a function that runs from here to its `end_call` without being suspended.

    It is in its thread's own row even where a task runs it, and has no window. One shorter than ``least_ns`` is left
    out, unless something else is recorded in it. None where nothing records it.
    """
    if not _on:
        return None
    try:
        made = _host_free.pop()
    except IndexError:
        new = _make(None)[0]
        if new is None:
            return None
        made = new
    made.name, made.queue, made.args = name, None, args
    thread = made.thread = _buffer()
    made.t0 = now_ns()
    made.state = _OPEN
    if least_ns:
        thread.least_ns = least_ns
        thread.waiting.append(made)
    else:
        thread.append(made)
    return made


def end_call(span: Span, kind: type[BaseException] | None) -> None:
    """End what `call` began, by an exception of a kind or by None."""
    said = None if kind is None or kind is GeneratorExit else kind_name(kind)
    if span.state != _OPEN:
        return
    thread, ns = span.thread, now_ns()
    if thread.waiting:
        if ns - span.t0 < thread.least_ns and _take_back(span, thread.waiting):
            return
        thread.settle()
    span.error = said
    span.t1 = ns
    span.state = _CLOSED
    thread.append(span)


def _take_back(span: Span, waiting: deque[Span]) -> bool:
    """A call proved too short; False where it is among the edges already."""
    try:
        if waiting[-1] is not span:
            return False
        waiting.pop()
    except IndexError:  # whoever settled them was quicker
        return False
    span.state = _FRESH
    _stats.short_calls += 1
    span.free.append(span)
    return True


def window(name: str, /, stream: Any = None, **args: Any) -> WindowLike:
    """An explicit window, open from here until its ``close()``, which any thread may call, in any order.

    As `span`, for stretches that no block encloses: a request, a transfer, an async collective. ``abandon()`` drops it,
    ``failure(error)`` marks it. Raises nothing.
    """
    try:
        if not _on:
            return _Off(name, stream, args)
        inner: Any = span(as_name(name), stream, **args)
        if not isinstance(inner, Span):
            off: WindowLike = inner
            return off
        # A pooled span lends its events to the window for good; the pool makes itself another.
        made = Window(inner.free, inner.start, inner.end)
        inner.state = _CLOSED
        made.name, made.args, made.queue = inner.name, inner.args, inner.queue
        return made.open()
    except EXHAUSTED:
        _stats.dropped_spans += 1
        return NOTHING


def instant(name: str, /, **args: Any) -> None:
    """Mark a moment on this thread. Raises nothing."""
    try:
        if _on:
            thread = _buffer()
            if not thread.edges:
                _wake()
            if thread.waiting:
                thread.settle()
            if len(thread.edges) < MOST_SPANS:
                thread.append(Instant(as_name(name), now_ns(), sanitize(args) if args else None))
            else:
                _stats.dropped_spans += 1
    except EXHAUSTED:
        _stats.dropped_spans += 1


def counter(name: str, value: float, unit: str = "") -> None:
    """Give a counter's value from now on; one row of the trace a name. ``unit``: "bytes", "ns", "percent" or none.

    Raises nothing: a value that is no number is not recorded.
    """
    try:
        if _on:
            number = plain_number(name, value, _stats)
            if number is None:
                return
            thread = _buffer()
            if not thread.edges:
                _wake()
            if len(thread.edges) < MOST_SPANS:
                thread.append(Sample(as_name(name), now_ns(), number, as_name(unit)))
            else:
                _stats.dropped_spans += 1
    except EXHAUSTED:
        _stats.dropped_spans += 1


def failure(error: object, stream: Any = None) -> None:
    """Device work failed: every traced window open now, on a stream or (``stream=None``) on all, carries the error.

    The windows still close; none is taken for a fast success. Raises nothing.
    """
    try:
        if not _armed:
            return
        if stream is None:
            hit = list(_all_queues)
        else:
            queue = _queue_of(stream)
            hit = [] if queue is None else [queue]
        mark = FailureMark(describe(error))
        for queue in hit:
            queue.append(mark)
    except EXHAUSTED:
        pass


class use_stream(UseStream):
    __slots__ = ()
    __doc__ = UseStream.__doc__

    def _variable(self) -> ContextVar[StreamQueue | None] | None:
        global _stream_used
        if not _armed:
            return None
        _stream_used = True
        return _current_stream

    def _queue_of(self, stream: Any) -> StreamQueue | None:
        return _queue_of(stream)


# For the tracer.


def switch_on(
    resolve: Callable[[Any], StreamQueue | None],
    lend: Callable[[], Span | None],
    wake: Callable[[], None],
    clock: Callable[[], int],
) -> None:
    """Start recording. ``resolve(stream)`` finds or makes a stream's queue, None for a host slice alone; ``lend()`` is
    asked for a host-only span when the pool is empty, None where memory's bound is reached; ``wake()`` sees to it that
    what takes no span is collected, too; ``clock()``, in C, says when a span died. None of them may raise.
    """
    global _on, _armed, _resolve, _lend, _wake
    _resolve, _lend, _wake = resolve, lend, wake
    _deaths.default_factory = clock
    # Not a line of Python, at which a signal's handler might raise: of a finaliser, Python prints that and drops it.
    # The attribute's value, a number's method, is only called as finalisers are; asking for it has noted the death.
    Span.__del__ = property(attrgetter("_died.bit_length"))  # type: ignore[attr-defined]
    _on = _armed = True


def switch_off() -> None:
    """Stop recording: new spans do nothing. Spans open now still close into their buffers."""
    global _on, _armed
    _on = _armed = False
    try:
        del Span.__del__  # type: ignore[attr-defined]
    except AttributeError:
        pass  # it records nothing


def pause() -> None:
    """Record no new span until `resume`. Spans open now still close, and `use_stream` is still heeded."""
    global _on
    _on = False


def resume() -> None:
    """Go on after `pause`; nothing where nothing records."""
    global _on
    _on = _armed
    if not _armed:  # another thread may have switched off in between
        _on = False


def forget_everything() -> None:
    """A state of its own for this process or this recording: buffers, pools, queues and counts go.

    Spans still open keep the buffers they were opened into, which nobody reads any more, and their queues are refused,
    so that a forked child never touches the device for its parent's windows.
    """
    global _local_state, _threads, _queues, _all_queues, _host_free, _stats, _current_stream, _stream_used
    for queue in _all_queues:
        queue.refuse("forgotten")
        queue.free.closed = True
    _host_free.closed = True
    _deaths.clear()
    _current_stream, _stream_used = ContextVar("gputrace.stream", default=None), False
    _stats = Stats()
    _local_state, _threads, _queues, _all_queues, _host_free = _local(), [], {}, [], Pool()


def stats() -> Stats:
    return _stats


def threads() -> list[ThreadBuffer]:
    """The buffers of all threads that opened a span. The collector drops those that ended."""
    return _threads


def queues() -> dict[Any, StreamQueue]:
    """Stream queues by what programs pass for them; the tracer keeps it."""
    return _queues


def host_pool() -> Pool:
    return _host_free


def idle() -> bool:
    """Has the collector taken all that was handed over?"""
    return not (_deaths or any(thread.edges for thread in _threads) or any(queue.entries for queue in _all_queues))


def current_number() -> int:
    """This thread's number (see `ThreadBuffer.number`)."""
    return _buffer().number


def drop_queue(queue: StreamQueue) -> None:
    """A stream that nobody will pass again."""
    queue.forget()
    if queue in _all_queues:
        _all_queues.remove(queue)


def take(entries: list[Any], most: int) -> list[Any]:
    """The first ``most`` entries, taken off the list. Safe beside appends, where swapping the list would lose some."""
    batch = entries[:most]
    del entries[: len(batch)]
    return batch


def bury() -> None:
    """End the spans that died since the last time: their block was left by an exception that a signal's handler raised
    before `__exit__` could begin. Each ends where it died. The collector's.
    """
    _give_back()
    hosts: dict[int, tuple[list[Any], list[Span]]] = {}  # what is to go into which list
    streams: dict[int, tuple[list[Any], list[Span]]] = {}
    for span in list(_deaths):  # not a tuple: growing one may collect garbage, and more may die in there
        ns, state = _deaths.pop(span, None), getattr(span, "state", _CLOSED)
        if ns is not None and state in (_OPEN, _ENDED):
            span.reason = _NEVER_CLOSED
            span.state = _CLOSED
            if state == _OPEN:
                span.thread.settle()
                span.t1 = ns
                hosts.setdefault(id(span.thread), (span.thread.edges, []))[1].append(span)
            if span.gpu is not None:
                streams.setdefault(id(span.gpu), (span.gpu.entries, []))[1].append(span)
    for is_open, lists in ((attrgetter("host_open"), hosts), (attrgetter("gpu_open"), streams)):
        for edges, ended in lists.values():
            _put_in(edges, ended, is_open)


def _give_back() -> None:
    """Spans that died without being entered, as decorators do, give their places in the pools back. Any thread may."""
    for span in list(_deaths):  # not a tuple: growing one may collect garbage, and more may die in there
        made = getattr(span, "state", _CLOSED)  # none where a signal's handler raised inside `__init__`
        if made in (_FRESH, _OPENING) and _deaths.pop(span, None) is not None and not span.free.closed:
            span.free.append(Span(span.free, span.start, span.end))


def _put_in(edges: list[Any], ended: list[Span], is_open: Callable[[Any], bool | None]) -> None:
    """Put the second edges of spans where they belong in time, while threads append. The first are taken already."""
    ended.sort(key=attrgetter("t1"))
    places: list[int] = []
    begun: set[int] = set()
    before = tuple(edges)
    for index, each in enumerate(before):
        if isinstance(each, FailureMark):
            continue  # it has no time
        ns = each.t1 if is_open(each) or id(each) in begun else each.t0
        begun.add(id(each))
        while len(places) < len(ended) and ended[len(places)].t1 < ns:
            places.append(index)
    places += [len(before)] * (len(ended) - len(places))
    for index, span in zip(reversed(places), reversed(ended), strict=True):
        edges.insert(index, span)


def recycle(done: list[Span]) -> list[Span]:
    """Give written spans back to their pools, emptying the list, to which alone the caller may hold them.

    Returns those that cannot go back, because they are windows or the program still refers to them: they are dropped,
    and the events they own are the caller's.
    """
    kept = []
    while done:
        span = done.pop()
        # This variable and getrefcount's own argument; any more, and the program could enter it again.
        # One that was ended by its finaliser must not come back either: an object is finalised once.
        if getrefcount(span) != 2 or type(span) is not Span or span.reason == _NEVER_CLOSED:
            kept.append(span)
            continue
        span.state = _FRESH
        span.gpu = None
        span.scope = PLAIN
        if span.error is not None or span.reason is not None or span.again is not None or span.misread is not None:
            span.error = span.reason = span.again = span.misread = None
        span.free.append(span)
    return kept


def _make(queue: StreamQueue | None) -> tuple[Span | None, StreamQueue | None]:
    """A span where a pool is empty. A GPU window that may not be is a host slice; a host slice then, nothing."""
    if _deaths:
        _give_back()
        try:
            return (_host_free if queue is None else queue.free).pop(), queue
        except IndexError:
            pass
    if queue is not None:
        made = queue.make()
        if made is not None:
            return made, queue
        _stats.dropped_windows += 1
        try:
            return _host_free.pop(), None
        except IndexError:
            pass
    made = _lend()
    if made is None:
        _stats.dropped_spans += 1
    return made, None


def _queue_of(stream: Any) -> StreamQueue | None:
    try:
        return _queues[stream]
    except Exception as error:
        let_through(error)
        return _resolve(stream)


def _remember_off(name: Any) -> Any:
    if (decorated := decorate_bare(name)) is not None:
        return decorated
    off = _Off(name, None, {})
    if len(_off_by_name) < 4096 and isinstance(name, str):
        _off_by_name[name] = off
    return off


def _buffer() -> ThreadBuffer:
    try:
        return _local_state.buffer  # type: ignore[no-any-return]
    except AttributeError:
        return _new_thread()


_naming: set[int] = set()  # threads whose names are asked for now


def _new_thread() -> ThreadBuffer:
    """What gives the name is the program's, and may itself record: that finds a buffer without a name, which it is
    given then.
    """
    me, name = get_ident(), ""
    if me not in _naming:
        try:
            _naming.add(me)
            name = thread_name()
        finally:
            _naming.discard(me)
        within: ThreadBuffer | None = getattr(_local_state, "buffer", None)
        if within is not None:
            within.name = name
            return within
    buffer = ThreadBuffer(_next_thread(), get_native_id(), name)
    _threads.append(buffer)  # first: a buffer in use and not here would never be read
    _local_state.end = _ThreadEnd(buffer)
    _local_state.buffer = buffer
    return buffer


def _why_not(captured: Any, in_capture: str, refused: str) -> str:
    """Why a stream takes no event now, by what its device answered; counted. A refused queue says so itself."""
    code = captured[0]
    if isinstance(code, str):
        return code
    if code and code != CAPTURE_IMPLICIT:
        _stats.failed += 1
        return f"{refused} (error {int(code)})"
    _stats.uncaptured += 1
    return in_capture
