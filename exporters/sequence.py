"""The hot loop of the Perfetto exporter: edges of one track in, packets of one packet sequence out.

It knows a track by two numbers and nothing of what the track is. Read ``Sequence.encode`` last: all else prepares it.

A packet here is its fields in the order that makes most of it known beforehand. Protobuf lets fields come in any
order, so the timestamp comes last, and of a slice seen before only that is new::

    0a LEN | 50 SEQUENCE  68 02  5a LEN (48 TYPE  50 NAME) | 40 | TIME SINCE THE LAST EDGE
    `--------------------- head, kept by name ------------------´

LEN covers the time, so a head is kept for each width the time may take. Two widths are fast, two bytes (16 us) and
three (2 ms); an edge that comes later than that after its neighbour has time to be built from scratch.
"""

from __future__ import annotations

from struct import Struct

from gputrace.model import BEGIN, COUNTER, END, INSTANT, SLICE, Flow

from . import wire
from .schema import (
    BuiltinClock,
    Clock,
    ClockSnapshot,
    DebugAnnotation,
    EventName,
    InternedData,
    Trace,
    TracePacket,
    TracePacketDefaults,
    TrackEvent,
    TrackEventDefaults,
)
from .values import clean, fits_int64, nearest_double, wide

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from gputrace.model import Args, ArgValue, Edge

INCREMENTAL_CLOCK = 64  # the first of the ids that mean something in their own sequence alone

#: Names a sequence interns before it forgets them all, so that neither we nor a reader keep more.
NAMES_KEPT = 4096

_TYPES = {
    BEGIN: wire.integer(TrackEvent.type, TrackEvent.TYPE_SLICE_BEGIN),
    END: wire.integer(TrackEvent.type, TrackEvent.TYPE_SLICE_END),
    INSTANT: wire.integer(TrackEvent.type, TrackEvent.TYPE_INSTANT),
    COUNTER: wire.integer(TrackEvent.type, TrackEvent.TYPE_COUNTER),
}
_RESTART_FLAGS = TracePacket.SEQ_INCREMENTAL_STATE_CLEARED | TracePacket.SEQ_NEEDS_INCREMENTAL_STATE
_PACKET_TAG = wire.tag(Trace.packet, wire.BYTES)
_EVENT_TAG = wire.tag(TracePacket.track_event, wire.BYTES)
_TIMESTAMP_TAG = wire.tag(TracePacket.timestamp, wire.VARINT)
_NAME_TAG = wire.tag(TrackEvent.name_iid, wire.VARINT)
_FLOW_TAG = wire.tag(TrackEvent.flow_ids, wire.FIXED64)
_ANNOTATION_TAG = wire.tag(TrackEvent.debug_annotations, wire.BYTES)
_DOUBLE_TAG = wire.tag(DebugAnnotation.double_value, wire.FIXED64)
_STRING_TAG = wire.tag(DebugAnnotation.string_value, wire.BYTES)
_INT_TAG = wire.tag(DebugAnnotation.int_value, wire.VARINT)
_NEAR = 1 << 14  # ns: below, a time is written in two bytes
_FAR = 1 << 21  # ns: below, in three
#: A flow's value and the tag of the timestamp behind it, in one call.
_pack_flow = Struct("<QB").pack
_pack_double = Struct("<d").pack

_low: list[bytes] = []  # the seven low bits of a longer number
_pairs: list[bytes] = []  # 14 bits in two bytes, also where one would do


def _fill_tables() -> None:
    """Made when the first edge is: 2 ms and 0.9 MB that a program without a single slice does not pay."""
    _low.extend(bytes((n | 0x80,)) for n in range(0x80))
    ends = [bytes((n,)) for n in range(0x80)]
    _pairs.extend(low + end for end in ends for low in _low)


class Sequence:
    """Writes one track: ``id`` is its packet sequence, ``track_uuid`` the track its events fall on by default.

    ``flow_base`` is added to flow ids: what makes them differ from those of other processes. ``offset_ns`` is BOOTTIME
    minus CLOCK_MONOTONIC.
    """

    __slots__ = (
        "_arg_names",
        "_defaults",
        "_end_far",
        "_end_near",
        "_far",
        "_flow_base",
        "_flow_far",
        "_flow_near",
        "_head_start",
        "_id",
        "_last_ns",
        "_names",
        "_near",
        "_offset_ns",
        "_pack_flow_slice",
        "_pack_slice",
    )

    clock = INCREMENTAL_CLOCK

    def __init__(self, id: int, track_uuid: int, flow_base: int, offset_ns: int) -> None:
        self._id = wire.integer(TracePacket.trusted_packet_sequence_id, id)
        self._head_start = self._id + wire.integer(TracePacket.sequence_flags, TracePacket.SEQ_NEEDS_INCREMENTAL_STATE)
        track = wire.integer(TrackEventDefaults.track_uuid, track_uuid)
        defaults = wire.integer(TracePacketDefaults.timestamp_clock_id, self.clock)
        defaults += wire.message(TracePacketDefaults.track_event_defaults, track)
        self._defaults = wire.message(TracePacket.trace_packet_defaults, defaults)
        self._flow_base = flow_base
        self._offset_ns = offset_ns
        self._last_ns: int | None = None
        self._names: dict[str, int] = {}
        self._arg_names: dict[str, bytes] = {}
        # Heads of begins by name, for a time of two bytes, of three, and the same with a flow. They are made at a
        # name's second use, as many a name has no second.
        self._near: dict[object, bytes] = {}
        self._far: dict[object, bytes] = {}
        self._flow_near: dict[object, bytes] = {}
        self._flow_far: dict[object, bytes] = {}
        self._end_near = self._head(_TYPES[END], 2)
        self._end_far = self._head(_TYPES[END], 3)
        self._pack_slice = Struct(f"<2s{len(self._end_near)}s2s").pack
        self._pack_flow_slice = Struct(f"<QB2s{len(self._end_near)}s2s").pack

    @property
    def constants(self) -> tuple[bytes, bytes, bytes, int, int]:
        """What is the same in all packets of this sequence, for another encoder of it: the field of its id, every later
        packet's first fields, the defaults that its first one sets; what is added to flows, and to times in ns.
        """
        return self._id, self._head_start, self._defaults, self._flow_base, self._offset_ns

    def encode(self, edges: Iterable[Edge]) -> bytes:
        """Packets for ``edges``, which are in order of time; one that is not is moved up to the edge before it.

        Incremental timestamps are unsigned: a step back would be read as one of centuries forward.
        """
        out: list[bytes] = []
        append = out.append
        last = self._last_ns
        if last is None:
            edges = list(edges)
            if not edges:
                return b""
            if not _pairs:
                _fill_tables()
            last = edges[0][0]
            append(self._start(last))
        # Locals are the cheapest names there are; a list's append and one join, the cheapest way to gather bytes.
        low, pairs, pack_flow, flow_base = _low, _pairs, _pack_flow, self._flow_base
        near, far, flow_near, flow_far = self._near, self._far, self._flow_near, self._flow_far
        end_near, end_far, tag = self._end_near, self._end_far, _TIMESTAMP_TAG[0]
        pack_slice, pack_flow_slice = self._pack_slice, self._pack_flow_slice
        for ts, kind, name, args, flow, end_ns in edges:
            delta = ts - last
            if kind == SLICE and not args and 0 <= delta < _NEAR and 0 <= end_ns - ts < _NEAR:
                # What comes most often when much comes: a short slice in one piece, soon after its neighbour. All that
                # is new in it is filled in by one call.
                try:
                    if flow:
                        rest = pack_flow_slice(flow_base + flow, tag, pairs[delta], end_near, pairs[end_ns - ts])
                        append(flow_near[name] + rest)
                    else:
                        append(near[name] + pack_slice(pairs[delta], end_near, pairs[end_ns - ts]))
                    last = end_ns
                    continue
                except KeyError:
                    pass  # the name is new
            if delta < 0:
                ts, delta = last, 0
            last = ts
            if not args and delta < _FAR:
                if kind == SLICE or kind == BEGIN:  # noqa: SIM109 - a tuple would be built every time
                    # `try` costs nothing until a name is met for the first time.
                    try:
                        if delta < _NEAR:
                            if flow:
                                packet = flow_near[name] + pack_flow(flow_base + flow, tag) + pairs[delta]
                            else:
                                packet = near[name] + pairs[delta]
                        elif flow:
                            time = low[delta & 0x7F] + pairs[delta >> 7]
                            packet = flow_far[name] + pack_flow(flow_base + flow, tag) + time
                        else:
                            packet = far[name] + low[delta & 0x7F] + pairs[delta >> 7]
                    except KeyError:
                        packet = self._any(delta, BEGIN, name, args, flow)
                    if kind == BEGIN:
                        append(packet)
                        continue
                elif kind == END and not flow:
                    if delta < _NEAR:
                        append(end_near + pairs[delta])
                    else:
                        append(end_far + low[delta & 0x7F] + pairs[delta >> 7])
                    continue
                else:
                    append(self._any(delta, kind, name, args, flow))
                    continue
            elif kind == SLICE:
                packet = self._any(delta, BEGIN, name, args, flow)
            else:
                append(self._any(delta, kind, name, args, flow))
                continue
            # A slice in one piece: its end follows its begin.
            delta = end_ns - ts
            if 0 <= delta < _NEAR:
                append(packet + end_near + pairs[delta])
            elif 0 <= delta < _FAR:
                append(packet + end_far + low[delta & 0x7F] + pairs[delta >> 7])
            else:
                append(packet + self._any(max(delta, 0), END, None, None, 0))
            last = max(end_ns, ts)
        self._last_ns = last
        return b"".join(out)

    def _start(self, ts_ns: int) -> bytes:
        """The sequence's first packet: what its times count from, and the state that every later packet needs.

        The one link of the incremental clock is to BOOTTIME. The engine keeps it through later restarts.
        """
        incremental = wire.integer(Clock.clock_id, INCREMENTAL_CLOCK)
        incremental += wire.integer(Clock.timestamp, 0) + wire.integer(Clock.is_incremental, 1)
        boottime = wire.integer(Clock.clock_id, BuiltinClock.BUILTIN_CLOCK_BOOTTIME)
        boottime += wire.integer(Clock.timestamp, ts_ns + self._offset_ns)
        link = wire.message(ClockSnapshot.clocks, incremental) + wire.message(ClockSnapshot.clocks, boottime)
        first = wire.integer(TracePacket.first_packet_on_sequence, 1)
        return self._restart(first + wire.message(TracePacket.clock_snapshot, link))

    def _restart(self, more: bytes = b"") -> bytes:
        """A packet after which nothing is interned, here or in a reader."""
        for kept in (self._names, self._arg_names, self._near, self._far, self._flow_near, self._flow_far):
            kept.clear()
        flags = wire.integer(TracePacket.sequence_flags, _RESTART_FLAGS)
        return wire.message(Trace.packet, self._id + flags + self._defaults + more)

    def _any(self, delta: int, kind: int, name: str | int | float | None, args: Args | None, flow: int) -> bytes:
        """The packet of any edge, and what must stand before it; leaves the heads that make its like fast."""
        before = self._restart() if len(self._names) + len(self._arg_names) >= NAMES_KEPT else b""
        interned = b""
        event = _TYPES[kind]
        if kind == COUNTER:
            event += _counter_value(name)
        elif kind != END:
            assert isinstance(name, str)
            iid = self._names.get(name)
            if iid is None:
                iid = self._names[name] = len(self._names) + 1
                interned = _interned(InternedData.event_names, iid, name)
                event += _NAME_TAG + wire.varint(iid)
            else:
                event += _NAME_TAG + wire.varint(iid)
                if kind == BEGIN and not args:
                    self._keep_head(name, event, delta, flow)
        if flow:
            event += _FLOW_TAG + _pack_flow(self._flow_base + flow, 0)[:8]
        if args:
            values, keys = [event], [interned]  # joined once: there may be thousands, and bytes are copied by each +=
            for key, value in args.items():
                if type(value) is Flow:
                    values.append(_FLOW_TAG + _pack_flow(self._flow_base + value, 0)[:8])
                    continue
                field = self._arg_names.get(key)
                if field is None:
                    iid = len(self._arg_names) + 1
                    field = self._arg_names[key] = wire.integer(DebugAnnotation.name_iid, iid)
                    keys.append(_interned(InternedData.debug_annotation_names, iid, key))
                values.append(_ANNOTATION_TAG + wire.sized(field + _annotation(value)))
            event, interned = b"".join(values), b"".join(keys)
        packet = self._head_start + _EVENT_TAG + wire.sized(event) + _TIMESTAMP_TAG + wire.varint(delta)
        if interned:
            packet += wire.message(TracePacket.interned_data, interned)
        return before + _PACKET_TAG + wire.sized(packet)

    def _keep_head(self, name: str, event: bytes, delta: int, flow: int) -> None:
        """Keep the one head that this edge would have used."""
        if flow:
            kept, width = (self._flow_near, 2) if delta < _NEAR else (self._flow_far, 3)
        else:
            kept, width = (self._near, 2) if delta < _NEAR else (self._far, 3)
        kept[name] = self._head(event, width, bool(flow))

    def _head(self, event: bytes, time_width: int, flow: bool = False) -> bytes:
        """A packet up to the bytes that differ from edge to edge: its flow's, if it has one, then its time's."""
        missing = time_width
        if flow:
            event += _FLOW_TAG
            packet = self._head_start + _EVENT_TAG + wire.varint(len(event) + 8) + event
            missing += 8 + len(_TIMESTAMP_TAG)
        else:
            packet = self._head_start + _EVENT_TAG + wire.sized(event) + _TIMESTAMP_TAG
        return _PACKET_TAG + wire.varint(len(packet) + missing) + packet


class ResumedSequence(Sequence):
    """Writes on behind what a killed process wrote of a track, knowing neither its names nor when its last edge was.

    So it starts anew, and its times are BOOTTIME: a second clock snapshot in a sequence would be taken for a step of
    its clock. Seldom used and not for long, it is simple rather than fast.
    """

    __slots__ = ()
    clock = BuiltinClock.BUILTIN_CLOCK_BOOTTIME

    def encode(self, edges: Iterable[Edge]) -> bytes:
        out: list[bytes] = []
        for ts, kind, name, args, flow, end_ns in edges:
            if self._last_ns is None:
                out.append(self._restart())
                self._last_ns = ts
            ts = max(ts, self._last_ns)
            out.append(self._any(ts + self._offset_ns, BEGIN if kind == SLICE else kind, name, args, flow))
            if kind == SLICE:
                ts = max(ts, end_ns)
                out.append(self._any(ts + self._offset_ns, END, None, None, 0))
            self._last_ns = ts
        return b"".join(out)

    def _keep_head(self, name: str, event: bytes, delta: int, flow: int) -> None:
        """No head fits: an absolute time is wider."""


def _interned(number: int, iid: int, name: str) -> bytes:
    return wire.message(number, wire.integer(EventName.iid, iid) + wire.string(EventName.name, name))


def _counter_value(value: str | int | float | None) -> bytes:
    """An int as an int where it fits, anything else as a double."""
    if isinstance(value, int):
        if fits_int64(value):
            return wire.integer(TrackEvent.counter_value, value)
        value = nearest_double(value)
    assert isinstance(value, float)
    return wire.double(TrackEvent.double_counter_value, value)


def _annotation(value: ArgValue) -> bytes:
    """An argument's value in a field that keeps it exact; an int of over 64 bits as text."""
    if isinstance(value, str):
        return _STRING_TAG + wire.sized(clean(value).encode())
    if isinstance(value, bool):
        return wire.integer(DebugAnnotation.bool_value, value)
    if isinstance(value, float):
        return _DOUBLE_TAG + _pack_double(value)
    if fits_int64(value):
        return _INT_TAG + wire.varint(value)
    if 0 <= value < 1 << 64:
        return wire.integer(DebugAnnotation.uint_value, value)
    return wire.string(DebugAnnotation.string_value, wide(value))
