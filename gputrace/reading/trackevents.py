"""A Perfetto trace's track events as Chrome events: slices, instants, counters and arrows, by the packet.

It follows interned names, defaults and clocks as the format asks, and counts what is no track event (ftrace, samples)
and so cannot be said this way. Events come in the order of the file; viewers sort them.

A process is a process. A track that is no thread's becomes a thread with a made-up id, and one that holds tracks of its
own (a GPU) a process, as Chrome's format knows no others. https://perfetto.dev/docs/reference/synthetic-track-event
"""

from __future__ import annotations

import zlib
from collections.abc import Container, Iterator
from typing import Any

import numpy as np
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

from gputrace.reading.layout import Events
from gputrace.reading.packets import Packets, frame, packets
from gputrace.reading.sequences import Clocks, Sequence, as_text
from gputrace.reading.stream import ByteStream

Event = dict[str, Any]

MADE_UP = 1 << 31
_BEGIN, _END, _INSTANT, _COUNTER = 1, 2, 3, 4
_MOST_INFLATED = 64 << 20
_FLOWS_KEPT = 1 << 20
#: Fields of a packet that say how it was carried, or are read here.
KNOWN = frozenset(
    (
        *("timestamp", "timestamp_clock_id", "track_event", "track_descriptor", "clock_snapshot", "interned_data"),
        *("sequence_flags", "trace_packet_defaults", "trusted_packet_sequence_id", "trusted_uid", "trusted_pid"),
        *("first_packet_on_sequence", "trace_uuid", "chrome_events", "previous_packet_dropped", "machine_id"),
        *("incremental_state_cleared", "compressed_packets", "process_descriptor", "thread_descriptor"),
        *("trace_config", "trace_stats", "service_event", "synchronization_marker", "system_info"),
    )
)


class _Track:
    def __init__(self, descriptor: Any) -> None:
        self.descriptor = descriptor
        self.place: tuple[int, int] | None = None
        self.count = 0  # of its counter


class TrackEvents:
    """The events of a stream. Times are BOOTTIME in ns, under "ts_ns" in place of "ts"; counts are good at the end.

    ``left_out`` counts packets by the field that made them unreadable here; ``undated`` are events of a clock that
    nothing ties to BOOTTIME. With ``sequences``, our own events of other packet sequences are passed over.
    """

    def __init__(self, stream: ByteStream, sequences: Container[int] | None = None) -> None:
        self.stream = stream
        self._only = sequences
        self.left_out: dict[str, int] = {}
        self.undated = 0
        self.metadata: dict[str, Any] = {}
        self._sequences: dict[int, Sequence] = {}
        self._tracks: dict[int, _Track] = {}
        self._groups: dict[int, int] = {}
        self._clocks = Clocks()
        self._made_up = 0
        self._flows: dict[int, int] = {}  # by id: when it began

    def batches(self) -> Iterator[list[Event]]:
        """Lists of events in the order of the file."""
        for batch in packets(self.stream):
            found: list[Event] = []
            data = batch.data
            for start, end in batch.spans() if self._only is None else self._chosen(batch, self._only):
                self._read(data[start:end], found)
                if len(found) >= 4096:
                    yield found
                    found = []
            if found:
                yield found

    def _chosen(self, batch: Packets, only: Container[int]) -> Iterator[tuple[int, int]]:
        events = Events(batch)
        wanted = [id for id in np.unique(events.sequence).tolist() if id in only]
        for k in np.flatnonzero(~events.is_event | np.isin(events.sequence, wanted)).tolist():
            yield int(batch.bodies[k]), int(batch.ends[k])

    def _read(self, body: bytes, out: list[Event], depth: int = 0) -> None:
        try:
            packet = pb.TracePacket.FromString(body)
        except Exception:
            self.left_out["malformed"] = self.left_out.get("malformed", 0) + 1
            return
        if packet.compressed_packets and not depth:
            inner = zlib.decompressobj().decompress(packet.compressed_packets, _MOST_INFLATED)
            for start, end in frame(inner)[0].spans():
                self._read(inner[start:end], out, depth + 1)
            return
        sequence = self._sequences.setdefault(packet.trusted_packet_sequence_id, Sequence())
        sequence.begin(packet)
        if packet.HasField("clock_snapshot"):
            self._clocks.tie(packet.clock_snapshot, sequence)
        if packet.HasField("track_descriptor"):
            self._describe(packet.track_descriptor, out)
        elif packet.HasField("track_event"):
            self._event(packet, sequence, out)
        elif packet.HasField("chrome_events"):
            for item in packet.chrome_events.metadata:
                fields = [value for field, value in item.ListFields() if field.name.endswith("_value")]
                self.metadata[as_text(item.name)] = fields[0] if fields else None
        else:
            for field, _ in packet.ListFields():
                if field.name not in KNOWN:
                    self.left_out[field.name] = self.left_out.get(field.name, 0) + 1

    # Tracks.

    def _describe(self, descriptor: Any, out: list[Event]) -> None:
        known = self._tracks.get(descriptor.uuid)
        if known is None:
            self._tracks[descriptor.uuid] = _Track(descriptor)
        else:
            known.descriptor.MergeFrom(descriptor)
        self._place(descriptor.uuid, out)

    def _place(self, uuid: int, out: list[Event], depth: int = 0) -> tuple[int, int]:
        """(pid, tid) that a track's events go to, announced on the way; tid 0 is a process's own."""
        track = self._tracks.get(uuid)
        if track is None:
            track = self._tracks[uuid] = _Track(pb.TrackDescriptor(uuid=uuid))
        if track.place is not None:
            return track.place
        descriptor = track.descriptor
        name = as_text(descriptor.name or descriptor.static_name or descriptor.atrace_name)
        if descriptor.HasField("thread"):
            pid, tid = descriptor.thread.pid, descriptor.thread.tid
            track.place = pid, tid
            self._say(out, "thread_name", pid, tid, name=as_text(descriptor.thread.thread_name) or name)
        elif descriptor.HasField("process"):
            process = descriptor.process
            track.place = process.pid, 0
            self._say(out, "process_name", process.pid, 0, name=as_text(process.process_name) or name)
            self._say(out, "process_sort_index", process.pid, 0, sort_index=process.legacy_sort_index)
            if process.cmdline:
                self._say(
                    out, "gputrace.process", process.pid, 0, command_line=[as_text(word) for word in process.cmdline]
                )
        else:
            parent = (0, 0)
            if descriptor.parent_uuid and depth < 64:
                parent = self._place(descriptor.parent_uuid, out, depth + 1)
            self._made_up += 1
            if descriptor.child_ordering and not descriptor.HasField("counter"):
                track.place = MADE_UP + self._made_up, 0
                owner = f" ({parent[0]})" if parent[0] else ""
                self._say(out, "process_name", track.place[0], 0, name=f"{name}{owner}")
                if descriptor.description:
                    labels = ", ".join(as_text(descriptor.description).splitlines())
                    self._say(out, "process_labels", track.place[0], 0, labels=labels)
            elif descriptor.HasField("counter"):
                track.place = parent[0], 0
            else:
                track.place = parent[0], MADE_UP + self._made_up
                self._say(out, "thread_name", *track.place, name=name)
                self._say(out, "thread_sort_index", *track.place, sort_index=descriptor.sibling_order_rank)
        return track.place

    def _say(self, out: list[Event], what: str, pid: int, tid: int, **args: Any) -> None:
        event: Event = {"ph": "M", "pid": pid, "name": what, "args": args}
        if tid:
            event["tid"] = tid
        out.append(event)

    # Events.

    def _event(self, packet: Any, sequence: Sequence, out: list[Event]) -> None:
        ns = self._clocks.ns(packet, sequence)
        if ns is None:
            self.undated += 1
            return
        event = packet.track_event
        uuid = event.track_uuid or sequence.track
        pid, tid = self._place(uuid, out)
        place: Event = {"pid": pid, "tid": tid} if tid else {"pid": pid, "tid": 0}
        if event.type == _COUNTER:
            descriptor = self._tracks[uuid].descriptor
            fields = [value for field, value in event.ListFields() if field.name.endswith("counter_value")]
            value = fields[0] if fields else 0
            unit = as_text(descriptor.counter.unit_name) or {1: "ns", 2: "count", 3: "bytes"}.get(
                descriptor.counter.unit, "value"
            )
            out.append({"ph": "C", "pid": pid, "name": as_text(descriptor.name), "args": {unit: value}, "ts_ns": ns})
            return
        args = sequence.interned.args(event.debug_annotations)
        made: Event = {**place, "ts_ns": ns}
        if event.type == _END:
            made["ph"] = "E"
        elif event.type in (_BEGIN, _INSTANT):
            made["ph"] = "B" if event.type == _BEGIN else "i"
            made["name"] = as_text(event.name) or sequence.interned.names.get(event.name_iid, "")
            categories = [
                *map(as_text, event.categories),
                *(sequence.interned.categories.get(id, "") for id in event.category_iids),
            ]
            if categories:
                made["cat"] = ",".join(categories)
            if event.type == _INSTANT:
                made["s"] = "t"
        else:
            self.left_out["track_event"] = self.left_out.get("track_event", 0) + 1
            return
        if args:
            made["args"] = args
        flows = [{**place, **self._flow(id, ns)} for id in (*event.flow_ids, *event.terminating_flow_ids)]
        out += [*flows, made] if event.type == _END else [made, *flows]

    def _flow(self, id: int, ns: int) -> Event:
        """An arrow's end. One that led back in time would not be drawn, so it ends no earlier than it begins."""
        flow: Event = {"cat": "flow", "name": "flow", "id": hex(id)}
        began_ns = self._flows.get(id)
        if began_ns is not None:
            return {"ph": "t", "bp": "e", **flow, "ts_ns": max(ns, began_ns)}
        if len(self._flows) >= _FLOWS_KEPT:
            del self._flows[next(iter(self._flows))]
        self._flows[id] = ns
        return {"ph": "s", **flow, "ts_ns": ns}
