"""One device's windows where the compiled core does the work: what of it is Python's to say.

The core calls back for events and lanes; this gives it the clock map's pieces. `gputrace.puredevice` is its twin.
"""

from __future__ import annotations

from gputrace.devicetrace import DeviceTrace, Line, Surroundings
from gputrace.errors import DeviceError
from gputrace.hot import _hot

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Final

    from gputrace.clock import Piece
    from gputrace.compiledhost import Writing
    from gputrace.devices.base import Device, Stream
    from gputrace.hot._hot import StreamQueue
    from gputrace.model import Track

#: Windows made at once where there is none: one switch to the context serves them all.
MADE_AT_ONCE: Final = 32
#: Edges read in one call beside a slow disk.
AHEAD: Final = 1 << 14
_LEAST: Final = -(1 << 63)


class CompiledLine(Line):
    """A stream's queue, which has all of it."""

    queue: StreamQueue

    def __init__(self, queue: StreamQueue) -> None:
        self.queue = queue

    @property
    def unread(self) -> int:
        return self.queue.unread

    @property
    def waiting(self) -> int:
        return self.queue.waiting

    @property
    def open_spans(self) -> int:
        return self.queue.open_spans

    @property
    def tracks(self) -> list[Track]:
        return self.queue.tracks

    def waiting_range(self) -> tuple[int | None, int | None]:
        return _hot.waiting_range(self.queue)

    def clip(self, most_ns: int) -> None:
        _hot.clip_waiting(self.queue, most_ns)

    def first_event(self) -> Any:
        return _hot.first_event(self.queue)


class CompiledDeviceTrace(DeviceTrace):
    """See `DeviceTrace`."""

    lines: list[CompiledLine]
    reads_on = True

    def __init__(self, device: Device, around: Surroundings, writing: Writing) -> None:
        super().__init__(device, around)
        self._writing = writing
        self._functions = device.functions()
        self._core = _hot.Device(
            self._functions, device.record_raw, device.capturing_raw, device.elapsed_raw, self.make
        )
        self._events: list[Any] = []  # all of the core's

    @property
    def in_flight(self) -> int:
        return self._core.in_flight

    @property
    def open(self) -> int:
        return self._core.open

    def make(self) -> bool:
        """More windows for the core. False if there can be none."""
        self._around.wake()
        with self._lock:
            count = min(MADE_AT_ONCE, self._around.room())
            if count <= 0 or self.lost is not None:
                return False
            made: list[Any] = []
            try:
                with self.device.active():
                    for _ in range(2 * count):
                        made.append(self.pool.acquire())
            except DeviceError:
                pass
            finally:
                if len(made) % 2:
                    self.pool.release(made.pop())
                self._events += made
                self._core.add([self._address(event) for event in made])
        return bool(made)

    def _address(self, event: Any) -> Any:
        return int(event) if self._functions is not None else event

    def mark(self) -> None:
        _hot.mark([line.queue for line in self.lines])

    def read_on(self, hurry: Callable[[], bool]) -> None:
        if self.lost is None and any(line.unread for line in self.lines):
            self.mark()
            while self._look(AHEAD, hurry, False) and not hurry():
                pass

    def _new_line(self, stream: Stream, order: int) -> CompiledLine:
        def open_lane(index: int) -> Any:
            return self._writing.describe(self._tracks.stream(self.group_track(), stream.name, order))

        return CompiledLine(self._core.queue(stream.native, stream.handle, stream.handle, open_lane))

    def _read(self, most: int, base_ns: int) -> tuple[bool, int | str]:
        queues = [line.queue for line in self.lines]
        anchor = self._address(self.anchoring.event)
        code, more, error_ns = _hot.read(queues, anchor, base_ns, self._writing.batch(most))
        self._read_error_ns = max(self._read_error_ns, error_ns)
        return more, code

    def _read_lost(self, why: str) -> None:
        _hot.read_lost([line.queue for line in self.lines], why)

    def _place_lines(self, lines: list[CompiledLine], most: int) -> bool:
        clock = self.anchoring.map
        assert clock.reach_ns is not None
        earliest = min((ns for line in lines if (ns := line.waiting_range()[0]) is not None), default=clock.reach_ns)
        pieces = b"".join(map(self._stretch, clock.pieces_from(min(earliest, clock.reach_ns))))
        queues = [line.queue for line in lines]
        more = _hot.place(
            self._writing.generation,
            queues,
            pieces,
            clock.reach_ns,
            self._read_error_ns,
            self.device.tick_ns,
            self._writing.batch(most),
        )
        self._writing.pass_on()
        return more

    def _give_up(self, lines: list[CompiledLine], why: str) -> None:
        _hot.give_up(self._writing.generation, [line.queue for line in lines], why)
        self._writing.pass_on()

    def _release_events(self) -> None:
        if not self._core.in_flight:  # else some are in windows still open, and which nobody can say
            for event in self._events:
                self.pool.release(event)
            self._events.clear()

    def _stretch(self, piece: Piece) -> bytes:
        before_all = piece.extended and piece.device1 == piece.device0
        return self._writing.pack(
            _LEAST if before_all else piece.device0,
            piece.device0,
            piece.host0,
            piece.device1,
            piece.slope,
            piece.worst_error_ns,
            piece.error0,
            piece.bend,
            piece.extended,
        )
