"""Taking anchors: reading the device's clock and the host's together, on a stream that no one else uses.

One `Anchoring` a device. It keeps the last anchor's event, against which other events are read, and the `ClockMap`.
It knows no windows.
"""

from __future__ import annotations

import time
from collections import deque
from _thread import allocate_lock

from gputrace.clock import Anchor, ClockMap, half_step_ns
from gputrace.errors import DeviceError, DriverError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Final

    from gputrace.devices.base import Device
    from gputrace.events import EventPool

REFRESH_NS: Final = 250_000_000
RETRY_NS: Final = 50_000_000
#: No anchor may be older than this while a window needs one; a poor one is then better than none.
MAX_AGE_NS: Final = 1_000_000_000
TRIES: Final = 64
#: A bracket this close to the best one seen lately is as good as they get.
GOOD_ENOUGH: Final = 1.3
#: A bracket this many times the best one seen lately is a poor one.
TOO_WIDE: Final = 32
#: An anchor stream that does not answer for so long is stuck behind something: give this try up.
STUCK_NS: Final = 50_000_000


class Anchoring:
    """Anchors of one device. Thread-safe; a lock is held while an anchor is taken, so nothing that the program's own
    thread calls may come here.
    """

    def __init__(self, device: Device, pool: EventPool) -> None:
        self.device = device
        self.pool = pool
        self.map = ClockMap(device.tick_ns)
        self.lock = allocate_lock()
        self.event: Any = None  # of the last anchor
        self.taken_ns = 0  # when the last good anchor was taken
        self.tried_ns = 0
        self.failed = 0
        self.last_width_ns = 0
        self._stream: Any = None
        self._widths: deque[int] = deque(maxlen=32)

    def due(self, now_ns: int) -> bool:
        """Is it time for another anchor? Sooner after a failure."""
        if self.taken_ns >= self.tried_ns:
            return now_ns - self.taken_ns >= REFRESH_NS
        return now_ns - self.tried_ns >= RETRY_NS

    def refresh(self, hurry: Callable[[], bool] = lambda: False) -> bool:
        """Take an anchor and continue the map to it. Call inside ``device.active()`` and with `lock` held.

        Blocks for some tens of microseconds where nothing competes; each of its up to 64 tries may lose the GIL for a
        switch interval. ``hurry`` is asked between tries and ends them. A failure or a poor bracket keeps the last
        anchor, and returns False. Raises nothing.
        """
        self.tried_ns = time.monotonic_ns()
        try:
            best = self._narrowest(hurry)
            if best is None:
                self.failed += 1
                return False
            event, low, high = best
            if self._poor(high - low) or not self._accept(event, low, high):
                self.failed += 1
                self.pool.release(event)
                return False
        except DeviceError:
            self.failed += 1
            return False
        self.taken_ns = self.tried_ns = time.monotonic_ns()
        return True

    def device_ns(self, event: Any) -> tuple[int, int]:
        """A reached event's device time and how far off it may be, both ns. Needs an anchor: see `event`.

        The error is twice the reading's own half step: anchors between the event and the last one were chained by
        readings that add up to no more. Raises `DriverError`.
        """
        assert self.map.last is not None
        elapsed_ns = round(self.device.elapsed_ms(self.event, event) * 1e6)
        return self.map.last.device_ns + elapsed_ns, 2 * half_step_ns(elapsed_ns)

    def close(self) -> None:
        """Give the anchor's event back and destroy the stream."""
        with self.lock:
            if self.event is not None:
                self.pool.release(self.event)
                self.event = None
            if self._stream is not None:
                stream, self._stream = self._stream, None
                try:
                    with self.device.active():
                        self.device.stream_destroy(stream)
                except DeviceError:
                    pass  # the context took it along

    def _narrowest(self, hurry: Callable[[], bool]) -> tuple[Any, int, int] | None:
        """Of up to 64 brackets the narrowest: its event, the host clock before it and after it (ns)."""
        if self._stream is None:
            self._stream = self.device.stream_create()
        best: tuple[Any, int, int] | None = None
        spare: Any = None
        target = GOOD_ENOUGH * min(self._widths, default=0)
        try:
            for attempt in range(TRIES):
                if attempt and hurry():
                    break
                event, spare = (self.pool.acquire() if spare is None else spare), None
                try:
                    low, high = self._bracket(event)
                except DriverError:
                    self.pool.release(event)
                    raise
                if high and (best is None or high - low < best[2] - best[1]):
                    spare = None if best is None else best[0]
                    best = (event, low, high)
                else:
                    spare = event
                if best is not None and best[2] - best[1] <= target:
                    break
        except DriverError:
            if best is None:
                raise
        finally:
            if spare is not None:
                self.pool.release(spare)
        if best is not None:
            self._widths.append(best[2] - best[1])
        return best

    def _bracket(self, event: Any) -> tuple[int, int]:
        """The host clock just before the event was recorded and just after it was seen done; (0, 0) if it never was.

        Asking in a loop, not waiting: a wait parks the thread, and waking it costs more than the whole bracket.
        """
        record, stream, done, now_ns = self.device.event_record, self._stream, self.device.event_query, time.monotonic_ns
        low = now_ns()
        record(event, stream)
        while not done(event):
            if now_ns() - low > STUCK_NS:
                return 0, 0
        return low, now_ns()

    def _poor(self, width_ns: int) -> bool:
        if not self.taken_ns or self.tried_ns - self.taken_ns > MAX_AGE_NS - REFRESH_NS:
            return False
        return width_ns > TOO_WIDE * min(self._widths)

    def _accept(self, event: Any, low: int, high: int) -> bool:
        """Chain the anchor to the last one and keep its event. False if the device's clock did not move on."""
        last = self.map.last
        device_ns = 0
        if last is not None:
            device_ns = last.device_ns + round(self.device.elapsed_ms(self.event, event) * 1e6)
            if device_ns <= last.device_ns:
                return False
        self.map.add(Anchor(device_ns, low, high))
        self.last_width_ns = high - low
        previous, self.event = self.event, event
        if previous is not None:
            self.pool.release(previous)
        return True


class ClockQuality:
    """How well two clocks can be tied: what `gputrace doctor` prints.

    ``bracket_ns`` is the median width of an anchor's bracket; ``skew_ppm`` how much faster the device's clock ran than
    the host's over ``seconds``, known to within ``skew_error_ppm``; None where no anchor could be taken.
    """

    __slots__ = ("bracket_ns", "seconds", "skew_error_ppm", "skew_ppm")

    def __init__(self, bracket_ns: int, skew_ppm: float | None, skew_error_ppm: float, seconds: float) -> None:
        self.bracket_ns = bracket_ns
        self.skew_ppm = skew_ppm
        self.skew_error_ppm = skew_error_ppm
        self.seconds = seconds


def measure(device: Device, seconds: float = 2.0) -> ClockQuality:
    """Anchor a device for some seconds and say how good its clock is. Raises `DriverError`."""
    from gputrace.events import EventPool

    pool = EventPool(device)
    anchoring = Anchoring(device, pool)
    anchors: list[Anchor] = []
    end_ns = time.monotonic_ns() + round(seconds * 1e9)
    try:
        while True:
            with device.active(), anchoring.lock:
                if anchoring.refresh() and anchoring.map.last is not None:
                    anchors.append(anchoring.map.last)
            if time.monotonic_ns() >= end_ns:
                break
            time.sleep(REFRESH_NS / 2e9)
    finally:
        anchoring.close()
        pool.close()
    if len(anchors) < 2:
        raise DriverError("anchor", -1, "no anchor", "the device did not answer on a stream of its own")
    widths = sorted(anchor.high_ns - anchor.low_ns for anchor in anchors)
    first, last = anchors[0], anchors[-1]
    host_ns = last.host_ns - first.host_ns
    skew_ppm = ((last.device_ns - first.device_ns) / host_ns - 1) * 1e6
    error_ppm = (first.half_ns + last.half_ns + 2 * device.tick_ns) / host_ns * 1e6
    return ClockQuality(widths[len(widths) // 2], skew_ppm, error_ppm, host_ns / 1e9)
