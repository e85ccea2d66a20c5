"""One device's windows on their way from the streams to the timeline: when anchors are taken, when edges are read and
placed, what to do when the clock jumps or the device is lost.

How edges are read and placed is a twin's: `DeviceTrace` has the policy, `gputrace.puredevice` and
`gputrace.compileddevice` the rest. It knows the device protocol, and neither exporters nor files.
"""

from __future__ import annotations

from _thread import RLock

from gputrace import hot
from gputrace.anchoring import Anchoring
from gputrace.clock import TELLING_NS
from gputrace.errors import DeviceError
from gputrace.events import EventPool
from gputrace.hostclock import now_ns
from gputrace.model import COUNTER, Track

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Final

    from gputrace.counts import Counts
    from gputrace.devices.base import Device, Stream
    from gputrace.model import Edge
    from gputrace.tracks import Tracks

    Write = Callable[[Track, list[Edge]], None]

#: How long a read edge waits for the anchor behind it before it is placed by extending the map.
PATIENCE_NS: Final = 1_000_000_000
#: Edges that wait for an anchor before one is taken early: each keeps some 100 bytes.
MOST_WAITING: Final = 16_384
#: But not sooner than this after the last one was tried.
EARLIEST_NS: Final = 10_000_000
#: Anchors that must have failed, with none taken, before the device itself is asked whether it is there.
FAILED_ANCHORS: Final = 3


class Line:
    """One stream as the collector sees it: its queue, and what waits there to be placed. A twin's."""

    queue: Any
    waiting_since_ns = 0
    ended = False  # its thread is gone, and with it whoever could use it

    @property
    def unread(self) -> int:
        """Edges recorded and not yet read."""
        raise NotImplementedError

    @property
    def waiting(self) -> int:
        """Edges read and not yet placed."""
        raise NotImplementedError

    @property
    def open_spans(self) -> int:
        """Windows drawn as begun and not ended."""
        raise NotImplementedError

    @property
    def tracks(self) -> list[Track]:
        raise NotImplementedError

    def waiting_range(self) -> tuple[int | None, int | None]:
        """The earliest and the latest device time of an edge that waits, in ns; None where none does."""
        raise NotImplementedError

    def clip(self, most_ns: int) -> None:
        """Take back to a device time what waits behind it."""
        raise NotImplementedError

    def first_event(self) -> Any:
        """The event of the first window not yet read; None if there is none."""
        raise NotImplementedError

    def flush(self, write: Write) -> None:
        """Hand what was drawn to the writer."""


class Surroundings:
    """What a tracer gives each of its devices.

    ``room()`` says how many more windows the process may have in flight; ``wake()`` makes sure the collector runs;
    ``tell(text)`` says something to the user, once.
    """

    __slots__ = ("counts", "room", "tell", "tracks", "wake")

    def __init__(
        self,
        tracks: Tracks,
        counts: Counts,
        room: Callable[[], int],
        wake: Callable[[], None],
        tell: Callable[[str], None],
    ) -> None:
        self.tracks = tracks
        self.counts = counts
        self.room = room
        self.wake = wake
        self.tell = tell


class DeviceTrace:
    """One context of one device, being traced. The program's threads call `make`, when there is no window to be
    had, and `queue`, when a stream is new; everything else is the collector's.
    """

    reads_on = False  #: does `read_on` do anything?

    def __init__(self, device: Device, around: Surroundings) -> None:
        self.device = device
        self.pool = EventPool(device)
        self.anchoring = Anchoring(device, self.pool)
        self.lines: list[Any] = []  # of a twin's own kind of Line
        self.lost: str | None = None
        self._lock = RLock()  # a signal's handler or a finaliser may open a window while its thread is in here
        self._around = around
        self._tracks = around.tracks
        self._streams = 0
        self._told_pieces = 0
        self._read_error_ns = 0
        self._group: Track | None = None
        self._uncertainty: Track | None = None
        self._skew: Track | None = None
        self._counter_ns = 0

    # A twin's.

    @property
    def in_flight(self) -> int:
        """Windows opened and not yet read whole."""
        raise NotImplementedError

    @property
    def open(self) -> int:
        """Windows whose begin was read and whose end was not."""
        raise NotImplementedError

    def make(self) -> Any:
        """More windows, where none is to be had; none at the bound or where the device refuses. Raises nothing."""
        raise NotImplementedError

    def wake_next(self) -> None:
        """Have the next window wake the collector."""

    def forget(self) -> None:
        """In a forked child: all is the parent's. Touches no driver."""

    def owns(self, span: Any) -> bool:
        """Are this span's events of this device?"""
        return False

    def drop(self, span: Any) -> None:
        """A written span that cannot be used again: its events can."""

    def mark(self) -> None:
        """Note how far each queue has come. Host edges taken after this hold the begin of everything before it."""
        raise NotImplementedError

    def _new_line(self, stream: Stream, order: int) -> Any:
        raise NotImplementedError

    def _read(self, most: int, base_ns: int) -> tuple[bool, int | str]:
        """Read at most ``most`` edges a stream, up to the mark, that the device has passed. Returns whether there is
        more to do right away, and the last result that was neither success nor "not yet".
        """
        raise NotImplementedError

    def _read_lost(self, why: str) -> None:
        """Take what a lost device never answered for."""
        raise NotImplementedError

    def _place_lines(self, lines: list[Any], most: int) -> bool:
        """Draw at most ``most`` of what waits on each of these, as far as the map reaches. True if more may be left."""
        raise NotImplementedError

    def _give_up(self, lines: list[Any], why: str) -> None:
        """Nothing that waits there can be placed: each window becomes an instant that says why."""
        raise NotImplementedError

    # The program's side.

    def queue(self, stream: Stream) -> Any:
        """A queue for one more stream of this context."""
        order = self._streams = self._streams + 1
        line = self._new_line(stream, order)
        if self.lost is not None:
            line.queue.refuse(self.lost)
        self.lines.append(line)
        return line.queue

    def end(self, queue: Any) -> None:
        """The thread whose own stream this is is gone."""
        for line in self.lines:
            if line.queue is queue:
                line.ended = True

    # The collector's side.

    def collect(self, most: int, hurry: Callable[[], bool], *, last: bool = False) -> bool:
        """Read at most ``most`` edges a stream that the device has reached, up to the mark, and draw what is in reach.

        ``last`` takes an anchor at once and draws everything that was read. True if there is more to do right away.
        Raises nothing of the device's.
        """
        if not (self.open or any(line.unread or line.waiting or line.ended for line in self.lines)):
            return False
        more = self._look(most, hurry, last)
        if self.lost is not None:
            self._read_lost(self.lost)
            last = True
        more |= self._place(most, last)
        self._drop_ended()
        return more

    def read_on(self, hurry: Callable[[], bool]) -> None:
        """Take anchors and read what the device has reached, drawing nothing: its windows can be used again, and a
        program that goes on beside a slow disk finds them as warm as ever. Raises nothing of the device's.
        """

    def _look(self, most: int, hurry: Callable[[], bool], last: bool) -> bool:
        """Take an anchor if one is due, and read. True if there is more to read right away."""
        more = False
        try:
            with self.device.active(), self.anchoring.lock:
                if self.lost is None:
                    if last or self._anchor_due():
                        self.anchoring.refresh(hurry)
                        self._mind_jump()
                    if self.anchoring.event is not None:
                        more = self._read_reached(most)
                        if last:
                            self.anchoring.refresh(hurry)
                            self._mind_jump()
                    elif self.anchoring.failed >= FAILED_ANCHORS or last:
                        self._ask_if_lost()
        except DeviceError as error:
            self.lose(str(error))
        return more

    def _anchor_due(self) -> bool:
        now = now_ns()
        if sum(line.waiting for line in self.lines) > MOST_WAITING:
            return now - self.anchoring.tried_ns >= EARLIEST_NS
        return self.anchoring.due(now)

    def _read_reached(self, most: int) -> bool:
        assert self.anchoring.map.last is not None
        idle = [line for line in self.lines if not line.waiting]
        more, code = self._read(most, self.anchoring.map.last.device_ns)
        for line in idle:
            if line.waiting:
                line.waiting_since_ns = now_ns()
        if code and code != hot.INVALID_HANDLE:  # of one event: the device itself may be well
            self.lose(f"reading an event failed with {code}")
        return more

    def _drop_ended(self) -> None:
        """A thread that ended took its default stream along."""
        for line in [line for line in self.lines if line.ended]:
            if not (line.unread or line.waiting or line.open_spans):
                line.flush(self._tracks.write)
                self.lines.remove(line)
                hot.drop_queue(line.queue)
                for track in line.tracks:
                    self._tracks.close(track)

    def _mind_jump(self) -> None:
        """The device's clock was set: what was read by the old time and lies ahead of the map is taken back to its end,
        where the map says how little is known.
        """
        jumped_ns, self.anchoring.jumped_ns = self.anchoring.jumped_ns, 0
        reach_ns = self.anchoring.map.reach_ns
        if not jumped_ns or reach_ns is None:
            return
        self._around.tell(
            f"the clock of {self.device.name} was set by {jumped_ns / 1e9:+.6f} s meanwhile: windows since the anchor"
            " before may be off by as much, and say so"
        )
        for line in self.lines:
            line.clip(reach_ns - 1)

    def _ask_if_lost(self) -> None:
        """No anchor was ever taken. Raises `DriverError` if that is because the device is gone."""
        for line in self.lines:
            event = line.first_event()
            if event is not None:
                self.device.event_query(event)

    def lose(self, why: str) -> None:
        """The device or its context is gone: nothing more is recorded there, and what was not read never will be."""
        if self.lost is None:
            self.lost = f"the device was lost: {why}"
            for line in self.lines:
                line.queue.refuse(self.lost)
                line.queue.forget()  # another context may come, at the same address, with a stream of the same handle

    def close(self) -> None:
        """Give events and the anchor stream back to the device."""
        for line in self.lines:
            line.queue.refuse("tracing stopped")
        self._release_events()
        self.anchoring.close()
        if self.lost is None:
            self.pool.close()

    def _release_events(self) -> None:
        """Give back the events of windows that are not open."""
        raise NotImplementedError

    @property
    def unreached(self) -> int:
        """Edges recorded and not yet passed by the device."""
        return sum(line.unread for line in self.lines)

    @property
    def open_spans(self) -> int:
        """Windows drawn as begun and not ended."""
        return sum(line.open_spans for line in self.lines)

    @property
    def unread(self) -> int:
        """Edges recorded and not yet drawn."""
        return sum(line.unread + line.waiting for line in self.lines)

    def flush(self, write: Write) -> None:
        """Hand every stream's new edges to the writer."""
        for line in self.lines:
            line.flush(write)

    def _place(self, most: int, last: bool) -> bool:
        clock = self.anchoring.map
        now = now_ns()
        waiting = [line for line in self.lines if line.waiting]
        for line in waiting:
            if last or now - line.waiting_since_ns > PATIENCE_NS:
                latest = line.waiting_range()[1]
                if latest is not None:
                    clock.extend(latest)
        if last and not clock.ready:
            # No anchor was ever taken: there is no honest place for any of them.
            self._give_up(waiting, "no anchor could be taken")
            return False
        self._tell_pieces(waiting)
        if clock.reach_ns is None or not clock.ready or not waiting:
            return False
        before = [line.waiting for line in waiting]
        more = self._place_lines(waiting, most)
        while more and last:  # with the map as it is: another anchor would add nothing
            more = self._place_lines(waiting, most)
        for line, count in zip(waiting, before, strict=True):
            if line.waiting != count:
                line.waiting_since_ns = now
        return more

    def _tell_pieces(self, waiting: list[Any]) -> None:
        """Draw the clock's own counters: how far off slices may be from where a new piece begins, and the skew."""
        pieces = self.anchoring.map.pieces
        total = self.anchoring.map.pieces_made
        new = pieces[len(pieces) - min(total - self._told_pieces, len(pieces)) :]
        if not new:
            return
        tick_ns = self.device.tick_ns
        for piece in new:
            at_ns, error = piece.host0, piece.worst_error_ns
            if not self._told_pieces:
                times = (line.waiting_range()[0] for line in waiting)
                earliest = min((ns for ns in times if ns is not None), default=None)
                if earliest is not None and earliest < piece.device0:
                    before = self.anchoring.map.piece_at(earliest)
                    at_ns = before.host_ns(earliest)
                    error = max(error, before.error_ns(earliest))
            at_ns = self._counter_ns = max(at_ns, self._counter_ns)
            group = self.group_track()
            if self._uncertainty is None or self._skew is None:
                self._uncertainty = self._tracks.counter("clock uncertainty", "ns", group)
                self._skew = self._tracks.counter("clock skew", "ppm", group)
            self._tracks.write(
                self._uncertainty, [(at_ns, COUNTER, int(error) + self._read_error_ns + tick_ns, None, 0, 0)]
            )
            if piece.device1 - piece.device0 >= TELLING_NS:
                self._tracks.write(self._skew, [(at_ns, COUNTER, round((1 / piece.slope - 1) * 1e6, 3), None, 0, 0)])
            self._told_pieces += 1
        self._told_pieces = total

    def group_track(self) -> Track:
        """The device's own row, which holds its streams and counters."""
        if self._group is None:
            self._group = self._tracks.group(self.device)
        return self._group
