"""A Perfetto trace's track events, gathered as columns.

Events of ours are decoded side by side (`decode`), once it is seen that all events of their packet sequence in a piece
of the file are such. Any other packet is parsed by the protobuf package, one by one, with all that the format knows.
What is no track event (ftrace, samples) is counted. Times are BOOTTIME's.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

from gputrace.reading.fields import VARINT, Malformed, fields
from gputrace.reading.layout import Events
from gputrace.reading.packets import CHUNK_BYTES, Packets, frame, packets
from gputrace.reading.sequences import BOOTTIME, Clocks, Interned, Sequence, as_text
from gputrace.reading.stream import ByteStream
from gputrace.reading.trackevents import KNOWN
from gputrace.table import events as gathered
from gputrace.table.columns import Clocks as ClockTable
from gputrace.table.columns import as_ints
from gputrace.table.decode import BEGIN, COUNTER, END, INSTANT
from gputrace.table.descriptors import Descriptors
from gputrace.table.events import Gathered
from gputrace.table.plain import PlainEvents
from gputrace.table.singly import Singly

_MOST_INFLATED = 64 << 20
_NEEDS_STATE = 2
_SEQUENCE_FIELD = 10
_HOLD_EVENTS = {8, 11, 50}  # a timestamp, a track event, compressed packets
_MONOTONIC, _REALTIME = 3, 1
_KINDS = {BEGIN: gathered.BEGIN, END: gathered.END, INSTANT: gathered.INSTANT}


_EXPLAINED = {
    "malformed packet": "packets cannot be parsed",
    "no state": "events build on packets that are missing, and are left out",
    "undated": "events have times of a clock that nothing ties to the trace's, and are left out",
    "legacy track event": "track events are of the legacy kind, which is not read",
}


class PerfettoReader:
    """Reads a stream to its end into ``gathered``; ``metadata``, ``clocks`` and ``tracks`` are good then."""

    def __init__(self, stream: ByteStream) -> None:
        self.stream = stream
        self.metadata: dict[str, Any] = {}
        self.descriptors = Descriptors()
        self.tables: list[Interned] = []  # that args' keys are in
        self.gathered = Gathered(stream.path, self._args)
        self._table_numbers: dict[int, int] = {}
        self._sequences: dict[int, Sequence] = {}
        self._clocks = Clocks()
        self._snapshots: list[tuple[int, int, int]] = []
        self._one_by_one: set[int] = set()  # sequences that hold what is not ours
        self._left_out: dict[str, list[int]] = {}  # by what: how many, and where the first was
        self._singly = Singly()

    def read(self) -> None:
        """All of it. Raises `InputError`."""
        for _ in self.pieces():
            pass

    def pieces(self, chunk_bytes: int = CHUNK_BYTES) -> Iterator[None]:
        """All of it, some MB at a time: what there was in one is in ``gathered`` then. Raises `InputError`."""
        for batch in packets(self.stream, chunk_bytes):
            self._read_batch(batch)
            yield
        if self.stream.torn:
            self.gathered.problem("torn", f"{self.stream.torn}: what is before that is read")
        for what, (count, place) in self._left_out.items():
            text = _EXPLAINED.get(what, f"packets of {what}, which are no track events, are left out")
            self.gathered.problem(what, f"{count:,} {text}", place, count)

    def clock_table(self) -> ClockTable:
        """The builtin clocks as they were read together."""
        rows = sorted(set(self._snapshots))
        return ClockTable(*(as_ints([row[k] for row in rows]) for k in range(3)))

    def tracks(self) -> list[Any]:
        return self.descriptors.tracks()

    def _args(self, data: bytes, table: int) -> dict[str, Any]:
        try:
            return self.tables[table].args(pb.TrackEvent.FromString(data).debug_annotations)
        except Exception:  # protobuf's own error
            if not any(problem.kind == "malformed args" for problem in self.gathered.problems):
                self.gathered.problem("malformed args", "args of some of its events cannot be parsed")
            return {}

    def _table_number(self, interned: Interned) -> int:
        number = self._table_numbers.get(id(interned))
        if number is None:
            number = self._table_numbers[id(interned)] = len(self.tables)
            self.tables.append(interned)  # kept, and so is its id
        return number

    def _leave_out(self, what: str, place: int, count: int = 1) -> None:
        entry = self._left_out.setdefault(what, [0, place])
        entry[0] += count

    # A piece of the file.

    def _read_batch(self, batch: Packets) -> None:
        found = Events(batch)
        others = np.flatnonzero(~found.is_event)
        plain = PlainEvents(found)
        self._one_by_one |= plain.otherwise() | self._holding_events(batch, plain.ids, others)
        rest = plain.leave(self._one_by_one)
        for id in plain.ids:
            plain.renew(id, 0, self.sequence(id))
        singly = np.concatenate((others, rest))
        defining, where = plain.definitions(batch)
        order = np.argsort(np.concatenate((singly, defining)), kind="stable")
        for k in order.tolist():
            if k >= len(singly):
                self._define(plain, batch, *where[k - len(singly)])
                continue
            at = int(singly[k])
            body = batch.data[batch.bodies[at] : batch.ends[at]]
            self._packet(body, batch.place + int(batch.starts[at]), plain, at)
        plain.give(self.gathered, self._clocks, self._table_number, self.descriptors.number, self._leave_out)
        self._singly.give(self.gathered)

    def _define(self, plain: PlainEvents, batch: Packets, sequence: int, start: int, end: int) -> None:
        try:
            self.sequence(sequence).interned.take(pb.InternedData.FromString(batch.data[start:end]))
        except Exception:  # protobuf's own error
            self._leave_out("malformed packet", batch.place + start)

    def _holding_events(self, batch: Packets, ours: set[int], others: Any) -> set[int]:
        """Those of ``ours`` in which packets of another kind hold an event, or move a clock, all the same."""
        holding: set[int] = set()
        for k in others.tolist() if ours else ():
            sequence, numbers = 0, set()
            try:
                for number, kind, _, value, _ in fields(batch.data, int(batch.bodies[k]), int(batch.ends[k])):
                    numbers.add(number)
                    if number == _SEQUENCE_FIELD and kind == VARINT:
                        sequence = value
            except Malformed:
                continue
            if sequence in ours and numbers & _HOLD_EVENTS:
                holding.add(sequence)
        return holding

    def sequence(self, id: int) -> Sequence:
        found = self._sequences.get(id)
        if found is None:
            found = self._sequences[id] = Sequence()
        return found

    # One packet.

    def _packet(self, body: bytes, place: int, plain: PlainEvents | None = None, index: int = 0) -> None:
        try:
            packet = pb.TracePacket.FromString(body)
        except Exception:  # protobuf's own error
            self._leave_out("malformed packet", place)
            return
        if packet.compressed_packets and plain is not None:
            self._compressed(packet.compressed_packets, place)
            return
        sequence = self.sequence(packet.trusted_packet_sequence_id)
        sequence.begin(packet)
        if packet.HasField("clock_snapshot"):
            self._clocks.tie(packet.clock_snapshot, sequence)
            self._keep_snapshot(packet.clock_snapshot)
        if plain is not None:
            plain.renew(packet.trusted_packet_sequence_id, index, sequence)
        if packet.HasField("track_descriptor"):
            self.descriptors.take(packet.track_descriptor)
        elif packet.HasField("track_event"):
            self._event(packet, sequence, place)
        elif packet.HasField("chrome_events"):
            for item in packet.chrome_events.metadata:
                self.metadata[as_text(item.name)] = _metadata_value(item)
        else:
            for field, _ in packet.ListFields():
                if field.name not in KNOWN:
                    self._leave_out(field.name, place)

    def _compressed(self, data: bytes, place: int) -> None:
        try:
            inner = zlib.decompressobj().decompress(data, _MOST_INFLATED)
        except zlib.error:
            self._leave_out("malformed packet", place)
            return
        for start, end in frame(inner)[0].spans():
            self._packet(inner[start:end], place)

    def _keep_snapshot(self, snapshot: Any) -> None:
        read = {clock.clock_id: clock.timestamp for clock in snapshot.clocks}
        if all(id in read for id in (BOOTTIME, _MONOTONIC, _REALTIME)):
            self._snapshots.append((read[BOOTTIME], read[_MONOTONIC], read[_REALTIME]))

    def _event(self, packet: Any, sequence: Sequence, place: int) -> None:
        ns = self._clocks.ns(packet, sequence)
        if packet.sequence_flags & _NEEDS_STATE and not sequence.known:
            self._leave_out("no state", place)
            return
        if ns is None or not -(1 << 62) < ns < 1 << 62:
            self._leave_out("undated", place)
            return
        event = packet.track_event
        uuid = event.track_uuid or sequence.track
        track = self.descriptors.number(uuid)
        if event.type == COUNTER:
            field = next((f for f in ("double_counter_value", "counter_value") if event.HasField(f)), "")
            value = float(getattr(event, field)) if field else 0.0
            counter = self.descriptors.counter(uuid)
            if counter is not None:
                value *= counter.unit_multiplier or 1
                if counter.is_incremental:
                    value = self.descriptors.sums[uuid] = self.descriptors.sums.get(uuid, 0.0) + value
            self._singly.samples.append((ns, track, value))
            return
        kind = _KINDS.get(event.type)
        if kind is None:
            self._leave_out("legacy track event", place)
            return
        names, strings = sequence.interned, self.gathered.strings
        name = as_text(event.name) or names.names.get(event.name_iid, "")
        categories = [*map(as_text, event.categories), *(names.categories.get(id, "") for id in event.category_iids)]
        self._singly.rows.append((ns, kind, track, strings[name], strings[",".join(categories)]))
        row = len(self._singly.rows) - 1
        if event.debug_annotations:
            data = pb.TrackEvent(debug_annotations=event.debug_annotations).SerializeToString()
            self._singly.args.append((row, data, self._table_number(names)))
        for ids, way in ((event.flow_ids, gathered.STEP), (event.terminating_flow_ids, gathered.LAST)):
            self._singly.arrows += [(row, id - (1 << 64) if id >> 63 else id, way) for id in ids]


def _metadata_value(item: Any) -> Any:
    found = [(field.name, value) for field, value in item.ListFields() if field.name.endswith("_value")]
    if not found:
        return None
    name, value = found[0]
    if name == "json_value":
        try:
            return json.loads(value)
        except ValueError:
            return as_text(value)
    return as_text(value) if isinstance(value, (str, bytes)) else value
