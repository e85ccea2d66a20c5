"""Profiling windows for whoever wants a number: tuners, tests, schedulers.

A window is two events recorded into the stream, where it opened and where it closed. Nothing on the host waits for
them; the device stamps each as its queue reaches it, and the time between is read later by whoever asks. So windows
nest: an inner one measures its own work and adds nothing to the outer one, where draining the stream at both ends would
charge the drains to it. `TimestampProfiler` is that draining way, for devices without events and for comparison.

It knows one device, and neither tracks nor files: a trace's windows are `hot` and `timeline`'s.
"""

from __future__ import annotations

import time
import weakref
from _thread import allocate_lock

from gputrace.anchoring import Anchoring
from gputrace.clock import half_step_ns
from gputrace.devices import stream_handle
from gputrace.errors import Capturing, DeviceError, DriverError, NotRegistered, Unreadable, WindowFailed, WrongStream
from gputrace.events import EventPool
from gputrace.measurement import Measurement, Placement, Reading, TimingMethod, unreadable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Final

    from gputrace.clock import Placed
    from gputrace.devices.base import Device

#: A window up to this long is read directly between its own two events; the f32 is then off by 30 ns at most.
DIRECT_NS: Final = 1_000_000_000
#: How long a read window waits for the anchor behind it before it is placed by extending the map.
PATIENCE_NS: Final = 1_000_000_000


class Token:
    """Stands for one open window; good for one `stop` or `abandon`."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number

    def __repr__(self) -> str:
        return f"Token({self.number})"


class _Open:
    """A window that has been opened and not closed."""

    __slots__ = ("device_ns", "error", "handle", "start", "start_ns")

    def __init__(self, handle: int, start: Any, start_ns: int = 0) -> None:
        self.handle = handle
        self.start = start
        self.device_ns: tuple[int, int] | None = None  # of `start`, and its error, once read
        self.start_ns = start_ns  # host clock, for the draining way
        self.error: BaseException | None = None


class OpenWindows:
    """The windows open now, by token: what both profilers have in common. Thread-safe; never waits."""

    def __init__(self) -> None:
        self._open: dict[int, _Open] = {}
        self._next = 0
        self._lock = allocate_lock()

    def __len__(self) -> int:
        return len(self._open)

    def all(self) -> list[_Open]:
        with self._lock:
            return list(self._open.values())

    def add(self, window: _Open) -> Token:
        with self._lock:
            number, self._next = self._next, self._next + 1
            self._open[number] = window
        return Token(number)

    def take(self, token: Token) -> _Open | None:
        """The token's window, which is open no longer; None if it was not open."""
        with self._lock:
            return self._open.pop(getattr(token, "number", -1), None)

    def closing(self, token: Token, handle: int) -> tuple[_Open | None, BaseException | None]:
        """The token's window, which is open no longer, and what stands against measuring it."""
        window = self.take(token)
        if window is None:
            return None, NotRegistered(f"{token!r} was never issued here, or was used: a token closes one window, once")
        if window.error is not None:
            return window, window.error
        if window.handle != handle:
            return window, WrongStream(
                f"the window was started on stream {window.handle:#x} and stopped on {handle:#x}: stop it where it started"
            )
        return window, None

    def fail(self, error: BaseException, handle: int | None) -> None:
        with self._lock:
            for window in self._open.values():
                if window.error is None and (handle is None or window.handle == handle):
                    window.error = error


class _Pending:
    """A closed window whose events have not both been read."""

    __slots__ = ("device_ns", "duration_error", "duration_ns", "end", "measurement", "read_ns", "start")

    def __init__(self, window: _Open, end: Any, measurement: Measurement) -> None:
        self.start = window.start
        self.device_ns = window.device_ns
        self.end = end
        self.measurement = measurement
        self.read_ns = 0  # host time at which both were read; 0: not yet
        self.duration_ns = 0
        self.duration_error = 0


#: Profilers to keep anchored: the tracer's collector ticks them.
live_profilers: weakref.WeakSet[EventProfiler] = weakref.WeakSet()


class EventProfiler:
    """Profiling on the device's own clock. Thread-safe.

    Streams are given by any of the handles that `gputrace.devices.stream_handle` takes; None is the legacy default
    stream. Raises nothing that depends on the device but `DriverError`, from `start` and `stop`, for a call it refused.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self.pool = EventPool(device)
        self.anchoring = Anchoring(device, self.pool)
        self._windows = OpenWindows()
        self._closed: list[_Pending] = []  # appended to by whoever stops a window
        self._pending: list[_Pending] = []  # under the anchoring's lock
        live_profilers.add(self)

    # Windows.

    def start(self, stream: Any) -> Token:
        """Open a window at the stream's current position. Never waits for the device.

        Raises `Capturing` for a stream under capture, and `DriverError` when the device refuses; there is then no
        window and no token, and the events are back in the pool.
        """
        handle = stream_handle(stream)
        if self.device.stream_capturing(handle):
            raise Capturing(f"stream {handle:#x} is being captured: measure the graph's replay instead")
        event = self.pool.acquire()
        try:
            self.device.event_record(event, handle)
        except BaseException:
            self.pool.release(event)
            raise
        return self._windows.add(_Open(handle, event))

    def stop(self, stream: Any, token: Token) -> Measurement:
        """Close a window at the stream's current position. Returns at once; the token is used up whatever happens.

        Raises `NotRegistered` (unknown or used token), `WrongStream`, `Capturing` (a capture began inside the window,
        which is abandoned), the error given to `failure`, or `DriverError`. Nothing is then measured.
        """
        handle = stream_handle(stream)
        window, error = self._windows.closing(token, handle)
        if window is None:
            assert error is not None
            raise error
        end = None
        try:
            if error is not None:
                raise error
            if self.device.stream_capturing(handle):
                raise Capturing(f"a capture of stream {handle:#x} began inside the window, which is abandoned")
            end = self.pool.acquire()
            self.device.event_record(end, handle)
        except BaseException:
            for event in (window.start, end):
                if event is not None:
                    self.pool.release(event)
            raise
        measurement = Measurement(self)
        self._closed.append(_Pending(window, end, measurement))
        return measurement

    def abandon(self, token: Token) -> None:
        """Drop a window without measuring it. Silent, and harmless for a token that was used."""
        window = self._windows.take(token)
        if window is not None:
            self.pool.release(window.start)

    def failure(self, error: BaseException | str, stream: Any = None) -> None:
        """Device work failed: poison every window open now, on one stream or (``stream=None``) on all.

        A failed candidate would otherwise be measured as a very fast one. Stopping a poisoned window raises ``error``.
        Does nothing with no window open; windows already stopped keep their measurements.
        """
        if not len(self._windows):
            return
        failed = error if isinstance(error, BaseException) else WindowFailed(str(error))
        self._windows.fail(failed, None if stream is None else stream_handle(stream))

    # Reading back.

    def tick(self) -> None:
        """Keep the anchor fresh while windows are open or unread, and read what the device has reached.

        Raises nothing. A tracer's collector calls it; without one, asking a measurement does.
        """
        if not (len(self._windows) or self._closed or self._pending):
            return
        with self.anchoring.lock:
            self._take_closed()
            try:
                with self.device.active():
                    if self.anchoring.due(time.monotonic_ns()):
                        self.anchoring.refresh()
                    self._read_reached()
                    self._settle()
            except DeviceError as error:
                self._give_up(error)

    def poll(self, measurement: Measurement) -> None:
        """For `Measurement`: read what was reached, then settle this one now rather than at the next anchor."""
        self.tick()
        with self.anchoring.lock:
            pending = next((p for p in self._pending if p.measurement is measurement), None)
            if pending is None or not pending.read_ns:
                return
            try:
                with self.device.active():
                    # Somebody is waiting: an anchor behind the window places it exactly.
                    self.anchoring.refresh()
                    self._date(pending)
                    self._settle(at_once=pending)
            except DeviceError as error:
                self._give_up(error)

    def close(self) -> None:
        """Give every event and the anchor stream back to the device. Windows unread by then report one hour."""
        live_profilers.discard(self)
        with self.anchoring.lock:
            self._give_up(Unreadable("the profiler was closed before the window was read"))
        self.anchoring.close()
        self.pool.close()

    def _take_closed(self) -> None:
        count = len(self._closed)  # the list may grow meanwhile: swapping it for a new one would lose windows
        self._pending += self._closed[:count]
        del self._closed[:count]

    def _read_reached(self) -> None:
        if self.anchoring.event is not None:
            self._date_open_windows()
        for pending in self._pending:
            if pending.read_ns:
                continue
            try:
                # Both, not the end alone: the end implies the start only because they share a stream.
                if self.device.event_query(pending.start) and self.device.event_query(pending.end):
                    self._read(pending)
            except DeviceError as error:
                self._resolve(pending, unreadable(_why(error)))
        self._forget_resolved()

    def _date_open_windows(self) -> None:
        """Read the start of windows still open against an anchor near it: in an hour an f32 could not."""
        for window in self._windows.all():
            if window.device_ns is None:
                try:
                    if self.device.event_query(window.start):
                        window.device_ns = self.anchoring.device_ns(window.start)
                except DriverError:
                    continue  # closing the window will tell

    def _read(self, pending: _Pending) -> None:
        """Read a window whose events were both reached, and give the events back as soon as nothing needs them."""
        direct_ns = round(self.device.elapsed_ms(pending.start, pending.end) * 1e6)
        pending.duration_ns = direct_ns
        pending.duration_error = half_step_ns(direct_ns) + 2 * self.device.tick_ns
        self._date(pending)
        pending.read_ns = time.monotonic_ns()

    def _date(self, pending: _Pending) -> None:
        """Put the window's start on the device's clock, and a long window's duration together from the chain."""
        if pending.start is None or self.anchoring.event is None:
            return
        if pending.device_ns is None:
            pending.device_ns = self.anchoring.device_ns(pending.start)
        if pending.duration_ns > DIRECT_NS:
            (start_ns, start_error), (end_ns, end_error) = pending.device_ns, self.anchoring.device_ns(pending.end)
            chained_error = start_error + end_error + 2 * self.device.tick_ns
            if chained_error < pending.duration_error:
                pending.duration_ns = end_ns - start_ns
                pending.duration_error = chained_error
        self._release(pending)

    def _settle(self, at_once: _Pending | None = None) -> None:
        """Place the read windows that the map reaches; those that waited long enough, by extending it."""
        now_ns = time.monotonic_ns()
        clock = self.anchoring.map
        for pending in self._pending:
            if not pending.read_ns:
                continue
            placed = clock.place(*pending.device_ns) if pending.device_ns else None
            if placed is None and pending is not at_once and now_ns - pending.read_ns < PATIENCE_NS:
                continue
            if placed is None and pending.device_ns:
                clock.extend(pending.device_ns[0])
                placed = clock.place(*pending.device_ns)
            self._resolve(pending, _reading(pending, placed))
        self._forget_resolved()

    def _forget_resolved(self) -> None:
        self._pending = [p for p in self._pending if not p.measurement.resolved]

    def _resolve(self, pending: _Pending, reading: Reading) -> None:
        self._release(pending)
        pending.measurement.resolve(reading)

    def _release(self, pending: _Pending) -> None:
        if pending.start is not None:
            self.pool.release(pending.start)
            self.pool.release(pending.end)
            pending.start = pending.end = None

    def _give_up(self, error: DeviceError | Unreadable) -> None:
        """The device is gone: whatever is unread now can never be read."""
        self._take_closed()
        pending, self._pending = self._pending, []
        for window in pending:
            reading = _reading(window, None) if window.read_ns else unreadable(_why(error))
            self._resolve(window, reading)


def _why(error: Exception) -> Unreadable:
    if isinstance(error, Unreadable):
        return error
    unread = Unreadable(str(error))
    unread.__cause__ = error
    return unread


def _reading(pending: _Pending, placed: Placed | None) -> Reading:
    if placed is None:
        return Reading(
            pending.duration_ns, timing=TimingMethod.DEVICE, duration_uncertainty_ns=pending.duration_error
        )
    return Reading(
        pending.duration_ns,
        timing=TimingMethod.DEVICE,
        duration_uncertainty_ns=pending.duration_error,
        start_ns=placed.host_ns,
        placement=Placement.EXACT if placed.exact else Placement.APPROXIMATE,
        uncertainty_ns=placed.error_ns,
    )


class TimestampProfiler:
    """The draining way: wait for the stream at both ends of a window and read the host's clock.

    Same interface as `EventProfiler`, for devices without timing events, and as the baseline: an inner window's two
    drains are charged to every window around it, and each window holds the launch latency that its drain exposed.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self.pool = EventPool(device)
        self._windows = OpenWindows()

    def start(self, stream: Any) -> Token:
        """Drain the stream and open a window. Blocks. Raises `Capturing` and `DriverError`."""
        handle = stream_handle(stream)
        return self._windows.add(_Open(handle, None, self._drain(handle)))

    def stop(self, stream: Any, token: Token) -> Measurement:
        """Drain the stream and close the window. Blocks. Raises as `EventProfiler.stop` does."""
        handle = stream_handle(stream)
        window, error = self._windows.closing(token, handle)
        if error is not None:
            raise error
        assert window is not None
        end_ns = self._drain(handle)
        reading = Reading(
            end_ns - window.start_ns,
            timing=TimingMethod.SYSTEM,
            start_ns=window.start_ns,
            placement=Placement.EXACT,
            uncertainty_ns=0,
        )
        return Measurement(None, reading)

    def abandon(self, token: Token) -> None:
        """Drop a window without measuring it. Silent, and harmless for a token that was used."""
        self._windows.take(token)

    def failure(self, error: BaseException | str, stream: Any = None) -> None:
        """As `EventProfiler.failure`."""
        failed = error if isinstance(error, BaseException) else WindowFailed(str(error))
        self._windows.fail(failed, None if stream is None else stream_handle(stream))

    def close(self) -> None:
        """Give every event back to the device."""
        self.pool.close()

    def _drain(self, handle: int) -> int:
        """Wait until the stream has done all it was given; the host clock then, in ns."""
        if self.device.stream_capturing(handle):
            raise Capturing(f"stream {handle:#x} is being captured: it cannot be waited for")
        event = self.pool.acquire()
        try:
            self.device.event_record(event, handle)
            self.device.event_wait(event)
            return time.monotonic_ns()
        finally:
            self.pool.release(event)
