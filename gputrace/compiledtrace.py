"""One process's slices where the compiled core does the work: what of it is Python's to say.

The core calls back for tracks and for events; this gives it the clock map's pieces and passes on what it encoded.
`gputrace.hosttrace` and `gputrace.puredevice` are its twin.
"""

from __future__ import annotations

from gputrace.devicetrace import DeviceTrace, Line, Surroundings
from gputrace.errors import DeviceError
from gputrace.hot import _hot, compiled
from gputrace.tracks import Counters

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Final

    from gputrace.clock import Piece
    from gputrace.devices.base import Device, Stream
    from gputrace.hot._hot import StreamQueue
    from gputrace.model import Exporter, Track
    from gputrace.shardfile import ShardFile
    from gputrace.timeline import Counts
    from gputrace.tracks import Tracks

#: Windows made at once where there is none: one switch to the context serves them all.
MADE_AT_ONCE: Final = 32
#: Records drawn in one go where the core encodes them itself and the GIL is free meanwhile.
MANY: Final = 1 << 20
#: `struct stretch` in hot/native/collect.c.
_STRETCH = "<qqqqddddq"
_LEAST = -(1 << 63)
_COUNTS = (
    "slices",
    "windows",
    "clamped",
    "out_of_order",
    "failed",
    "unreadable",
    "clock_violations",
    "worst_error_ns",
)


class Writing:
    """Where the core's output goes: bytes that it encoded, or edges for an exporter in Python.

    ``native`` says which: whether the exporter's format is one that the core knows. ``generation`` is the recording's
    in the core, which refuses what comes of an earlier one: RuntimeError.
    """

    def __init__(self, tracks: Tracks, exporter: Callable[[], Exporter], native: bool) -> None:
        self._tracks = tracks
        self._exporter = exporter
        self.native = native
        self.generation = 0
        # Now that recording starts, not when a first stream is met: by then, a file of the program's may have the name.
        from struct import Struct

        self.pack = Struct(_STRETCH).pack

    def describe(self, track: Track) -> tuple[int, Track, Any]:
        """A track as the core takes it."""
        return track.id, track, self._exporter().native(track) if self.native else []

    def pass_on(self) -> None:
        """Hand over what the core has drawn. Raises what the exporter raises."""
        if self.native:
            data = _hot.take_encoded(self.generation)
            if data:
                self._exporter().write_native(data)
        else:
            for track, edges in _hot.take_edges(self.generation):
                self._tracks.write(track, edges)

    def batch(self, most: int) -> int:
        """How much to draw at once: an exporter in Python holds the GIL."""
        return max(most, MANY) if self.native else most


class CompiledHostTrace:
    """See `gputrace.hosttrace.HostTrace`. ``ring_path`` is where the newest slices are kept in case of a kill, in at
    most ``most_bytes``; ``process_name`` what to call the process if nobody else can say. ``hurry()`` has the collector
    come at once.
    """

    def __init__(
        self,
        tracks: Tracks,
        writing: Writing,
        wake: Callable[[], None],
        hurry: Callable[[], None],
        thread_ended: Callable[[int], None],
        ring_path: str,
        most_bytes: int,
        process_name: str,
    ) -> None:
        self._tracks = tracks
        self._writing = writing
        self._wake = wake
        self._hurry = hurry
        self._thread_ended = thread_ended
        self._ring_path = ring_path
        self._most_bytes = most_bytes
        self._process_name = process_name
        self._counters = Counters(tracks)

    def begin(self, resolve: Callable[[Any], Any]) -> None:
        """Switch the program's spans on. ``resolve(stream)`` finds or makes a stream's queue. Raises RuntimeError while
        an earlier recording's collector is at work in the core.
        """
        compiled.forget_everything()
        self._writing.generation = _hot.begin(
            self._ring_path,
            self._most_bytes,
            self._process_name,
            not self._writing.native,
            resolve,
            self._wake_up,
            self._open_thread,
            self._close_thread,
            compiled.current_stream().get,
        )

    def _wake_up(self, filling: bool) -> None:
        self._wake()
        if filling:
            self._hurry()

    def _open_thread(self, number: int, tid: int, name: str) -> tuple[Any, Callable[[int], Any]]:
        track = self._tracks.thread(name, tid)
        return self._writing.describe(track), lambda index: self._writing.describe(self._tracks.lane(track, index))

    def _close_thread(self, number: int, tracks: list[Track]) -> None:
        self._writing.pass_on()
        for track in tracks:
            self._tracks.close(track)
        self._thread_ended(number)

    def wake_next(self) -> None:
        """Have the next span wake the collector."""
        _hot.wake_next()

    def set_hurried(self, hurried: bool) -> None:
        """While the collector is to come to an end soon: its calls are short then."""
        _hot.set_hurried(hurried)

    def forget(self) -> None:
        """In a forked child: `gputrace.hot.forget_everything` has done it."""

    def collect(self, most: int, hurry: Callable[[], bool], pause: Callable[[], None]) -> bool:
        """Draw what was handed over so far. False if ``hurry()`` broke it off."""
        more = anew = True
        while more:
            more, samples = _hot.collect_host(self._writing.generation, self._writing.batch(most), anew)
            anew = False
            self._writing.pass_on()
            if samples:
                self._counters.write(samples)
            if more:
                if hurry():
                    return False
                if not self._writing.native:  # else others had the GIL all the while
                    pause()
        return True

    @property
    def progress(self) -> int:
        """A number that grows while slices are drawn."""
        slices: int = _hot.state()["slices"]
        return slices

    @property
    def open_spans(self) -> int:
        """Slices drawn as begun and not ended."""
        return _hot.open_spans(self._writing.generation)

    def before_flush(self, file: ShardFile) -> None:
        """The shard is about to be written to: what it will hold then need not be kept in the ring."""
        _hot.epoch_pending(self._writing.generation, file.length, self._tracks.highest_id)

    def after_flush(self, file: ShardFile) -> None:
        """The shard was written to, or is kept back for want of a descriptor: then the ring keeps it, too."""
        if not file.kept:
            _hot.epoch_commit(self._writing.generation)

    def finish(self) -> None:
        """All is in the shard."""
        _hot.remove_ring(self._writing.generation)

    def update(self, counts: Counts) -> None:
        """Bring the counts up to date."""
        state = _hot.state()
        for name in _COUNTS:
            setattr(counts, name, state[name])

    @property
    def trouble(self) -> str | None:
        """Why a kill would lose the newest slices; None if it would not."""
        trouble: str | None = _hot.state()["ring_trouble"]
        return trouble


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
