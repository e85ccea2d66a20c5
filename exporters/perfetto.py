"""Perfetto's protobuf format (``.pftrace``): what ui.perfetto.dev reads best, in some 15 bytes an edge.

A track is a packet sequence of its own, so it interns its names and counts its time alone (``sequence``). This file
lays the tracks out and says what a trace says once: processes, threads, devices, clocks, metadata. It is encoded by
hand, because the protobuf package costs a traced program 50 to 100 ms of start and three to five times the time an
edge; tests check every number below against that package's descriptors.

    process "train.py 4242"
    ├── thread "MainThread 4242"        THREAD; LANE tracks are its children, merged into one row by key
    ├── "GPU 0 · NVIDIA H200"           GROUP, ordered by hand, never merged with its like in another process
    │   ├── "stream 7"                  STREAM; lanes share a merge key
    │   └── "allocated"                 COUNTER_TRACK
    └── "loss"                          COUNTER_TRACK without a parent
"""

from __future__ import annotations

from gputrace.model import COUNTER_TRACK, GROUP, LANE, STREAM, THREAD, Exporter

from . import jsontext, wire
from .output import Output
from .schema import (
    BuiltinClock,
    ChromeEventBundle,
    ChromeMetadata,
    Clock,
    CounterDescriptor,
    ProcessDescriptor,
    ThreadDescriptor,
    Trace,
    TracePacket,
    TraceUuid,
    TrackDescriptor,
)
from .schema import ClockSnapshot as Snapshot
from .sequence import ResumedSequence, Sequence
from .values import clean, fits_int64

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from typing import IO

    from gputrace.model import ClockSnapshot, Edge, Process, Recording, Track

_UNITS = {
    "": b"",
    "ns": wire.integer(CounterDescriptor.unit, CounterDescriptor.UNIT_TIME_NS),
    "bytes": wire.integer(CounterDescriptor.unit, CounterDescriptor.UNIT_SIZE_BYTES),
    "percent": wire.string(CounterDescriptor.unit_name, "%"),
}

# A packet sequence is a process's number and, below it, twelve bits: 1 to 4094 are tracks, 4095 is the process itself.
# No process ever uses 0 there, so the recording's own packets can: sequence 1 << 12.
_TRACKS_A_NUMBER = 4094
_PROCESS_SLOT = 4095
_RECORDING_SEQUENCE = 1 << 12

_MASK64 = (1 << 64) - 1
#: The largest prime of 64 bits: names that differ hardly ever leave the same rest.
_PRIME64 = (1 << 64) - 59


class Perfetto(Exporter):
    """Writes one process's shard. See ``gputrace.model.Exporter`` for the contract.

    Raises whatever ``file`` raises, and OSError from ``process.claim_number`` when a process opens more than 4,094
    tracks and the recording's folder is gone.
    """

    @classmethod
    def header(cls, recording: Recording, snapshots: Iterable[ClockSnapshot], metadata: Mapping[str, object]) -> bytes:
        """The recording's id, clocks and metadata, which the engine shows in its table ``metadata`` as ``cr-NAME``.

        Snapshots go first and in order of BOOTTIME, the trace's clock, which each lists first: the engine takes
        them as steps, and one that repeats or goes back costs slices.
        """
        id = int(recording.id, 16)
        out = [_packet(_RECORDING_SEQUENCE, TracePacket.clock_snapshot, body) for body in _snapshots(snapshots)]
        uuid = wire.integer(TraceUuid.msb, id >> 64 & _MASK64) + wire.integer(TraceUuid.lsb, id & _MASK64)
        out.append(_packet(_RECORDING_SEQUENCE, TracePacket.trace_uuid, uuid))
        out.append(_metadata(_RECORDING_SEQUENCE, metadata))
        return b"".join(out)

    @classmethod
    def footer(cls) -> bytes:
        """A last metadata packet, by which a reader sees at once that the file was not cut short."""
        return _metadata(_RECORDING_SEQUENCE, {"gputrace.end": True})

    @classmethod
    def whole(cls, shard: IO[bytes]) -> int:
        return wire.whole_messages(shard, Trace.packet)

    @classmethod
    def resume(cls, file: IO[bytes], recording: Recording, process: Process) -> Perfetto:
        return _Resumed(file, recording, process)

    def __init__(self, file: IO[bytes], recording: Recording, process: Process) -> None:
        self._output = Output(file)
        self._process = process
        self._offset_ns = recording.boottime_offset_ns
        # Flow ids and uuids come of seed + (number << 43) + counter. Within a recording no two sums are the same, as a
        # number has 20 bits at most and a counter fewer than 43; of two recordings the seeds are far apart. No sum
        # overflows or is 0, which to the engine means no track.
        id = int(recording.id, 16)
        self._seed = (_mix(id >> 64) ^ id) & _MASK64 >> 3 | 1
        self._flow_base = self._seed + (process.number << 43)
        self._numbers = {0: process.number}  # by track id // 4094
        self._sequences: dict[int, Sequence] = {}  # by track id
        self._counters: set[str] = set()  # names
        self._own_sequence = process.number << 12 | _PROCESS_SLOT
        self._describe_process()

    def open_track(self, track: Track) -> None:
        sequence, uuid = self._sequence_id(track.id), self._track_uuid(track)
        descriptor = wire.integer(TrackDescriptor.uuid, uuid) + self._place(track)
        if track.labels:
            labels = "\n".join(f"{name}: {value}" for name, value in track.labels.items())
            descriptor += wire.string(TrackDescriptor.description, labels)
        self._output.write(_packet(sequence, TracePacket.track_descriptor, descriptor))
        self._sequences[track.id] = Sequence(sequence, uuid, self._flow_base, self._offset_ns)

    def reopen_track(self, track: Track) -> None:
        sequence = self._sequence_id(track.id)
        self._sequences[track.id] = ResumedSequence(sequence, self._uuid(track.id), self._flow_base, self._offset_ns)

    def close_track(self, track: Track) -> None:
        self._sequences.pop(track.id, None)

    def write(self, track: Track, edges: Iterable[Edge]) -> None:
        self._output.write(self._sequences[track.id].encode(edges))

    def native(self, track: Track) -> object:
        return self._sequences[track.id].constants

    def write_native(self, data: bytes) -> None:
        self._output.write(data)

    def metadata(self, values: Mapping[str, object]) -> None:
        """The engine shows them as ``cr-K-process.NUMBER.NAME``, where K counts the calls of the whole trace."""
        prefix = f"process.{self._process.number}."
        self._output.write(_metadata(self._own_sequence, {prefix + name: value for name, value in values.items()}))

    def flush(self) -> None:
        self._output.flush()

    def close(self) -> None:
        self._output.close()

    def _sequence_id(self, track_id: int) -> int:
        block, slot = divmod(track_id - 1, _TRACKS_A_NUMBER)
        number = self._numbers.get(block)
        if number is None:
            number = self._numbers[block] = self._process.claim_number()
        return number << 12 | slot + 1

    def _uuid(self, track_id: int) -> int:
        """A track's identity, and the process's own for 0: no two of a recording are the same, and hardly of any."""
        return _mix(self._seed + (self._process.number << 43) + track_id)

    def _track_uuid(self, track: Track) -> int:
        """The first counter of a name that hangs on no device is known by that name: so what a killed process left of
        it, whose track nobody remembers, lands in the same row.
        """
        if track.kind != COUNTER_TRACK or track.parent is not None or track.name in self._counters:
            return self._uuid(track.id)
        self._counters.add(track.name)
        name = int.from_bytes(clean(track.name).encode(), "little")
        return _mix(self._uuid(0) ^ _mix(name % _PRIME64))

    def _describe_process(self) -> None:
        process = self._process
        body = wire.integer(ProcessDescriptor.pid, process.pid)
        body += b"".join(wire.string(ProcessDescriptor.cmdline, word) for word in process.command_line)
        body += wire.string(ProcessDescriptor.process_name, process.name)
        body += wire.integer(ProcessDescriptor.start_timestamp_ns, process.start_ns + self._offset_ns)
        body += wire.integer(ProcessDescriptor.legacy_sort_index, process.order)
        descriptor = wire.integer(TrackDescriptor.uuid, self._uuid(0)) + wire.message(TrackDescriptor.process, body)
        descriptor += wire.integer(TrackDescriptor.child_ordering, TrackDescriptor.EXPLICIT)
        self._output.write(_packet(self._own_sequence, TracePacket.track_descriptor, descriptor))
        # The engine keeps no command line from a descriptor.
        self.metadata({"pid": process.pid, "name": process.name, "command_line": process.command_line})

    def _place(self, track: Track) -> bytes:
        """What a track is and where it hangs: its descriptor's fields but for uuid and description."""
        if track.kind == THREAD:
            # No parent and no name: its pid and tid place it, and the engine knows it by them.
            thread = wire.integer(ThreadDescriptor.pid, self._process.pid)
            thread += wire.integer(ThreadDescriptor.tid, track.tid)
            thread += wire.string(ThreadDescriptor.thread_name, track.name)
            return wire.message(TrackDescriptor.thread, thread)
        place = wire.integer(TrackDescriptor.parent_uuid, self._uuid(track.parent.id if track.parent else 0))
        place += wire.string(TrackDescriptor.name, track.name)
        place += wire.integer(TrackDescriptor.sibling_order_rank, track.order)
        if track.kind == GROUP:
            place += wire.integer(TrackDescriptor.child_ordering, TrackDescriptor.EXPLICIT)
        elif track.kind == COUNTER_TRACK:
            unit = _UNITS.get(track.unit)
            if unit is None:
                unit = wire.string(CounterDescriptor.unit_name, track.unit)
            place += wire.message(TrackDescriptor.counter, unit)
        merge = TrackDescriptor.SIBLING_MERGE_BEHAVIOR_NONE  # unsaid, siblings of one name would be drawn as one
        if track.merge_key and track.kind in (LANE, STREAM):
            merge = TrackDescriptor.SIBLING_MERGE_BEHAVIOR_BY_SIBLING_MERGE_KEY
            place += wire.string(TrackDescriptor.sibling_merge_key, track.merge_key)
        return place + wire.integer(TrackDescriptor.sibling_merge_behavior, merge)


class _Resumed(Perfetto):
    """Goes on behind a shard that has described its process."""

    def _describe_process(self) -> None:
        pass


def _packet(sequence: int, number: int, body: bytes) -> bytes:
    id = wire.integer(TracePacket.trusted_packet_sequence_id, sequence)
    return wire.message(Trace.packet, id + wire.message(number, body))


def _snapshots(snapshots: Iterable[ClockSnapshot]) -> Iterator[bytes]:
    last_ns = -1
    for snapshot in sorted(snapshots, key=lambda s: s.boottime_ns):
        if snapshot.boottime_ns > last_ns:
            last_ns = snapshot.boottime_ns
            yield (
                _clock(BuiltinClock.BUILTIN_CLOCK_BOOTTIME, snapshot.boottime_ns)
                + _clock(BuiltinClock.BUILTIN_CLOCK_MONOTONIC, snapshot.monotonic_ns)
                + _clock(BuiltinClock.BUILTIN_CLOCK_REALTIME, snapshot.realtime_ns)
                + wire.integer(Snapshot.primary_trace_clock, BuiltinClock.BUILTIN_CLOCK_BOOTTIME)
            )


def _clock(id: int, time_ns: int) -> bytes:
    return wire.message(Snapshot.clocks, wire.integer(Clock.clock_id, id) + wire.integer(Clock.timestamp, time_ns))


def _metadata(sequence: int, values: Mapping[str, object]) -> bytes:
    """Chrome's metadata, because that is what the engine takes any name of."""
    items = b"".join(
        wire.message(ChromeEventBundle.metadata, wire.string(ChromeMetadata.name, name) + _metadata_value(value))
        for name, value in values.items()
    )
    return _packet(sequence, TracePacket.chrome_events, items) if items else b""


def _metadata_value(value: object) -> bytes:
    if isinstance(value, bool):
        return wire.integer(ChromeMetadata.bool_value, value)
    if isinstance(value, int) and fits_int64(value):
        return wire.integer(ChromeMetadata.int_value, value)
    if isinstance(value, (list, tuple)):
        return wire.string(ChromeMetadata.json_value, jsontext.value(value))
    return wire.string(ChromeMetadata.string_value, str(value))


def _mix(value: int) -> int:
    """Spread ``value`` over 64 bits, one to one (the finaliser of splitmix64), without importing a hash."""
    value &= _MASK64
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & _MASK64
    value = (value ^ value >> 27) * 0x94D049BB133111EB & _MASK64
    return value ^ value >> 31
