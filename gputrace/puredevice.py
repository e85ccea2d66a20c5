"""One device's windows in pure Python: the pool of spans that own its events, reading them back, placing them.

`gputrace.compileddevice` is its twin.
"""

from __future__ import annotations

from gputrace.clock import half_step_ns
from gputrace.devicetrace import DeviceTrace, Line, Surroundings
from gputrace.errors import DeviceError
from gputrace.hot.drain import drain, untimed
from gputrace.hot.pure import Pool, Span, StreamQueue, recycle, take
from gputrace.timeline import StreamTimeline

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Final

    from gputrace.devices.base import Device, Stream
    from gputrace.model import Edge, Track

#: Spans made at once where the pool is empty: one switch to the context serves them all.
MADE_AT_ONCE: Final = 8


class PureLine(Line):
    """A stream's queue and its timeline."""

    def __init__(self, queue: StreamQueue, timeline: StreamTimeline) -> None:
        self.queue = queue
        self.timeline = timeline
        self.marked = 0

    @property
    def unread(self) -> int:
        return len(self.queue.entries)

    @property
    def waiting(self) -> int:
        return len(self.timeline.waiting)

    @property
    def open_spans(self) -> int:
        return self.timeline.open_spans

    @property
    def tracks(self) -> list[Track]:
        return [lane.track for lane in self.timeline.lanes.lanes]

    def waiting_range(self) -> tuple[int | None, int | None]:
        return self.timeline.earliest_ns, self.timeline.latest_ns

    def clip(self, most_ns: int) -> None:
        self.timeline.waiting = [
            (edge[0] and min(edge[0], most_ns), edge[1] and min(edge[1], most_ns), *edge[2:])
            for edge in self.timeline.waiting
        ]

    def first_event(self) -> Any:
        entry = self.queue.entries[0] if self.queue.entries else None
        return entry.start if isinstance(entry, Span) else None

    def flush(self, write: Callable[[Track, list[Edge]], None]) -> None:
        self.timeline.flush(write)


class PureDeviceTrace(DeviceTrace):
    """See `DeviceTrace`."""

    lines: list[PureLine]

    def __init__(self, device: Device, around: Surroundings) -> None:
        super().__init__(device, around)
        self.free = Pool()
        self.spare: list[Span] = []  # pooled spans set aside so that the next one asks `make`
        self._made = 0
        self._open = 0

    @property
    def in_flight(self) -> int:
        return self._made - len(self.free) - len(self.spare)

    @property
    def open(self) -> int:
        return self._open

    def make(self) -> Span | None:
        """A span with two events of this context."""
        self._around.wake()
        try:
            return self.spare.pop()
        except IndexError:
            pass
        with self._lock:
            count = min(MADE_AT_ONCE, self._around.room())
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

    def wake_next(self) -> None:
        self.free.pour_into(self.spare)

    def forget(self) -> None:
        self.spare.clear()
        self.free.clear()

    def owns(self, span: Any) -> bool:
        return span.free is self.free

    def drop(self, span: Any) -> None:
        with self._lock:
            self._made -= 1
        self.pool.release(span.start)
        self.pool.release(span.end)

    def mark(self) -> None:
        for line in self.lines:
            line.marked = len(line.queue.entries)

    def _new_line(self, stream: Stream, order: int) -> PureLine:
        device = self.device
        queue = StreamQueue(stream.native, stream.handle, device.record_raw, device.capturing_raw, self.free, self.make)
        timeline = StreamTimeline(
            lambda index: self._tracks.stream(self.group_track(), stream.name, order), self._around.counts
        )
        return PureLine(queue, timeline)

    def _read(self, most: int, base_ns: int) -> tuple[bool, int | str]:
        more, code = False, 0
        for line in self.lines:
            some, result = self._read_line(line, most, base_ns)
            more |= some
            code = result or code
        return more, code

    def _read_line(self, line: PureLine, most: int, base_ns: int) -> tuple[bool, Any]:
        """Read edges from the front of the queue for as long as the device has reached them. A span whose end is read
        goes back to its pool at once: few are in flight then, and those few are in the processor's cache.
        """
        count = min(line.marked, most)
        if not count:
            return False, 0
        queue = line.queue
        out = drain(queue.entries[:count], self.device.elapsed_raw, self.anchoring.event, base_ns)
        del queue.entries[: out.taken]
        line.marked -= out.taken
        self._open += out.opened
        self._recycle(out.done)
        passed = out.passed
        for edge in (passed[0], passed[-1]) if passed else ():
            if edge[0] is not None:
                self._read_error_ns = max(self._read_error_ns, 2 * half_step_ns(edge[0] - base_ns))
        line.timeline.waiting += passed
        return out.taken == count and bool(line.marked), out.code

    def _read_lost(self, why: str) -> None:
        for line in self.lines:
            entries = take(line.queue.entries, line.marked)
            line.marked -= len(entries)
            done: list[Span] = []
            for span in entries:
                is_open = span.gpu_open
                if is_open is not None:
                    span.misread = span.misread or why
                    self._open += -1 if is_open else 1
                line.timeline.waiting.append(untimed(span))
                if is_open:
                    done.append(span)
            span = None  # recycling takes back only what nobody holds
            entries.clear()
            self._recycle(done)

    def _recycle(self, done: list[Span]) -> None:
        for span in recycle(done):
            self.drop(span)

    def _place_lines(self, lines: list[PureLine], most: int) -> bool:
        # Each, whether or not one before has more.
        more = [line.timeline.place(self.anchoring.map, self._read_error_ns, most) for line in lines]
        return any(more)

    def _give_up(self, lines: list[PureLine], why: str) -> None:
        for line in lines:
            line.timeline.give_up(why)

    def _release_events(self) -> None:
        self.free.closed = True
        self.free.pour_into(self.spare)
        while self.spare:
            span = self.spare.pop()
            self.pool.release(span.start)
            self.pool.release(span.end)
