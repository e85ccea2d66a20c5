"""Takes over one Perfetto trace's packets, changing in them what the plan says and nothing else.

Where nothing changes, bytes are copied. Where only ids do, they are written over those of thousands of packets at once.
Packets of any other kind than our events are few, or another tool's, and are taken apart field by field.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from gputrace.merging import survey as numbers
from gputrace.merging.survey import inflate_packets
from gputrace.merging.timeshift import Times
from gputrace.reading.fields import BYTES, VARINT, Malformed, encode_bytes, encode_integer, fields
from gputrace.reading.layout import Events, put_varints
from gputrace.reading.packets import Packets, frame, packets, whole
from gputrace.reading.stream import ByteStream, Limits

if TYPE_CHECKING:
    from gputrace.merging.plan import Task
    from gputrace.record.replace import Write

_TRACE_PACKET = 1
_SCOPED = range(64, 128)  # ids of clocks that mean something in their own sequence alone
_PROCESS, _THREAD = 43, 44  # descriptors outside a track's


def write(task: Task, write: Write, limits: Limits | None = None, progress: Callable[[int], object] = int) -> str:
    """Write the packets of a task's trace. Returns what is wrong with it beyond what its survey says, or "".

    ``progress`` is given the bytes that each step read. Raises `InputError` and what ``write`` raises.
    """
    rewriter = Rewriter(task)
    with ByteStream(task.survey.path, limits) as stream:
        copies = task.copies and task.survey.tool == "gputrace" and task.survey.whole
        if copies:
            for packet in rewriter.header(stream.read(task.survey.head_bytes)):
                write(packet)
        taken = 0
        # Of what is copied, what lies in a packet is its writer's affair: to look into each would take as long again.
        for piece in whole(stream) if copies else rewriter.pieces(packets(stream)):
            write(piece)
            progress(stream.taken - taken)
            taken = stream.taken
    if rewriter.malformed:
        return f"{rewriter.malformed:,} of its packets are damaged and left out"
    return f"{stream.torn}: what is before that is merged" if stream.torn and task.survey.whole else ""


class Rewriter:
    """Changes batches of packets, in the order of the file."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._host = task.host
        self._times = Times(task.to_timeline)
        # Of our own the snapshots were written already, at the front.
        self._keeps_snapshots = task.keeps_clocks and task.survey.tool != "gputrace"
        self._names: Any = None
        self.malformed = 0

    def header(self, data: bytes) -> Iterator[bytes]:
        """Our header's packets, those left out that a merged trace has of its own."""
        batch, _, _ = frame(data)
        for start, end in batch.spans():
            yield self._framed(data, start, end)

    def pieces(self, batches: Iterable[Packets]) -> Iterator[bytes]:
        """All that is to be written for batches."""
        for batch in batches:
            yield from self.batch(batch)

    def batch(self, batch: Packets) -> Iterator[bytes]:
        """A batch as it is to be written, in pieces."""
        events = Events(batch)
        slow = np.flatnonzero(~events.is_event)
        changed: dict[int, bytes] = {}
        since: dict[int, int] = {}  # by sequence that began to have absolute times: the packet that says so
        for k in slow.tolist():
            before = len(self._times.absolute)
            changed[k] = self._framed(batch.data, batch.bodies[k], batch.ends[k])
            if len(self._times.absolute) != before:
                since[int(events.sequence[k])] = k
        for sequence in self._times.absolute if self._times.moves else ():
            of_it = np.flatnonzero(events.is_event & (events.sequence == sequence))
            for k in of_it[of_it > since.get(sequence, -1)].tolist():
                events.is_event[k] = False
                changed[k] = self._framed(batch.data, batch.bodies[k], batch.ends[k])
        data: bytes | bytearray = batch.data
        if self._task.sequences or self._times.skews:
            data = bytearray(batch.data)
            array = np.frombuffer(data, np.uint8)
            if self._times.skews:
                self._times.move_events(array, events)
            self._put_sequences(array, batch, events, changed)
        return _pieces(data, batch, changed)

    def _put_sequences(self, array: Any, batch: Packets, events: Events, changed: dict[int, bytes]) -> None:
        if not self._task.sequences:
            return
        old = np.array(sorted(self._task.sequences), np.int64)
        new = np.array([self._task.sequences[id] for id in old.tolist()], np.int64)
        at = np.minimum(np.searchsorted(old, events.sequence), len(old) - 1)
        hit = events.is_event & (old[at] == events.sequence)
        for width in np.unique(events.width[hit]).tolist():
            of_width = hit & (events.width == width)
            fits = of_width & (new[at] < 1 << 7 * width)
            which = np.flatnonzero(fits)
            put_varints(array, batch.bodies[which] + 1, new[at[which]], width)
            for k in np.flatnonzero(of_width & ~fits).tolist():
                body = bytes(array[int(batch.bodies[k]) : int(batch.ends[k])])
                changed[k] = self._framed(body, 0, len(body), timed=True)

    # One packet.

    def _framed(self, data: bytes, start: Any, end: Any, *, timed: bool = False) -> bytes:
        """A packet with its tag; nothing if it is left out. ``timed``: its time is the timeline's already."""
        try:
            return self._packet(data, int(start), int(end), timed)
        except Malformed:
            self.malformed += 1
            return b""  # one such packet, and the engine refuses the trace

    def _packet(self, data: bytes, start: int, end: int, timed: bool) -> bytes:
        found = list(fields(data, start, end))
        sequence = next((value for number, _, _, value, _ in found if number == numbers.SEQUENCE), 0)
        for number, kind, _, value, stop in found:
            if number == numbers.DEFAULTS and kind == BYTES:  # they hold for this very packet
                self._times.take_defaults(sequence, data, value, stop)
        out: list[bytes] = []
        for number, kind, begin, value, stop in found:
            if number == numbers.SEQUENCE:
                out.append(encode_integer(number, self._task.sequences.get(value, value)))
            elif number == numbers.COMPRESSED and kind == BYTES:
                return self._unpacked(data[value:stop])
            elif number == numbers.UUID:
                return b""
            elif number == numbers.SNAPSHOT and kind == BYTES:
                snapshot = self._snapshot(data, value, stop, sequence)
                if snapshot:
                    out.append(encode_bytes(number, snapshot))
                elif len(found) <= 3:  # nothing in it but this, a sequence and a time
                    return b""
            elif number == numbers.TIMESTAMP and kind == VARINT and self._times.moves and not timed:
                clock = next((v for n, _, _, v, _ in found if n == numbers.CLOCK_ID), None)
                out.append(encode_integer(number, self._times.move(value, clock, sequence)))
            elif number in (numbers.DESCRIPTOR, _PROCESS, _THREAD) and kind == BYTES:
                out.append(encode_bytes(number, self._descriptor(number, data[value:stop])))
            else:
                out.append(data[begin:stop])
        return encode_bytes(_TRACE_PACKET, b"".join(out))

    def _unpacked(self, body: bytes) -> bytes:
        inner = inflate_packets(body, self._task.survey.path)
        batch, _, _ = frame(inner)
        return b"".join(self._framed(inner, start, end) for start, end in batch.spans())

    def _snapshot(self, data: bytes, start: int, end: int, sequence: int) -> bytes:
        """A clock snapshot for the timeline: of one that ties a sequence's own clock, that clock and BOOTTIME alone."""
        clocks = []
        for number, kind, begin, value, stop in fields(data, start, end):
            if number == 1 and kind == BYTES:
                clock = {n: v for n, k, _, v, _ in fields(data, value, stop) if k == VARINT}
                clocks.append((clock.get(1, 0), clock, data[begin:stop]))
        if not any(id in _SCOPED for id, _, _ in clocks):
            return data[start:end] if self._keeps_snapshots else b""
        if self._keeps_snapshots and not self._times.moves:
            return data[start:end]
        self._times.tie(sequence, [clock for _, clock, _ in clocks])
        kept = []
        for id, clock, as_it_is in clocks:
            if id in _SCOPED:
                kept.append(as_it_is)
            elif id == numbers.BOOTTIME_ID:
                ns = self._times.on_timeline(clock.get(2, 0))
                kept.append(encode_bytes(1, encode_integer(1, id) + encode_integer(2, ns)))
        return b"".join(kept)

    def _descriptor(self, number: int, body: bytes) -> bytes:
        """A track's descriptor with its process's and thread's ids those of the merged trace."""
        if not self._host.index and not self._times.moves:
            return body
        if self._names is None:
            from gputrace.merging.names import Names

            self._names = Names(self._host, self._times.on_timeline)
        return self._names.descriptor(number, body)  # type: ignore[no-any-return]


def _pieces(data: bytes | bytearray, batch: Packets, changed: dict[int, bytes]) -> Iterator[bytes]:
    """The batch, with some packets replaced."""
    if not len(batch):
        return
    at = 0
    view = memoryview(data)
    for k in sorted(changed):
        start, end = int(batch.starts[k]), int(batch.ends[k])
        if start > at:
            yield bytes(view[at:start])
        if changed[k]:
            yield changed[k]
        at = end
    end = int(batch.ends[-1])
    if end > at:
        yield bytes(view[at:end])
