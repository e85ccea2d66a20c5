"""What one trace states about itself: whose it is, its clocks, its ids, and whether it is whole.

A trace of ours says it all at its front and its end, and is not read in between. Any other is read through once.
"""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from typing import Any

import numpy as np

from gputrace.errors import InputError
from gputrace.merging.once import HOLDS, PARTS
from gputrace.model import ClockSnapshot
from gputrace.reading import chrome, recognise
from gputrace.reading.fields import BYTES, VARINT, Malformed, fields
from gputrace.reading.layout import Events
from gputrace.reading.packets import frame, packets
from gputrace.reading.stream import ByteStream, Limits
from gputrace.remote import to_open
from gputrace.shards import NUMBER_LIMIT

BOOTTIME, MONOTONIC, REALTIME = "boottime", "monotonic", "realtime"

#: What our recordings' own packets come on (see `exporters/perfetto.py`): they carry no state, so it needs no changing.
OWN_SEQUENCE = 1 << 12
_END = b"gputrace.end"
_HEAD_BYTES = 1 << 20
_DIGEST_BYTES = 1 << 20

# Fields of a packet by their numbers in the package's trace_packet.proto.
CHROME_EVENTS, SNAPSHOT, TIMESTAMP, SEQUENCE, TRACK_EVENT, INTERNED, FLAGS = 5, 6, 8, 10, 11, 12, 13
COMPRESSED, CLOCK_ID, DEFAULTS, DESCRIPTOR, UUID = 50, 58, 59, 60, 89
# What can be moved in time: packets of these fields alone.
_MOVABLE = {CHROME_EVENTS, TRACK_EVENT, *recognise.SAY_NO_EVENT}
BOOTTIME_ID = 6
_CLOCKS = {1: "realtime_ns", 3: "monotonic_ns", 6: "boottime_ns"}


class Survey:
    """One input. ``clock`` is what its times are of ("" if it does not say), ``base_ns`` what is to be added to them.

    ``facts`` are what it states by name: a recording's metadata, or the members beside a Chrome trace's events.
    ``sequences`` are Perfetto's sequence ids in it; ``numbers``, for a whole one of ours, the range of shard numbers
    they are made of, and then they were not looked at. ``pinned`` says why its times cannot be moved; "" if they can.
    ``head_bytes`` is how much of its front is our header. ``digest`` stands for the bytes of what states no recording,
    unzipped. ``gathered``: made of the shards of a recording that may still go on.
    """

    def __init__(self, path: str, kind: str) -> None:
        self.path = path
        self.kind = kind
        self.tool = ""
        self.recording = ""
        self.facts: dict[str, Any] = {}
        self.snapshots: list[ClockSnapshot] = []
        self.clock = ""
        self.base_ns = 0
        self.whole = False
        self.gzipped = False
        self.size = 0
        self.head_bytes = 0
        self.numbers: tuple[int, int] | None = None
        self.sequences: set[int] = set()
        self.pinned = ""
        self.first_ns: int | None = None
        self.digest = ""
        self.gathered = False
        self.notes: list[str] = []

    @property
    def is_merge(self) -> bool:
        """Was it merged of others, and says of which?"""
        return bool(self.recording) and isinstance(self.facts.get(HOLDS), list)

    @property
    def contents(self) -> frozenset[str]:
        """What is in it: a name for each recording, or other tool's trace, that is the same wherever that is found."""
        if self.is_merge:
            return frozenset(map(str, self.facts[HOLDS]))
        return frozenset({self.recording or self.digest})

    @property
    def parts(self) -> frozenset[str]:
        """Those of its contents of which there is more elsewhere."""
        if self.recording and (self.gathered or not self.whole):
            return self.contents
        parts = self.facts.get(PARTS) if self.is_merge else None
        return self.contents & frozenset(map(str, parts if isinstance(parts, list) else ()))

    @property
    def hosts(self) -> int:
        """How many hosts' ids a merged trace holds, told apart as `plan.Host.pid` does; 1 of any other."""
        hosts = self.facts.get("hosts")
        return hosts if self.is_merge and isinstance(hosts, int) and hosts > 0 else 1

    @property
    def name(self) -> str:
        return os.path.basename(self.path)

    @property
    def hostname(self) -> str:
        return str(self.facts.get("hostname") or self.facts.get("host_name") or "")

    def sequence_range(self) -> tuple[int, int]:
        """The ids that ``numbers`` stand for, from and to, the last included."""
        assert self.numbers is not None
        return self.numbers[0] << 12, self.numbers[1] << 12 | 0xFFF


def survey(path: str, limits: Limits | None = None) -> Survey:
    """What a trace says of itself. Raises `InputError` if it is none, or cannot be read."""
    kind = recognise.recognise(path, limits)
    with ByteStream(path, limits) as stream:
        head = stream.read(_HEAD_BYTES)
        found = Survey(path, kind)
        found.gzipped, found.size = stream.gzipped, stream.size
        if kind == recognise.CHROME:
            _survey_chrome(found, limits)
        else:
            _survey_perfetto(found, head, limits)
    if not found.recording:
        found.digest = _digest(path, limits)
    return found


def _digest(path: str, limits: Limits | None) -> str:
    made = hashlib.blake2b(digest_size=16)
    with ByteStream(path, limits) as stream:
        while piece := stream.read(_DIGEST_BYTES):
            made.update(piece)
    return made.hexdigest()


# --- Perfetto ---------------------------------------------------------------------------------------------------------


def _survey_perfetto(found: Survey, head: bytes, limits: Limits | None) -> None:
    found.tool, found.clock = "perfetto", BOOTTIME
    _own_header(found, head)
    numbers = _numbers(found.facts)
    if found.tool == "gputrace" and not found.gzipped and _ends_whole(found.path) and numbers:
        found.whole, found.numbers = True, numbers
        return
    scan_packets(found, limits)


def _numbers(facts: dict[str, Any]) -> tuple[int, int] | None:
    first, last = facts.get("first_number"), facts.get("last_number")
    if isinstance(first, int) and isinstance(last, int) and 0 <= first <= last < NUMBER_LIMIT:
        return first, last
    return None


def scan_packets(found: Survey, limits: Limits | None = None) -> None:
    """Read a trace through for its sequence ids, its clocks, and what else it holds."""
    scan = _Scan(found)
    last = b""
    with ByteStream(found.path, limits) as stream:
        for batch in packets(stream):
            last = batch.data[int(batch.bodies[-1]) : int(batch.ends[-1])]
            events = Events(batch)
            scan.sequences.update(np.unique(events.sequence[events.is_event]).tolist())
            for k in np.flatnonzero(~events.is_event).tolist():
                scan.packet(batch.data, int(batch.bodies[k]), int(batch.ends[k]))
        if stream.torn:
            found.notes.append(f"{stream.torn}: what is before that is merged")
    found.whole = found.tool == "gputrace" and not stream.torn and _is_end(last)
    scan.finish()


def _own_header(found: Survey, head: bytes) -> None:
    """Read the packets that our header consists of: snapshots, the recording's id, its metadata."""
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

    batch, _, _ = frame(head)
    id, snapshots = "", []
    for (start, end), after in zip(batch.spans(), batch.ends.tolist(), strict=True):
        try:
            packet = pb.TracePacket.FromString(head[start:end])
        except Exception:  # not ours then
            return
        if packet.trusted_packet_sequence_id != OWN_SEQUENCE:
            return
        if packet.HasField("clock_snapshot"):
            snapshots.append(_snapshot(packet.clock_snapshot))
        elif packet.HasField("trace_uuid"):
            id = f"{packet.trace_uuid.msb & (1 << 64) - 1:016x}{packet.trace_uuid.lsb & (1 << 64) - 1:016x}"
        elif packet.HasField("chrome_events"):
            facts = {item.name: _metadata_value(item) for item in packet.chrome_events.metadata}
            if id and "gputrace_version" in facts:
                found.tool, found.recording, found.facts = "gputrace", id, facts
                found.snapshots = [s for s in snapshots if s]
                found.head_bytes = after
            return


def _snapshot(message: Any) -> ClockSnapshot | None:
    read = {_CLOCKS[c.clock_id]: c.timestamp for c in message.clocks if c.clock_id in _CLOCKS}
    return ClockSnapshot(**read) if len(read) == len(_CLOCKS) else None


def _metadata_value(item: Any) -> Any:
    kind = item.WhichOneof("value") if "value" in item.DESCRIPTOR.oneofs_by_name else None
    if kind is None:
        kind = next((field.name for field, _ in item.ListFields() if field.name.endswith("_value")), "string_value")
    value = getattr(item, kind)
    if kind == "json_value":
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value


def _ends_whole(path: str) -> bool:
    with open(to_open(path), "rb") as file:
        file.seek(max(file.seek(0, 2) - 64, 0))
        tail = file.read()
    return _is_end(tail)


def _is_end(tail: bytes) -> bool:
    at = tail.rfind(_END)
    # Its name, then its value: true. Nothing follows.
    return at >= 0 and tail[at + len(_END) :] in (b"\x18\x01", b"\x18\x01\x00")


class _Scan:
    """Packets of a trace of whomever, one by one."""

    def __init__(self, found: Survey) -> None:
        from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

        self.found = found
        self.sequences = found.sequences
        self._snapshot_type = pb.ClockSnapshot
        self._defaults_type = pb.TracePacketDefaults
        self._snapshots: list[ClockSnapshot] = []
        self._kinds: set[int] = set()
        self._clocks: set[int] = set()

    def packet(self, data: bytes, start: int, end: int, depth: int = 0) -> None:
        sequence = 0
        numbers = set()
        clock: int | None = None
        try:
            for number, kind, _, value, stop in fields(data, start, end):
                numbers.add(number)
                if number == SEQUENCE and kind == VARINT:
                    sequence = value
                elif number == CLOCK_ID and kind == VARINT:
                    clock = value
                elif number == SNAPSHOT and kind == BYTES:
                    self._take_snapshot(data[value:stop])
                elif number == DEFAULTS and kind == BYTES:
                    self._take_defaults(data[value:stop])
                elif number == COMPRESSED and kind == BYTES:
                    self._inflate(data[value:stop], depth)
        except Malformed:
            return  # whoever writes it says so
        if sequence and sequence != OWN_SEQUENCE:
            self.sequences.add(sequence)
        self._kinds |= numbers - {COMPRESSED}
        if TIMESTAMP in numbers and clock is not None:
            self._clocks.add(clock)

    def _take_snapshot(self, body: bytes) -> None:
        try:
            taken = _snapshot(self._snapshot_type.FromString(body))
        except Exception:
            return
        if taken:
            self._snapshots.append(taken)

    def _take_defaults(self, body: bytes) -> None:
        try:
            clock = self._defaults_type.FromString(body).timestamp_clock_id
        except Exception:
            return
        if clock:
            self._clocks.add(clock)

    def _inflate(self, body: bytes, depth: int) -> None:
        if depth:
            return  # the format does not nest them
        inner = inflate_packets(body, self.found.path)
        batch, _, _ = frame(inner)
        for start, end in batch.spans():
            self.packet(inner, start, end, depth + 1)

    def finish(self) -> None:
        if not self.found.snapshots:
            self.found.snapshots = self._snapshots
        others = self._kinds - _MOVABLE
        builtin = sorted(clock for clock in self._clocks if clock < 64 and clock != BOOTTIME_ID)
        if others:
            self.found.pinned = "it holds the system's own events (ftrace and the like)"
        elif builtin:
            self.found.pinned = f"it has times of other clocks than BOOTTIME (clock {builtin[0]})"


def inflate_packets(body: bytes, path: str, most_bytes: int = 64 << 20) -> bytes:
    """The packets inside a packet of compressed ones. Raises `InputError` beyond ``most_bytes``; damage gives less."""
    stream = zlib.decompressobj()
    try:
        inner = stream.decompress(body, most_bytes)
    except zlib.error:
        return b""
    if stream.unconsumed_tail:
        raise InputError(path, 0, f"a compressed packet unfolds to more than {most_bytes:,} bytes")
    return inner


# --- Chrome's JSON ----------------------------------------------------------------------------------------------------


def _survey_chrome(found: Survey, limits: Limits | None) -> None:
    with ByteStream(found.path, limits) as stream:
        reader = chrome.ChromeReader(stream)
        ended = False
        for batch in reader.batches():
            for event in batch:
                if event.get("ph") == "M":
                    ended |= _take_metadata(found, event)
                else:
                    ns = chrome.time_ns(event.get("ts"))
                    if ns is not None and (found.first_ns is None or ns < found.first_ns):
                        found.first_ns = ns
        found.facts |= reader.facts
        found.notes += [f"{note}: the rest is merged" for note in reader.notes]
        if reader.skipped:
            found.notes.append(f"{reader.skipped:,} of its events cannot be read and are left out")
    if found.tool == "gputrace":
        found.whole = ended
        if not ended and not reader.notes:
            found.notes.append("it was cut short: what there is of it is merged")
    else:
        _foreign_clock(found)


def _take_metadata(found: Survey, event: chrome.Event) -> bool:
    args = event.get("args")
    name = event.get("name")
    if not isinstance(args, dict) or not isinstance(name, str) or not name.startswith("gputrace."):
        return False
    if name == "gputrace.recording":
        try:
            found.recording = str(args["id"])
            found.base_ns = int(args["base_ns"]) + int(args["boottime_offset_ns"])
            found.snapshots = [ClockSnapshot(**{k: int(v) for k, v in row.items()}) for row in args["clocks"]]
        except (KeyError, TypeError, ValueError, OverflowError):
            return False
        found.tool, found.clock = "gputrace", BOOTTIME
    elif name == "gputrace.metadata" and "gputrace_version" in args:
        found.facts |= args
    return name == "gputrace.end"


def _foreign_clock(found: Survey) -> None:
    """What a trace of another tool states of its clock."""
    base = found.facts.get("baseTimeNanoseconds")
    if isinstance(found.facts.get("viztracer_metadata"), dict):
        found.tool = "viztracer"
        base = found.facts["viztracer_metadata"].get("baseTimeNanoseconds")
    elif "schemaVersion" in found.facts and "traceName" in found.facts:
        found.tool = "torch.profiler"
        # Before torch 2.4 the times themselves counted from 1970, and no base was stated.
        if base is None and found.first_ns is not None and found.first_ns > 1_000_000_000 * 10**9:
            base = 0
    if isinstance(base, (int, str)) and str(base).lstrip("-").isdecimal():
        found.clock, found.base_ns = REALTIME, int(base)
