"""Profiling windows for whoever wants a number: tuners, tests, schedulers.

A window is two events recorded into the stream, where it opened and where it closed. Nothing on the host waits for
them; the device stamps each as its queue reaches it, and the time between is read later by whoever asks. So windows
nest: an inner one measures its own work and adds nothing to the outer one, where draining the stream at both ends would
charge the drains to it. `TimestampProfiler` is that draining way, for devices without events and for comparison.

It knows one device, and neither tracks nor files: a trace's windows are `hot` and `timeline`'s.
"""

from __future__ import annotations

import os
import weakref
from collections import deque

from gputrace import hostclock
from gputrace.anchoring import TRIES, Anchoring
from gputrace.clock import half_step_ns
from gputrace.devices import device_of, stream_handle
from gputrace.errors import Capturing, DeviceError, Unreadable, UsageError
from gputrace.events import EventPool
from gputrace.measurement import UNREADABLE_NS, Measurement, Placement, Reading, TimingMethod, unreadable
from gputrace.windows import Open, OpenWindows, Token, may_close, taken

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Hashable
    from types import TracebackType
    from typing import Any, Final, Self

    from gputrace.anchoring import Stamp
    from gputrace.clock import Placed
    from gputrace.devices.base import Device

#: A window up to this long is read directly between its own two events; the f32 is then off by 30 ns at most.
DIRECT_NS: Final = 1_000_000_000
#: How long a read window waits for the anchor behind it before it is placed by extending the map.
PATIENCE_NS: Final = 1_000_000_000
#: Where somebody waits for a window, an anchor this young is extended rather than followed by another: a tuner asks a
#: thousand times a second, and over so short a way the slope is as good as a bracket.
FRESH_NS: Final = 10_000_000
#: Tries at an anchor while somebody waits. Its bracket may be wider for it, and says so in the uncertainty.
FEW_TRIES: Final = 8


class _Closed:
    """A window whose end was recorded, on its way to a `Reading`."""

    __slots__ = ("duration_error", "duration_ns", "end", "measurement", "read_ns", "stamp", "window")

    def __init__(self, window: Open, end: Any, profiler: EventProfiler) -> None:
        self.window = window
        self.end = end
        self.measurement = Measurement(profiler, window=self)
        self.read_ns = 0  # host time at which the duration was read; 0: not yet
        self.duration_ns = 0
        self.duration_error = 0
        self.stamp: Stamp | None = None  # of `end`, once read; the events are then back in the pool


#: Profilers to keep anchored: the tracer's collector ticks them.
live_profilers: weakref.WeakSet[EventProfiler] = weakref.WeakSet()


class EventProfiler:
    """Profiling on the device's own clock. Thread-safe.

    Streams are given by any of the handles that `gputrace.devices.stream_handle` takes; None is the legacy default
    stream. Raises nothing that depends on the device but `DriverError`, from `start` and `stop`, for a call it refused.

    Close it, or use it as a context manager, to give its events and its anchor stream back to the device at once; one
    that is dropped gives them back when it is collected.
    """

    def __init__(self, device: Device | str, now_ns: Callable[[], int] = hostclock.now_ns) -> None:
        """``device`` as `gputrace.device` gives it, or its kind. ``now_ns`` is the host's clock: another is for tests.

        Raises as `gputrace.device` does, for a kind.
        """
        self.device = device = device_of(device) if isinstance(device, str) else device
        self.pool = EventPool(device)
        self.anchoring = Anchoring(device, self.pool, now_ns)
        self._now_ns = now_ns
        self._closing = False
        self._windows = OpenWindows()
        self._stopped: deque[_Closed] = deque()  # appended to by whoever stops a window
        # Under the anchoring's lock:
        self._unread: dict[Hashable, deque[_Closed]] = {}  # by queue, in order
        self._unplaced: list[_Closed] = []
        live_profilers.add(self)

    # Windows.

    def start(self, stream: Any) -> Token:
        """Open a window at the stream's current position. Never waits for the device.

        Raises `Capturing` for a stream under capture, `DriverError` when the device refuses, and `UsageError` for what
        is no stream; there is then no window and no token, and the events are back in the pool.
        """
        handle = stream_handle(stream)
        if self._closing:
            raise UsageError("the profiler was closed: make another")
        if self.device.stream_capturing(handle):
            raise Capturing(f"stream {handle:#x} is being captured: measure the graph's replay instead")
        event = self.pool.acquire()
        try:
            self.device.event_record(event, handle)
            return self._windows.add(Open(handle, event))
        except BaseException:
            self.pool.release(event)
            raise

    def stop(self, stream: Any, token: Token) -> Measurement:
        """Close a window at the stream's current position. Returns at once; the token is used up whatever happens.

        Raises `NotRegistered` (unknown or used token), `WrongStream`, `Capturing` (a capture began inside the window,
        which is abandoned), the error given to `failure`, `DriverError`, or `UsageError` for what is no stream. Nothing
        is then measured.
        """
        window = taken(self._windows.take(token), token)
        end = None
        try:
            handle = may_close(window, stream, self.device)
            end = self.pool.acquire()
            self.device.event_record(end, handle)
            closed = _Closed(window, end, self)
        except BaseException:
            self.pool.release(window.start)
            if end is not None:
                self.pool.release(end)
            raise
        self._stopped.append(closed)
        if self._closing:  # by another thread, since the window was taken
            self.close()
        return closed.measurement

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
        self._windows.fail(error, stream)

    # Reading back.

    def tick(self) -> None:
        """Keep the anchor fresh while windows are open or unread, and read what the device has reached.

        Raises nothing. A tracer's collector calls it; without one, asking a measurement does.
        """
        # Whoever else holds the lock is at it already; so is this thread, if a signal's handler of its own asks.
        if self._busy and not self.anchoring.entered and self.anchoring.lock.acquire(blocking=False):
            try:
                self._advance(TRIES, None)
            finally:
                self.anchoring.lock.release()

    def poll(self, measurement: Measurement) -> None:
        """For `Measurement`: as `tick`; a window that was reached is placed now rather than at the next anchor."""
        if self.anchoring.entered:
            return  # a signal's handler or a finaliser asks from within: the round below it goes on
        with self.anchoring.lock:
            if not measurement.resolved:
                self._advance(FEW_TRIES, measurement)

    def close(self) -> None:
        """Give every event and the anchor stream back to the device. Windows unread by then report one hour; windows
        still open are abandoned.
        """
        live_profilers.discard(self)
        self._closing = True
        for window in self._windows.take_all():
            self.pool.release(window.start)
        if self.anchoring.entered:
            return  # from within, as in `poll`: what is left goes with the object
        with self.anchoring.lock:
            self._give_up(Unreadable("the profiler was closed before the window was read"))
        self.anchoring.close()
        self.pool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        try:
            if not self._closing:
                self.close()
        except Exception:
            pass  # half made, or the interpreter is going down

    def forget(self) -> None:
        """In a forked child: windows, events and locks are the parent's. Touches no driver."""
        self.pool.forget()
        self.anchoring = Anchoring(self.device, self.pool, self._now_ns)
        self._windows.take_all()
        lost = Unreadable("the window belongs to the process that this one was forked from")
        for closed in self._take_unresolved():
            closed.measurement.resolve(Reading(UNREADABLE_NS, timing=TimingMethod.DEVICE, error=lost))

    @property
    def _busy(self) -> bool:
        return bool(len(self._windows) or self._stopped or self._unread or self._unplaced)

    def _advance(self, tries: int, asked: Measurement | None) -> None:
        """One round, with the anchoring's lock held: anchor, read, place.

        Each step can be broken off anywhere by a KeyboardInterrupt, since `Measurement.result` leads here, and the next
        round goes on: a window is put in its new place before it leaves the old one, and is passed over where it has
        been dealt with.
        """
        self._sort_stopped()
        try:
            with self.device.active():
                if self.anchoring.due(self._now_ns()):
                    self.anchoring.refresh(tries=tries)
                self._read_open()
                self._read_closed()
                if asked is not None:
                    self._hasten(asked)
        except DeviceError as error:
            self._give_up(error)
        self._place(asked)

    def _sort_stopped(self) -> None:
        """Put windows stopped since the last round behind the others of their stream."""
        stopped = self._stopped
        while stopped:
            self._unread.setdefault(stopped[0].window.queue, deque()).append(stopped[0])
            stopped.popleft()

    def _read_open(self) -> None:
        """Read the start of windows still open against an anchor near it: in an hour an f32 could not."""
        if self.anchoring.event is None:
            return
        for window in self._windows.all():
            try:
                if window.stamp is None and self.device.event_query(window.start):
                    window.stamp = self.anchoring.stamp(window.start)
            except DeviceError:
                continue  # closing the window will tell
            if window.stamp is not None and window.placed is None:
                window.placed = self.anchoring.map.place(window.stamp.device_ns, window.stamp.error_ns)

    def _read_closed(self) -> None:
        """Read each stream's windows in order, as far as the device has got."""
        for queue in list(self._unread):
            waiting = self._unread[queue]
            while waiting and self._read(waiting[0]):
                waiting.popleft()
            if not waiting:
                del self._unread[queue]
        for closed in self._unplaced:
            if closed.stamp is None:
                self._stamp(closed)

    def _read(self, closed: _Closed) -> bool:
        """Read a window, if the device has been there. One that cannot be read is answered for at once."""
        if closed.read_ns or closed.measurement.resolved:
            return True
        try:
            # Both, not the end alone: the end implies the start only because they share a stream.
            if not (self.device.event_query(closed.window.start) and self.device.event_query(closed.end)):
                return False
            direct_ns = round(self.device.elapsed_ms(closed.window.start, closed.end) * 1e6)
        except DeviceError as error:
            self._resolve(closed, unreadable(_why(error)))
            return True
        closed.duration_ns = direct_ns
        closed.duration_error = half_step_ns(direct_ns) + self.device.tick_ns
        self._unplaced.append(closed)
        closed.read_ns = self._now_ns()
        self._stamp(closed)
        return True

    def _stamp(self, closed: _Closed) -> None:
        """Put a read window on the device's clock, and give its events back: the next anchor is all it waits for."""
        if self.anchoring.event is None:
            return
        window = closed.window
        try:
            start = window.stamp or self.anchoring.stamp(window.start)
            end = self.anchoring.stamp(closed.end)
        except DeviceError:
            return  # its duration is known all the same; patience will end the wait for a place
        window.stamp, closed.stamp = start, end
        if closed.duration_ns > DIRECT_NS:
            chained_error = start.error_ns + end.error_ns + end.chained_ns - start.chained_ns + self.device.tick_ns
            if chained_error < closed.duration_error:
                closed.duration_ns = end.device_ns - start.device_ns
                closed.duration_error = chained_error
        self._release(closed)

    def _hasten(self, asked: Measurement) -> None:
        """Somebody waits for this window: once it is read, have the map reach it, by an anchor or from a near one."""
        closed, anchoring = asked.window, self.anchoring
        if closed is None or closed.stamp is None:
            return
        reach_ns = anchoring.map.reach_ns
        beyond = reach_ns is None or closed.stamp.device_ns > reach_ns
        if beyond and self._now_ns() - anchoring.taken_ns > FRESH_NS:
            anchoring.refresh(tries=FEW_TRIES)
        anchoring.map.extend(closed.stamp.device_ns)

    def _place(self, asked: Measurement | None) -> None:
        """Answer for the read windows that the map reaches; for those that waited long enough, by extending it."""
        patient_ns = self._now_ns() - PATIENCE_NS
        for closed in self._unplaced:
            if closed.measurement.resolved or not closed.read_ns:
                continue
            start, end = self._edges(closed)
            if start is None or end is None:
                if closed.measurement is not asked and closed.read_ns > patient_ns:
                    continue
                if closed.stamp is not None:
                    self.anchoring.map.extend(closed.stamp.device_ns)
                    start, end = self._edges(closed)
            self._resolve(closed, _reading(closed, start, end))
        self._unplaced = [closed for closed in self._unplaced if not closed.measurement.resolved]

    def _edges(self, closed: _Closed) -> tuple[Placed | None, Placed | None]:
        """Where a window starts and ends, as far as the map reaches. A start once placed stays there."""
        window, end, clock = closed.window, closed.stamp, self.anchoring.map
        if window.placed is None and window.stamp is not None:
            window.placed = clock.place(window.stamp.device_ns, window.stamp.error_ns)
        return window.placed, None if end is None else clock.place(end.device_ns, end.error_ns)

    def _resolve(self, closed: _Closed, reading: Reading) -> None:
        self._release(closed)
        closed.measurement.resolve(reading)

    def _release(self, closed: _Closed) -> None:
        end, closed.end = closed.end, None
        if end is not None:
            self.pool.release(closed.window.start)
            self.pool.release(end)

    def _give_up(self, error: DeviceError | Unreadable) -> None:
        """The device is gone: whatever is unread now can never be read."""
        for closed in self._take_unresolved():
            if not closed.measurement.resolved:
                self._resolve(closed, _reading(closed) if closed.read_ns else unreadable(_why(error)))

    def _take_unresolved(self) -> list[_Closed]:
        self._sort_stopped()
        unread, self._unread = self._unread, {}
        unplaced, self._unplaced = self._unplaced, []
        return [*unplaced, *(closed for waiting in unread.values() for closed in waiting)]


def _after_fork_in_child() -> None:
    for profiler in list(live_profilers):
        profiler.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


def _why(error: Exception) -> Unreadable:
    if isinstance(error, Unreadable):
        return error
    unread = Unreadable(str(error))
    unread.__cause__ = error
    return unread


def _reading(closed: _Closed, start: Placed | None = None, end: Placed | None = None) -> Reading:
    reading = Reading(closed.duration_ns, timing=TimingMethod.DEVICE, duration_uncertainty_ns=closed.duration_error)
    if start is not None and end is not None:
        reading.start_ns, reading.end_ns = start.host_ns, end.host_ns
        reading.placement = Placement.EXACT if start.exact and end.exact else Placement.APPROXIMATE
        reading.uncertainty_ns = max(start.error_ns, end.error_ns)
    return reading


class TimestampProfiler:
    """The draining way: wait for the stream at both ends of a window and read the host's clock.

    Same interface as `EventProfiler`, for devices without timing events, and as the baseline: an inner window's two
    drains are charged to every window around it, and each window holds the launch latency that its drain exposed.
    """

    def __init__(self, device: Device | str, now_ns: Callable[[], int] = hostclock.now_ns) -> None:
        """``device`` as `gputrace.device` gives it, or its kind. ``now_ns`` is the host's clock: another is for tests.

        Raises as `gputrace.device` does, for a kind.
        """
        self.device = device = device_of(device) if isinstance(device, str) else device
        self.pool = EventPool(device)
        self._now_ns = now_ns
        self._windows = OpenWindows()

    def start(self, stream: Any) -> Token:
        """Drain the stream and open a window. Blocks. Raises as `EventProfiler.start` does."""
        handle = stream_handle(stream)
        if self.device.stream_capturing(handle):
            raise Capturing(f"stream {handle:#x} is being captured: it cannot be waited for")
        return self._windows.add(Open(handle, None, self._drain(handle)))

    def stop(self, stream: Any, token: Token) -> Measurement:
        """Drain the stream and close the window. Blocks. Raises as `EventProfiler.stop` does."""
        window = taken(self._windows.take(token), token)
        end_ns = self._drain(may_close(window, stream, self.device))
        reading = Reading(
            end_ns - window.start_ns,
            timing=TimingMethod.SYSTEM,
            start_ns=window.start_ns,
            end_ns=end_ns,
            placement=Placement.EXACT,
            uncertainty_ns=0,
        )
        return Measurement(None, reading)

    def abandon(self, token: Token) -> None:
        """Drop a window without measuring it. Silent, and harmless for a token that was used."""
        self._windows.take(token)

    def failure(self, error: BaseException | str, stream: Any = None) -> None:
        """As `EventProfiler.failure`."""
        self._windows.fail(error, stream)

    def close(self) -> None:
        """Give every event back to the device."""
        self.pool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _drain(self, handle: int) -> int:
        """Wait until the stream has done all it was given; the host clock then, in ns."""
        event = self.pool.acquire()
        try:
            self.device.event_record(event, handle)
            with self.device.active():
                self.device.event_wait(event)
            return self._now_ns()
        finally:
            self.pool.release(event)
