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

from gputrace.model import BEGIN, COUNTER, END, INSTANT

from . import wire
from .values import fits_int64, nearest_double, wide

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from gputrace.model import Args, ArgValue, Edge

# Field numbers of perfetto/trace/trace_packet.proto and what it holds.
TRACE_PACKET = 1  # of Trace
PACKET_TIMESTAMP = 8
PACKET_SEQUENCE_ID = 10
PACKET_TRACK_EVENT = 11
PACKET_INTERNED_DATA = 12
PACKET_SEQUENCE_FLAGS = 13
PACKET_CLOCK_SNAPSHOT = 6
PACKET_DEFAULTS = 59
PACKET_FIRST_ON_SEQUENCE = 87
SEQ_CLEARED_AND_NEEDED = 3  # sequence_flags: forget what was interned before; this packet needs what is from here on
SEQ_NEEDED = 2
DEFAULTS_TRACK_EVENT = 11
DEFAULTS_TIMESTAMP_CLOCK_ID = 58
EVENT_TYPE = 9
EVENT_NAME_IID = 10
EVENT_TRACK_UUID = 11
EVENT_COUNTER_VALUE = 30
EVENT_DOUBLE_COUNTER_VALUE = 44
EVENT_FLOW_IDS = 47
EVENT_DEBUG_ANNOTATIONS = 4
INTERNED_EVENT_NAMES = 2
INTERNED_ANNOTATION_NAMES = 3
INTERNED_IID = 1
INTERNED_NAME = 2
ANNOTATION_NAME_IID = 1
ANNOTATION_BOOL = 2
ANNOTATION_UINT = 3
ANNOTATION_INT = 4
ANNOTATION_DOUBLE = 5
ANNOTATION_STRING = 6
SNAPSHOT_CLOCKS = 1
CLOCK_ID = 1
CLOCK_TIMESTAMP = 2
CLOCK_IS_INCREMENTAL = 3

BOOTTIME = 6  # perfetto/common/builtin_clock.proto
INCREMENTAL_CLOCK = 64  # the first of the ids that mean something in their own sequence alone

#: Names a sequence interns before it forgets them all, so that neither we nor a reader keep more.
NAMES_KEPT = 4096

# perfetto's TYPE_SLICE_BEGIN, _END, TYPE_INSTANT and _COUNTER happen to be the model's numbers.
_TYPES = {kind: wire.integer(EVENT_TYPE, kind) for kind in (BEGIN, END, INSTANT, COUNTER)}
_SEQ_NEEDED = wire.integer(PACKET_SEQUENCE_FLAGS, SEQ_NEEDED)
_TIMESTAMP_TAG = wire.tag(PACKET_TIMESTAMP, 0)
_FLOW_TAG = wire.tag(EVENT_FLOW_IDS, 1)
_NEAR = 1 << 14  # ns: below, a time is written in two bytes
_FAR = 1 << 21  # ns: below, in three
#: A flow's value and the tag of the timestamp behind it, in one call.
_pack_flow = Struct("<QB").pack

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
        "_id",
        "_last_ns",
        "_names",
        "_near",
        "_offset_ns",
    )

    def __init__(self, id: int, track_uuid: int, flow_base: int, offset_ns: int) -> None:
        self._id = wire.integer(PACKET_SEQUENCE_ID, id)
        self._defaults = wire.message(
            PACKET_DEFAULTS,
            wire.integer(DEFAULTS_TIMESTAMP_CLOCK_ID, INCREMENTAL_CLOCK)
            + wire.message(DEFAULTS_TRACK_EVENT, wire.integer(EVENT_TRACK_UUID, track_uuid)),
        )
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
        # Locals are the cheapest names there are, a list's append and one join the cheapest way to gather bytes.
        low, pairs, pack_flow, flow_base = _low, _pairs, _pack_flow, self._flow_base
        near, far, flow_near, flow_far = self._near, self._far, self._flow_near, self._flow_far
        end_near, end_far = self._end_near, self._end_far
        for ts, kind, name, args, flow in edges:
            delta = ts - last
            if args is None and 0 <= delta < _FAR:
                last = ts
                if kind == END and not flow:
                    if delta < _NEAR:
                        append(end_near + pairs[delta])
                    else:
                        append(end_far + low[delta & 0x7F] + pairs[delta >> 7])
                    continue
                if kind == BEGIN:
                    # `try` costs nothing until a name is met for the first time.
                    try:
                        if delta < _NEAR:
                            if flow:
                                append(flow_near[name] + pack_flow(flow_base + flow, 0x40) + pairs[delta])
                            else:
                                append(near[name] + pairs[delta])
                        elif flow:
                            append(
                                flow_far[name]
                                + pack_flow(flow_base + flow, 0x40)
                                + low[delta & 0x7F]
                                + pairs[delta >> 7]
                            )
                        else:
                            append(far[name] + low[delta & 0x7F] + pairs[delta >> 7])
                        continue
                    except KeyError:
                        pass
            elif delta < 0:
                delta = 0
            else:
                last = ts
            append(self._any(delta, kind, name, args, flow))
        self._last_ns = last
        return b"".join(out)

    def _start(self, ts_ns: int) -> bytes:
        """The sequence's first packet: what its times count from, and the state that every later packet needs.

        The one link of the incremental clock is to BOOTTIME. The engine keeps it through later restarts.
        """
        incremental = wire.integer(CLOCK_ID, INCREMENTAL_CLOCK)
        incremental += wire.integer(CLOCK_TIMESTAMP, 0) + wire.integer(CLOCK_IS_INCREMENTAL, 1)
        boottime = wire.integer(CLOCK_ID, BOOTTIME) + wire.integer(CLOCK_TIMESTAMP, ts_ns + self._offset_ns)
        clocks = wire.message(SNAPSHOT_CLOCKS, incremental) + wire.message(SNAPSHOT_CLOCKS, boottime)
        return self._restart(wire.integer(PACKET_FIRST_ON_SEQUENCE, 1) + wire.message(PACKET_CLOCK_SNAPSHOT, clocks))

    def _restart(self, more: bytes = b"") -> bytes:
        """A packet after which nothing is interned, here or in a reader."""
        for kept in (self._names, self._arg_names, self._near, self._far, self._flow_near, self._flow_far):
            kept.clear()
        flags = wire.integer(PACKET_SEQUENCE_FLAGS, SEQ_CLEARED_AND_NEEDED)
        return wire.message(TRACE_PACKET, self._id + flags + self._defaults + more)

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
                interned += _interned(INTERNED_EVENT_NAMES, iid, name)
                event += wire.integer(EVENT_NAME_IID, iid)
            else:
                event += wire.integer(EVENT_NAME_IID, iid)
                if kind == BEGIN and args is None:
                    self._keep_heads(name, event, delta, flow)
        if flow:
            event += _FLOW_TAG + _pack_flow(self._flow_base + flow, 0)[:8]
        for key, value in args.items() if args else ():
            field = self._arg_names.get(key)
            if field is None:
                iid = len(self._arg_names) + 1
                field = self._arg_names[key] = wire.integer(ANNOTATION_NAME_IID, iid)
                interned += _interned(INTERNED_ANNOTATION_NAMES, iid, key)
            event += wire.message(EVENT_DEBUG_ANNOTATIONS, field + _annotation(value))
        packet = self._id + _SEQ_NEEDED + (wire.message(PACKET_INTERNED_DATA, interned) if interned else b"")
        packet += wire.message(PACKET_TRACK_EVENT, event) + _TIMESTAMP_TAG + wire.varint(delta)
        return before + wire.message(TRACE_PACKET, packet)

    def _keep_heads(self, name: str, event: bytes, delta: int, flow: int) -> None:
        """Keep the one head that this edge would have used."""
        if flow:
            kept, width = (self._flow_near, 2) if delta < _NEAR else (self._flow_far, 3)
            head = self._head(event, width, flow=True)
        else:
            kept, width = (self._near, 2) if delta < _NEAR else (self._far, 3)
            head = self._head(event, width)
        kept[name] = head

    def _head(self, event: bytes, time_width: int, flow: bool = False) -> bytes:
        """A packet up to the bytes that differ from edge to edge: its flow's, if it has one, then its time's."""
        flow_width = 8 if flow else 0
        if flow:
            event += _FLOW_TAG
        packet = self._id + _SEQ_NEEDED + wire.tag(PACKET_TRACK_EVENT, 2) + wire.varint(len(event) + flow_width) + event
        if not flow:
            packet += _TIMESTAMP_TAG
        return (
            wire.tag(TRACE_PACKET, 2) + wire.varint(len(packet) + flow_width + (1 if flow else 0) + time_width) + packet
        )


def _interned(number: int, iid: int, name: str) -> bytes:
    return wire.message(number, wire.integer(INTERNED_IID, iid) + wire.string(INTERNED_NAME, name))


def _counter_value(value: str | int | float | None) -> bytes:
    """An int as an int where it fits, anything else as a double."""
    if isinstance(value, int):
        if fits_int64(value):
            return wire.integer(EVENT_COUNTER_VALUE, value)
        value = nearest_double(value)
    assert isinstance(value, float)
    return wire.double(EVENT_DOUBLE_COUNTER_VALUE, value)


def _annotation(value: ArgValue) -> bytes:
    """An argument's value in a field that keeps it exact; an int of over 64 bits as text."""
    if isinstance(value, str):
        return wire.string(ANNOTATION_STRING, value)
    if isinstance(value, bool):
        return wire.integer(ANNOTATION_BOOL, value)
    if isinstance(value, float):
        return wire.double(ANNOTATION_DOUBLE, value)
    if fits_int64(value):
        return wire.integer(ANNOTATION_INT, value)
    if 0 <= value < 1 << 64:
        return wire.integer(ANNOTATION_UINT, value)
    return wire.string(ANNOTATION_STRING, wide(value))
