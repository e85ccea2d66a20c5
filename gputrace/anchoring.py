"""Taking anchors: reading the device's clock and the host's together, on a stream that no one else uses.

One `Anchoring` a device. It keeps the last anchor's event, against which other events are read, and the `ClockMap`.
It knows no windows.
"""

from __future__ import annotations

from _thread import RLock
from time import sleep

from gputrace import hostclock
from gputrace.clock import UNKNOWN_SKEW, Anchor, ClockMap, half_step_ns
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
#: How many of the last anchors' widths "lately" means.
WIDTHS_KEPT: Final = 32
#: An anchor stream that does not answer for so long is stuck behind something.
STUCK_NS: Final = 20_000_000


class Stamp:
    """A reached event's time on the device's clock, in its own ns.

    ``error_ns`` is how far off it may be against the map; ``chained_ns`` how far off the chain of anchors may have been
    by then (see `Anchor`), which counts between two stamps that were read against different anchors.
    """

    __slots__ = ("chained_ns", "device_ns", "error_ns")

    def __init__(self, device_ns: int, error_ns: int, chained_ns: int) -> None:
        self.device_ns = device_ns
        self.error_ns = error_ns
        self.chained_ns = chained_ns


class Bracket:
    """An event of the anchor stream, and the host clock just before it was recorded and just after it was seen done."""

    __slots__ = ("event", "high_ns", "low_ns")

    def __init__(self, event: Any, low_ns: int, high_ns: int) -> None:
        self.event = event
        self.low_ns = low_ns
        self.high_ns = high_ns

    @property
    def width_ns(self) -> int:
        return self.high_ns - self.low_ns


class Anchoring:
    """Anchors of one device. Thread-safe; a lock is held while an anchor is taken, so nothing that the program's own
    thread calls may come here.

    ``now_ns`` is the host's clock: another one is for tests.
    """

    def __init__(self, device: Device, pool: EventPool, now_ns: Callable[[], int] = hostclock.now_ns) -> None:
        self.device = device
        self.pool = pool
        self.now_ns = now_ns
        self.map = ClockMap(device.tick_ns)
        self.lock = RLock()
        self.taken_ns = 0  # when the last good anchor was taken
        self.tried_ns = 0
        self.failed = 0
        self.last_width_ns = 0
        self.jumped_ns = 0  # by how much the device's clock was last found set, in ns; whoever tells sets it back
        self._stream: Any = None
        self._stuck: Any = None  # an event that the anchor stream has not answered for yet
        self._widths: list[int] = []
        self._closed = False

    @property
    def event(self) -> Any:
        """The last anchor's, which other events are read against; None without one."""
        last = self.map.last
        return None if last is None else last.event

    @property
    def entered(self) -> bool:
        """Does the calling thread hold `lock` already?"""
        return bool(self.lock._is_owned())  # type: ignore[attr-defined]

    def due(self, now_ns: int) -> bool:
        """Is it time for another anchor? Sooner after a failure."""
        if self.taken_ns >= self.tried_ns:
            return now_ns - self.taken_ns >= REFRESH_NS
        return now_ns - self.tried_ns >= RETRY_NS

    def refresh(self, hurry: Callable[[], bool] = lambda: False, tries: int = TRIES) -> bool:
        """Take an anchor and continue the map to it. Call inside ``device.active()`` and with `lock` held.

        Blocks for some tens of microseconds where nothing competes; each of its tries may lose the GIL for a switch
        interval. ``hurry`` is asked between tries and ends them. A failure or a poor bracket keeps the last anchor, and
        returns False. Raises nothing.
        """
        if self._closed:
            return False
        self.tried_ns = self.now_ns()
        try:
            taken = self._answers() and self._take(hurry, tries)
        except DeviceError:
            taken = False
        if taken:
            self.taken_ns = self.tried_ns = self.now_ns()
            return True
        self.failed += 1
        if self.event is None and self._stuck is None:
            self._destroy_stream()  # a failed first anchor leaves nothing behind
        return False

    def stamp(self, event: Any) -> Stamp:
        """A reached event's device time. Needs an anchor: see `event`. Raises `DriverError`.

        The error is twice the reading's own half step: anchors between the event and the last one were chained by
        readings that add up to no more.
        """
        last = self.map.last
        assert last is not None
        elapsed_ns = round(self.device.elapsed_ms(self.event, event) * 1e6)
        return Stamp(last.device_ns + elapsed_ns, 2 * half_step_ns(elapsed_ns), last.chained_ns)

    def close(self) -> None:
        """Give the anchor's event back and destroy the stream. No anchor is taken after this."""
        with self.lock:
            self._closed = True
            last = self.map.last
            if last is not None and last.event is not None:
                self.pool.release(last.event)
                last.event = None
            self._let_go_stuck()
            try:
                with self.device.active():
                    self._destroy_stream()
            except DeviceError:
                self._stream = None  # the context took it along

    def _answers(self) -> bool:
        """Has the anchor stream got over what it was stuck behind, if it was?"""
        if self._stuck is None:
            return True
        if not self.device.event_query(self._stuck):
            return False
        self._let_go_stuck()
        return True

    def _take(self, hurry: Callable[[], bool], tries: int) -> bool:
        best = self._narrowest(hurry, tries)
        if best is None:
            return False
        try:
            return not self._poor(best.width_ns) and self._accept(best)
        finally:
            if self.event is not best.event:
                self.pool.release(best.event)

    def _narrowest(self, hurry: Callable[[], bool], tries: int) -> Bracket | None:
        """Of so many brackets the narrowest; the first that is about as narrow as they get, if one is."""
        if self._stream is None:
            self._stream = self.device.stream_create()
        best: Bracket | None = None
        target = GOOD_ENOUGH * min(self._widths, default=0)
        try:
            for attempt in range(tries):
                if attempt and hurry():
                    break
                bracket = self._bracket()
                if bracket is None:
                    break
                wider = best
                if best is None or bracket.width_ns < best.width_ns:
                    best = bracket
                else:
                    wider = bracket
                if wider is not None:
                    self.pool.release(wider.event)
                if best.width_ns <= target:
                    break
        except DeviceError:
            if best is None:
                raise
        except BaseException:
            if best is not None:
                self.pool.release(best.event)
            raise
        if best is not None:
            self._widths = [*self._widths[1 - WIDTHS_KEPT :], best.width_ns]
        return best

    def _bracket(self) -> Bracket | None:
        """One try; None if the stream does not answer.

        Asking in a loop, not waiting: a wait parks the thread, and waking it costs more than the whole bracket.
        """
        record, stream, done, now_ns = self.device.event_record, self._stream, self.device.event_query, self.now_ns
        event = self.pool.acquire()
        try:
            low_ns = now_ns()
            record(event, stream)
            asked_ns, late = 0, False
            while not done(event):
                if late:
                    self._stuck = event
                    return None
                # Since it was first asked, and once more when that is long ago: what went by without the GIL, before or
                # between, was no lack of an answer.
                asked_ns = asked_ns or now_ns()
                late = now_ns() - asked_ns > STUCK_NS
            return Bracket(event, low_ns, now_ns())
        except BaseException:
            self.pool.release(event)
            raise

    def _poor(self, width_ns: int) -> bool:
        if not self.taken_ns or self.tried_ns - self.taken_ns > MAX_AGE_NS - REFRESH_NS:
            return False
        return width_ns > TOO_WIDE * min(self._widths)

    def _accept(self, bracket: Bracket) -> bool:
        """Chain the anchor to the last one and keep its event. False if the device's clock did not move on."""
        last = self.map.last
        device_ns = chained_ns = doubt_ns = 0
        if last is not None:
            elapsed_ns = round(self.device.elapsed_ms(self.event, bracket.event) * 1e6)
            host_ns = (bracket.low_ns + bracket.high_ns) // 2 - last.host_ns
            jump_ns = elapsed_ns - host_ns
            noise_ns = last.half_ns + bracket.width_ns + 2 * half_step_ns(elapsed_ns) + 2 * self.device.tick_ns
            if abs(jump_ns) > UNKNOWN_SKEW * host_ns + noise_ns and host_ns > 0:
                # No clock drifts so fast: it was set. The chain goes on by the host's clock, and what lies between the
                # two anchors is as uncertain as the jump, for nobody knows when it was.
                self.jumped_ns = jump_ns
                elapsed_ns, doubt_ns = host_ns, abs(jump_ns) + host_ns
            if elapsed_ns <= 0:
                return False
            device_ns = last.device_ns + elapsed_ns
            chained_ns = last.chained_ns + half_step_ns(elapsed_ns)
        previous = self.event
        self.map.add(Anchor(device_ns, bracket.low_ns, bracket.high_ns, chained_ns, bracket.event), doubt_ns)
        self.last_width_ns = bracket.width_ns
        if previous is not None:
            self.pool.release(previous)
        return True

    def _let_go_stuck(self) -> None:
        event, self._stuck = self._stuck, None
        if event is not None:
            self.pool.release(event)

    def _destroy_stream(self) -> None:
        stream, self._stream = self._stream, None
        if stream is None:
            return
        try:
            self.device.stream_destroy(stream)
        except DeviceError:
            return  # the context took it along


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
    end_ns = hostclock.now_ns() + round(seconds * 1e9)
    try:
        while True:
            with device.active(), anchoring.lock:
                if anchoring.refresh() and anchoring.map.last is not None:
                    anchors.append(anchoring.map.last)
            if hostclock.now_ns() >= end_ns:
                break
            sleep(REFRESH_NS / 2e9)
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
