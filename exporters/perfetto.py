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

from . import wire
from .sequence import (
    BOOTTIME,
    CLOCK_ID,
    CLOCK_TIMESTAMP,
    PACKET_CLOCK_SNAPSHOT,
    PACKET_SEQUENCE_ID,
    SNAPSHOT_CLOCKS,
    TRACE_PACKET,
    Sequence,
)
from .values import fits_int64

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import IO

    from gputrace.model import ClockSnapshot, Edge, Process, Recording, Track

# Field numbers of perfetto/trace/trace_packet.proto and what it holds.
PACKET_CHROME_EVENTS = 5
PACKET_TRACK_DESCRIPTOR = 60
PACKET_TRACE_UUID = 89
SNAPSHOT_PRIMARY_CLOCK = 2
UUID_MSB = 1
UUID_LSB = 2
EVENTS_METADATA = 2
METADATA_NAME = 1
METADATA_STRING = 2
METADATA_BOOL = 3
METADATA_INT = 4
METADATA_JSON = 5
TRACK_UUID = 1
TRACK_NAME = 2
TRACK_PROCESS = 3
TRACK_THREAD = 4
TRACK_PARENT_UUID = 5
TRACK_COUNTER = 8
TRACK_CHILD_ORDERING = 11
TRACK_ORDER_RANK = 12
TRACK_DESCRIPTION = 14
TRACK_MERGE_BEHAVIOR = 15
TRACK_MERGE_KEY = 16
CHILD_ORDERING_EXPLICIT = 3
MERGE_NONE = 2
MERGE_BY_KEY = 3
PROCESS_PID = 1
PROCESS_CMDLINE = 2
PROCESS_NAME = 6
PROCESS_START_NS = 7
THREAD_PID = 1
THREAD_TID = 2
THREAD_NAME = 5
COUNTER_UNIT = 3
COUNTER_UNIT_NAME = 6
UNIT_TIME_NS = 1
UNIT_SIZE_BYTES = 3

MONOTONIC, REALTIME = 3, 1  # perfetto/common/builtin_clock.proto

_UNITS = {
    "": b"",
    "ns": wire.integer(COUNTER_UNIT, UNIT_TIME_NS),
    "bytes": wire.integer(COUNTER_UNIT, UNIT_SIZE_BYTES),
    "percent": wire.string(COUNTER_UNIT_NAME, "%"),
}

# A packet sequence is a process's number and, below it, twelve bits: 1 to 4094 are tracks, 4095 is the process itself.
# No process ever uses 0 there, so the recording's own packets can: sequence 1 << 12.
_TRACKS_A_NUMBER = 4094
_PROCESS_SLOT = 4095
_RECORDING_SEQUENCE = 1 << 12

_MASK64 = (1 << 64) - 1


class Perfetto(Exporter):
    """Writes one process's shard. See ``gputrace.model.Exporter`` for the contract.

    Raises whatever ``file`` raises, and OSError from ``process.claim_number`` when a process opens more than 4,094
    tracks and the recording's folder is gone.
    """

    @classmethod
    def header(cls, recording: Recording, snapshots: Iterable[ClockSnapshot], metadata: Mapping[str, object]) -> bytes:
        """The recording's id, clocks and metadata, which the engine shows in its table ``metadata`` as ``cr-NAME``.

        Snapshots go first and in order of BOOTTIME, the trace's clock, which each lists first: the engine takes them
        as steps, and one that repeats or goes back costs slices.
        """
        id = int(recording.id, 16)
        out = [_packet(_RECORDING_SEQUENCE, PACKET_CLOCK_SNAPSHOT, body) for body in _snapshots(snapshots)]
        uuid = wire.integer(UUID_MSB, id >> 64 & _MASK64) + wire.integer(UUID_LSB, id & _MASK64)
        out.append(_packet(_RECORDING_SEQUENCE, PACKET_TRACE_UUID, uuid))
        out.append(_metadata(_RECORDING_SEQUENCE, metadata))
        return b"".join(out)

    @classmethod
    def whole(cls, shard: IO[bytes]) -> int:
        return wire.whole_messages(shard, TRACE_PACKET)

    def __init__(self, file: IO[bytes], recording: Recording, process: Process) -> None:
        self._file = file
        self._process = process
        self._offset_ns = recording.boottime_offset_ns
        # Sums of (seed, number, counter) cannot meet within a recording: a number has 20 bits, a counter fewer than 44.
        id = int(recording.id, 16)
        # Never 0 in sum, which is the engine's word for no track.
        self._seed = (id ^ id >> 64) & _MASK64 >> 2 | 1
        self._flow_base = self._seed + (process.number << 44)
        self._numbers = {0: process.number}  # by track id // 4094
        self._sequences: dict[int, Sequence] = {}  # by track id
        self._own_sequence = process.number << 12 | _PROCESS_SLOT
        self._describe_process()

    def open_track(self, track: Track) -> None:
        block, slot = divmod(track.id - 1, _TRACKS_A_NUMBER)
        number = self._numbers.get(block)
        if number is None:
            number = self._numbers[block] = self._process.claim_number()
        uuid = self._uuid(track.id)
        sequence = number << 12 | slot + 1
        self._file.write(
            _packet(sequence, PACKET_TRACK_DESCRIPTOR, wire.integer(TRACK_UUID, uuid) + self._place(track))
        )
        self._sequences[track.id] = Sequence(sequence, uuid, self._flow_base, self._offset_ns)

    def close_track(self, track: Track) -> None:
        self._sequences.pop(track.id, None)

    def write(self, track: Track, edges: Iterable[Edge]) -> None:
        self._file.write(self._sequences[track.id].encode(edges))

    def metadata(self, values: Mapping[str, object]) -> None:
        """The engine shows them as ``cr-K-process.NUMBER.NAME``, where K counts the calls of the whole trace."""
        prefix = f"process.{self._process.number}."
        self._file.write(_metadata(self._own_sequence, {prefix + name: value for name, value in values.items()}))

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        if not self._file.closed:
            self._file.close()

    def _uuid(self, track_id: int) -> int:
        """A track's identity, and the process's own for 0: no two of a recording are the same, and hardly of any."""
        return _mix(self._seed + (self._process.number << 44) + track_id)

    def _describe_process(self) -> None:
        process = self._process
        body = wire.integer(PROCESS_PID, process.pid)
        body += b"".join(wire.string(PROCESS_CMDLINE, word) for word in process.command_line)
        body += wire.string(PROCESS_NAME, process.name)
        body += wire.integer(PROCESS_START_NS, process.start_ns + self._offset_ns)
        descriptor = wire.integer(TRACK_UUID, self._uuid(0)) + wire.message(TRACK_PROCESS, body)
        descriptor += wire.integer(TRACK_CHILD_ORDERING, CHILD_ORDERING_EXPLICIT)
        self._file.write(_packet(self._own_sequence, PACKET_TRACK_DESCRIPTOR, descriptor))
        # The engine keeps no command line from a descriptor.
        self.metadata({"pid": process.pid, "name": process.name, "command_line": process.command_line})

    def _place(self, track: Track) -> bytes:
        """The descriptor of a track but for its uuid: what it is and where it hangs."""
        if track.kind == THREAD:
            # A thread has no parent and no name here: its pid and tid place it, and the engine knows it by them.
            thread = wire.integer(THREAD_PID, self._process.pid) + wire.integer(THREAD_TID, track.tid)
            thread += wire.string(THREAD_NAME, track.name)
            return wire.message(TRACK_THREAD, thread) + _description(track)
        parent = track.parent.id if track.parent is not None else 0
        place = wire.integer(TRACK_PARENT_UUID, self._uuid(parent)) + wire.string(TRACK_NAME, track.name)
        place += wire.integer(TRACK_ORDER_RANK, track.order)
        if track.kind == GROUP:
            place += wire.integer(TRACK_CHILD_ORDERING, CHILD_ORDERING_EXPLICIT)
        elif track.kind == COUNTER_TRACK:
            unit = _UNITS.get(track.unit)
            place += wire.message(TRACK_COUNTER, wire.string(COUNTER_UNIT_NAME, track.unit) if unit is None else unit)
        # Left to itself the engine draws siblings of one name as one.
        if track.kind in (LANE, STREAM) and track.merge_key:
            place += wire.integer(TRACK_MERGE_BEHAVIOR, MERGE_BY_KEY) + wire.string(TRACK_MERGE_KEY, track.merge_key)
        else:
            place += wire.integer(TRACK_MERGE_BEHAVIOR, MERGE_NONE)
        return place + _description(track)


def _packet(sequence: int, number: int, body: bytes) -> bytes:
    return wire.message(TRACE_PACKET, wire.integer(PACKET_SEQUENCE_ID, sequence) + wire.message(number, body))


def _description(track: Track) -> bytes:
    if not track.labels:
        return b""
    return wire.string(TRACK_DESCRIPTION, "\n".join(f"{name}: {value}" for name, value in track.labels.items()))


def _snapshots(snapshots: Iterable[ClockSnapshot]) -> Iterable[bytes]:
    last_ns = -1
    for snapshot in sorted(snapshots, key=lambda s: s.boottime_ns):
        if snapshot.boottime_ns <= last_ns:
            continue
        last_ns = snapshot.boottime_ns
        clocks = (BOOTTIME, last_ns), (MONOTONIC, snapshot.monotonic_ns), (REALTIME, snapshot.realtime_ns)
        yield b"".join(
            wire.message(SNAPSHOT_CLOCKS, wire.integer(CLOCK_ID, clock) + wire.integer(CLOCK_TIMESTAMP, ns))
            for clock, ns in clocks
        ) + wire.integer(SNAPSHOT_PRIMARY_CLOCK, BOOTTIME)


def _metadata(sequence: int, values: Mapping[str, object]) -> bytes:
    """Chrome's metadata, because that is what the engine takes any name of."""
    items = b"".join(
        wire.message(EVENTS_METADATA, wire.string(METADATA_NAME, name) + _metadata_value(value))
        for name, value in values.items()
    )
    return _packet(sequence, PACKET_CHROME_EVENTS, items) if items else b""


def _metadata_value(value: object) -> bytes:
    if isinstance(value, bool):
        return wire.integer(METADATA_BOOL, value)
    if isinstance(value, int) and fits_int64(value):
        return wire.integer(METADATA_INT, value)
    if isinstance(value, (list, tuple)):
        from json import dumps  # a list in metadata is rare, and json costs a start of its own

        return wire.string(METADATA_JSON, dumps([str(item) for item in value], ensure_ascii=False))
    return wire.string(METADATA_STRING, str(value))


def _mix(value: int) -> int:
    """Spread ``value`` over 64 bits, one to one (the finaliser of splitmix64), without importing a hash."""
    value &= _MASK64
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & _MASK64
    value = (value ^ value >> 27) * 0x94D049BB133111EB & _MASK64
    return value ^ value >> 31
