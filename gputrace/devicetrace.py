"""One device's windows on their way from the streams to the timeline: pool, anchors, reading, placing.

The program's threads call `DeviceTrace.make` when a pool is empty and `DeviceTrace.queue` when a stream is new;
everything else is the collector's. It knows the device protocol, and neither exporters nor files.
"""

from __future__ import annotations

from _thread import RLock

from gputrace import hot
from gputrace.anchoring import Anchoring
from gputrace.clock import TELLING_NS, half_step_ns
from gputrace.errors import DeviceError
from gputrace.events import EventPool
from gputrace.hostclock import now_ns
from gputrace.hot import Pool, Span, StreamQueue
from gputrace.model import COUNTER, Track
from gputrace.timeline import Counts, StreamTimeline

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Final

    from gputrace.devices.base import Device, Stream
    from gputrace.hot.drain import Passed
    from gputrace.model import Edge
    from gputrace.tracks import Tracks

#: How long a read edge waits for the anchor behind it before it is placed by extending the map.
PATIENCE_NS: Final = 1_000_000_000
#: Spans made at once where the pool is empty: one switch to the context serves them all.
MADE_AT_ONCE: Final = 8

#: Anchors that must have failed, with none taken, before the device itself is asked whether it is there.
FAILED_ANCHORS: Final = 3


class DeviceTrace:
    """One context of one device, being traced.

    ``room()`` says how many more windows the process may have in flight; ``wake()`` makes sure the collector runs;
    ``tell(text)`` says something to the user, once.
    """

    def __init__(
        self,
        device: Device,
        tracks: Tracks,
        counts: Counts,
        room: Callable[[], int],
        wake: Callable[[], None],
        tell: Callable[[str], None],
    ) -> None:
        self.device = device
        self.pool = EventPool(device)
        self.anchoring = Anchoring(device, self.pool)
        self.free = Pool()
        self.spare: list[Span] = []  # pooled spans set aside so that the next one asks `make`
        self.queues: list[StreamQueue] = []
        self.lost: str | None = None
        self._made = 0
        self._lock = RLock()  # a signal's handler or a finaliser may open a window while its thread is in here
        self._tracks = tracks
        self._counts = counts
        self._room = room
        self._wake = wake
        self._tell = tell
        self._open = 0  # windows whose begin was read and whose end was not
        self._streams = 0
        self._told_pieces = 0
        self._read_error_ns = 0
        self._group: Track | None = None
        self._uncertainty: Track | None = None
        self._skew: Track | None = None
        self._counter_ns = 0

    @property
    def in_flight(self) -> int:
        """Windows opened and not yet written."""
        return self._made - len(self.free) - len(self.spare)

    # The program's side.

    def make(self) -> Span | None:
        """A span with two events of this context; None at the bound or where the device refuses. Raises nothing."""
        self._wake()
        try:
            return self.spare.pop()
        except IndexError:
            pass
        with self._lock:
            count = min(MADE_AT_ONCE, self._room())
            if count <= 0 or self.lost is not None:
                return None
            self._made += count
        made: list[Span] = []
        try:
            with self.device.active():
                for _ in range(count):
                    start = self.pool.acquire()
                    try:
                        made.append(Span(self.free, start, self.pool.acquire()))
                    except DeviceError:
                        self.pool.release(start)
                        raise
        except DeviceError:
            pass
        finally:
            with self._lock:
                self._made -= count - len(made)
            self.free.extend(made[1:])
        return made[0] if made else None

    def queue(self, stream: Stream) -> StreamQueue:
        """A queue for one more stream of this context."""
        device = self.device
        queue = StreamQueue(stream.native, stream.handle, device.record_raw, device.capturing_raw, self.free, self.make)
        order = self._streams = self._streams + 1
        queue.timeline = _StreamState(
            StreamTimeline(lambda index: self._tracks.stream(self._group_track(), stream.name, order), self._counts)
        )
        if self.lost is not None:
            queue.refuse(self.lost)
        self.queues.append(queue)
        return queue

    # The collector's side.

    def mark(self) -> None:
        """Note how far each queue has come. Host edges taken after this hold the begin of everything before it."""
        for queue in self.queues:
            queue.timeline.marked = len(queue.entries)

    def collect(self, most: int, hurry: Callable[[], bool], *, last: bool = False) -> bool:
        """Read at most ``most`` edges a stream that the device has reached, up to the mark, and draw what is in reach.

        ``last`` takes an anchor at once and draws everything that was read. True if there is more to do right away.
        Raises nothing.
        """
        if not (self._open or any(q.entries or q.timeline.line.waiting or q.timeline.ended for q in self.queues)):
            return False
        more = False
        try:
            with self.device.active(), self.anchoring.lock:
                if self.lost is None:
                    if last or self.anchoring.due(now_ns()):
                        self.anchoring.refresh(hurry)
                        self._mind_jump()
                    if self.anchoring.event is not None:
                        for queue in self.queues:
                            more |= self._read(queue, most)
                        if last:
                            self.anchoring.refresh(hurry)
                            self._mind_jump()
                    elif self.anchoring.failed >= FAILED_ANCHORS or last:
                        self._ask_if_lost()
        except DeviceError as error:
            self.lose(str(error))
        if self.lost is not None:
            for queue in self.queues:
                self._read_lost(queue)
            last = True
        more |= self._place(most, last)
        self._drop_ended()
        return more

    def _drop_ended(self) -> None:
        """A thread that ended took its default stream along."""
        for queue in [queue for queue in self.queues if queue.timeline.ended]:
            line = queue.timeline.line
            if not (queue.entries or line.waiting or line.open_spans):
                line.flush(self._tracks.write)
                self.queues.remove(queue)
                hot.drop_queue(queue)
                for lane in line.lanes.lanes:
                    self._tracks.close(lane.track)

    def _mind_jump(self) -> None:
        """The device's clock was set: what was read by the old time and lies ahead of the map is taken back to its end,
        where the map says how little is known.
        """
        jumped_ns, self.anchoring.jumped_ns = self.anchoring.jumped_ns, 0
        reach_ns = self.anchoring.map.reach_ns
        if not jumped_ns or reach_ns is None:
            return
        self._tell(
            f"the clock of {self.device.name} was set by {jumped_ns / 1e9:+.6f} s meanwhile: windows since the anchor"
            " before may be off by as much, and say so"
        )
        for queue in self.queues:
            line = queue.timeline.line
            line.waiting = [
                (edge[0] and min(edge[0], reach_ns - 1), edge[1] and min(edge[1], reach_ns - 1), *edge[2:])
                for edge in line.waiting
            ]

    def _ask_if_lost(self) -> None:
        """No anchor was ever taken. Raises `DriverError` if that is because the device is gone."""
        for queue in self.queues:
            for entry in queue.entries[:1]:
                if isinstance(entry, Span):
                    self.device.event_query(entry.start)

    def lose(self, why: str) -> None:
        """The device or its context is gone: nothing more is recorded there, and what was not read never will be."""
        if self.lost is None:
            self.lost = f"the device was lost: {why}"
            for queue in self.queues:
                queue.refuse(self.lost)
                queue.forget()  # another context may come, at the same address, with a stream of the same handle

    def set_pool_aside(self) -> None:
        """Make the next span ask `make`, which wakes the collector."""
        self.spare.extend(self.free)
        del self.free[:]

    def close(self) -> None:
        """Give events and the anchor stream back to the device."""
        for queue in self.queues:
            queue.refuse("tracing stopped")
        for span in (*self.free, *self.spare):
            self.pool.release(span.start)
            self.pool.release(span.end)
        self.free.closed = True
        del self.free[:], self.spare[:]
        self.anchoring.close()
        if self.lost is None:
            self.pool.close()

    @property
    def unreached(self) -> int:
        """Edges recorded and not yet passed by the device."""
        return sum(len(q.entries) for q in self.queues)

    @property
    def open_spans(self) -> int:
        """Windows drawn as begun and not ended."""
        return sum(q.timeline.line.open_spans for q in self.queues)

    @property
    def unread(self) -> int:
        """Edges recorded and not yet drawn."""
        return sum(len(q.entries) + len(q.timeline.line.waiting) for q in self.queues)

    def flush(self, write: Callable[[Track, list[Edge]], None]) -> None:
        """Hand every stream's new edges to the writer."""
        for queue in self.queues:
            queue.timeline.line.flush(write)

    def _read(self, queue: StreamQueue, most: int) -> bool:
        """Read edges from the front of the queue for as long as the device has reached them. A span whose end is read
        goes back to its pool at once: few are in flight then, and those few are in the processor's cache.
        """
        state = queue.timeline
        count = min(state.marked, most)
        if not count:
            return False
        assert self.anchoring.map.last is not None
        base_ns = self.anchoring.map.last.device_ns
        out = hot.drain(queue.entries[:count], self.device.elapsed_raw, self.anchoring.event, base_ns)
        if out.code and out.code != hot.INVALID_HANDLE:  # of one event: the device itself may be well
            self.lose(f"reading an event failed with {out.code}")
        del queue.entries[: out.taken]
        state.marked -= out.taken
        self._open += out.opened
        self._recycle(out.done)
        self._hand_over(state, out.passed, base_ns)
        return out.taken == count and bool(state.marked)

    def _hand_over(self, state: _StreamState, passed: list[Passed], base_ns: int) -> None:
        """Give edges that were read to the timeline, to be drawn when the map reaches them."""
        if not passed:
            return
        for edge in (passed[0], passed[-1]):
            if edge[0] is not None:
                self._read_error_ns = max(self._read_error_ns, 2 * half_step_ns(edge[0] - base_ns))
        if not state.line.waiting:
            state.waiting_since_ns = now_ns()
        state.line.waiting += passed

    def _read_lost(self, queue: StreamQueue) -> None:
        """What a lost device never answered for."""
        state = queue.timeline
        entries = hot.take(queue.entries, state.marked)
        state.marked -= len(entries)
        done: list[Span] = []
        for span in entries:
            is_open = span.gpu_open
            if is_open is not None:
                span.error = span.error or self.lost
                self._open += -1 if is_open else 1
            state.line.waiting.append(hot.untimed(span))
            if is_open:
                done.append(span)
        span = None  # recycling takes back only what nobody holds
        entries.clear()
        self._recycle(done)

    def _place(self, most: int, last: bool) -> bool:
        clock = self.anchoring.map
        now = now_ns()
        waiting = [q.timeline for q in self.queues if q.timeline.line.waiting]
        for state in waiting:
            if last or now - state.waiting_since_ns > PATIENCE_NS:
                latest = state.line.latest_ns
                if latest is not None:
                    clock.extend(latest)
        if last and not clock.ready:
            # No anchor was ever taken: there is no honest place for any of them.
            for state in waiting:
                state.line.give_up("no anchor could be taken")
            return False
        self._tell_pieces(waiting)
        more = False
        for state in waiting:
            before = len(state.line.waiting)
            more |= state.line.place(clock, self._read_error_ns, most)
            if len(state.line.waiting) != before:
                state.waiting_since_ns = now
        return more

    def _recycle(self, done: list[Span]) -> None:
        for span in hot.recycle(done):
            self.drop(span)

    def drop(self, span: Span) -> None:
        """A written span that cannot go back to the pool: its events can."""
        with self._lock:
            self._made -= 1
        self.pool.release(span.start)
        self.pool.release(span.end)

    def _tell_pieces(self, waiting: list[_StreamState]) -> None:
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
                earliest = min((s.line.earliest_ns for s in waiting if s.line.earliest_ns is not None), default=None)
                if earliest is not None and earliest < piece.device0:
                    before = self.anchoring.map.piece_at(earliest)
                    at_ns = before.host_ns(earliest)
                    error = max(error, before.error_ns(earliest))
            at_ns = self._counter_ns = max(at_ns, self._counter_ns)
            group = self._group_track()
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

    def _group_track(self) -> Track:
        if self._group is None:
            self._group = self._tracks.group(self.device)
        return self._group


class _StreamState:
    """What the collector keeps with a stream's queue."""

    __slots__ = ("ended", "line", "marked", "waiting_since_ns")

    def __init__(self, line: StreamTimeline) -> None:
        self.line = line
        self.marked = 0
        self.waiting_since_ns = 0
        self.ended = False  # its thread is gone, and with it whoever could use it
