"""Where each packet of a Perfetto trace lies: millions a second, without looking into them.

A trace is packets behind a tag and a length, so each place follows from the one before: a loop. Here thousands of
such loops run side by side, in one numpy operation a step, each from its own place in a chunk. All but the first start
blind, at the next byte that looks like a tag, and fall into step with the packets after a few steps, as a chain that
lands on a real packet stays on them. Afterwards each chain's true entry, known from the one before, is looked up among
the places it visited; one that never fell into step is walked byte by byte. So the result is exact whatever the bytes.

It knows no packet's contents.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from gputrace.errors import InputError
from gputrace.reading.fields import Malformed, varint

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gputrace.reading.stream import ByteStream

    Places = NDArray[np.int64]
    Seen = TypeVar("Seen")
    Look = Callable[[bytes], tuple[Seen, int, bool]]

#: The one field of a trace: its number and wire type.
TAG = 0x0A
CHUNK_BYTES = 8 << 20
#: Bytes a chain walks. Shorter: more of them start blind; longer: fewer run side by side.
_LANE_BYTES = 8192
#: A chain that found so many bytes no tags gives up: it is inside a long packet.
_MOST_MISSES = 512
#: So many places of a chain are kept where it is only asked whether it was right.
_EARLY_STEPS = 64
#: Below so many bytes, one loop is quicker.
_FEW_BYTES = 1 << 16
#: More than the longest tag and length.
_PAD = 16


class Packets:
    """Packets that lie in ``data``: the k-th with its tag and length is ``data[starts[k]:ends[k]]``, its message
    ``data[bodies[k]:ends[k]]``; all int64. They follow one another without a gap. ``place`` is the file offset of
    ``data[0]``.
    """

    __slots__ = ("bodies", "data", "ends", "place", "starts")

    def __init__(self, data: bytes, starts: Places, bodies: Places, ends: Places, place: int = 0) -> None:
        self.data = data
        self.starts = starts
        self.bodies = bodies
        self.ends = ends
        self.place = place

    def __len__(self) -> int:
        return len(self.starts)

    def spans(self) -> Iterator[tuple[int, int]]:
        """(start, end) of each packet's message in ``data``."""
        return zip(self.bodies.tolist(), self.ends.tolist(), strict=True)


def packets(stream: ByteStream, chunk_bytes: int = CHUNK_BYTES) -> Iterator[Packets]:
    """All whole packets of a stream, some MB at a time. What follows them is told in ``stream.torn``.

    Raises `InputError` if a packet is larger than the stream's limits allow.
    """
    for found, _, place in _pieces(stream, chunk_bytes, frame):
        found.place = place
        yield found


def whole(stream: ByteStream, chunk_bytes: int = CHUNK_BYTES) -> Iterator[memoryview]:
    """The same packets as bytes, for whoever does not ask where in them each lies."""
    for data, end, _ in _pieces(stream, chunk_bytes, _whole_bytes):
        yield memoryview(data)[:end]


def _pieces(stream: ByteStream, chunk_bytes: int, look: Look[Seen]) -> Iterator[tuple[Seen, int, int]]:
    """What ``look`` saw in each chunk that holds a whole packet, where the last in it ends, and the chunk's offset."""
    kept, place = b"", stream.place
    while True:
        new = stream.read(chunk_bytes)
        data = kept + new if kept else new
        if not data:
            return
        seen, end, damaged = look(data)
        if end:
            yield seen, end, place
        place += end
        kept = data[end:]
        if damaged or (kept and not new):
            if not stream.torn:
                what = "zeros" if not kept.strip(b"\0") else "no packet" if damaged else "a packet cut short"
                stream.torn = f"from byte {place:,} on it holds {what}"
            return
        if len(kept) > stream.limits.most_record_bytes:
            raise InputError(stream.path, place, f"it holds a packet of over {stream.limits.most_record_bytes:,} bytes")


def frame(data: bytes) -> tuple[Packets, int, bool]:
    """The whole packets at the start of ``data``, where they end, and whether what follows there is no packet at all.

    False for the last: nothing follows, or a packet that is not whole.
    """
    if len(data) < _FEW_BYTES:
        starts_list, end, damaged = _walk(data, 0, len(data))
        starts = np.array(starts_list, np.int64)
    else:
        mark, end, damaged = _mark_side_by_side(data)
        starts = np.flatnonzero(mark[:end].view(np.bool_))
    ends = np.empty_like(starts)
    if len(starts):
        ends[:-1] = starts[1:]
        ends[-1] = end
    return Packets(data, starts, _bodies(data, starts), ends), end, damaged


def _whole_bytes(data: bytes) -> tuple[bytes, int, bool]:
    """``data``, and of it what `frame` says, without the places in between."""
    _, end, damaged = _walk(data) if len(data) < _FEW_BYTES else (0, *_end_side_by_side(data))
    return data, end, damaged


def _walk(
    data: bytes, i: int = 0, limit: int | None = None, stops: bytearray | None = None
) -> tuple[list[int], int, bool]:
    """Packets from ``i`` on that begin before ``limit``, or up to a marked place of ``stops``."""
    found: list[int] = []
    size = len(data)
    limit = size if limit is None else limit
    while i < limit:
        if stops is not None and stops[i]:
            break
        if data[i] != TAG:
            return found, i, True
        length = data[i + 1] if i + 1 < size else 0x80
        body = i + 2
        if length >= 0x80:
            try:
                length, body = varint(data, i + 1, size)
            except Malformed:
                return found, i, size - i > 10
        if body + length > size:
            break
        found.append(i)
        i = body + length
    return found, i, False


class _Chains:
    """All chains of a chunk, run from where they begin, blind but for the first, to the limit of each.

    ``exits`` are the places each came to, its ``limits`` or beyond unless it gave up, and ``astray`` the last place
    where it found no tag, -1 if it always did. ``visit`` is told of each step: its number, and which chains are where.
    """

    def __init__(self, data: bytes, visit: Callable[[int, Places, Places], object]) -> None:
        size = len(data)
        padded = np.zeros(size + _PAD, np.uint8)
        padded[:size] = np.frombuffer(data, np.uint8)
        count = size // _LANE_BYTES
        self.begins: Places = np.arange(count, dtype=np.int64) * _LANE_BYTES
        self.limits: Places = self.begins + _LANE_BYTES
        self.limits[-1] = size
        self.exits: Places = self.begins.copy()
        self.astray: Places = np.full(count, -1, np.int64)
        misses = np.zeros(count, np.int64)
        lane, at, limit = np.arange(count), self.begins, self.limits  # of those that still run
        step = 0
        while lane.size:
            length = padded[at + 1]
            following = at + length
            following += 2
            if length.max() >= 0x80:
                long = np.flatnonzero(length >= 0x80)
                following[long] = _follow_long(padded, at[long], size)
            is_tag = padded[at] == TAG
            if np.count_nonzero(is_tag) == at.size:
                visit(step, lane, at)
                runs = following < limit
            else:
                visit(step, lane[is_tag], at[is_tag])
                following = np.where(is_tag, following, at + 1)
                lost = lane[~is_tag]
                self.astray[lost] = at[~is_tag]
                misses[lost] += 1
                runs = (following < limit) & (is_tag | (misses[lane] < _MOST_MISSES))
            at = following
            step += 1
            if np.count_nonzero(runs) < at.size:
                ended = ~runs
                self.exits[lane[ended]] = at[ended]
                lane, at, limit = lane[runs], at[runs], limit[runs]


def _mark_side_by_side(data: bytes) -> tuple[NDArray[np.uint8], int, bool]:
    """An array that is 1 where a packet begins, where they end, and whether no packet follows there."""
    marks = bytearray(len(data) + 1)  # 1 where a chain saw a packet begin
    mark = np.frombuffer(marks, np.uint8)  # the same memory
    ran = _Chains(data, lambda step, lane, at: mark.put(at, 1, "clip"))  # the quickest way to set them
    lists = (ran.begins.tolist(), ran.limits.tolist(), ran.exits.tolist(), ran.astray.tolist())
    end, damaged = _fall_into_step(data, marks, *lists)
    return mark, end, damaged


def _end_side_by_side(data: bytes) -> tuple[int, bool]:
    """The last two of these alone. A chain that is ever right is so soon, so its first places are enough to know."""
    early = np.full((_EARLY_STEPS, len(data) // _LANE_BYTES), -1, np.int64)

    def visit(step: int, lane: Places, at: Places) -> None:
        if step < _EARLY_STEPS:
            early[step, lane] = at

    ran = _Chains(data, visit)
    entries = np.concatenate((np.zeros(1, np.int64), ran.exits[:-1]))
    right = (early == entries).any(axis=0) & (ran.astray < entries)
    entry = known = 0
    for limit, way_in, way_out, is_right in zip(
        ran.limits.tolist(), entries.tolist(), ran.exits.tolist(), right.tolist(), strict=True
    ):
        if entry >= limit:  # a long packet reaches over all of it
            continue
        known = entry
        if is_right and entry == way_in:
            entry = way_out
            continue
        _, entry, damaged = _walk(data, entry, limit)
        if entry < limit:
            return entry, damaged
    if entry <= len(data):
        return entry, False
    return _walk(data, known)[1:]  # the last packet is not whole


def _follow_long(padded: NDArray[np.uint8], at: Places, size: int) -> Places:
    """Where packets end whose length takes more than one byte; beyond ``size`` if it is no length."""
    length = np.zeros(at.size, np.int64)
    body = at + 1
    going = np.ones(at.size, bool)
    for shift in range(0, 35, 7):
        byte = padded[np.minimum(body, size)].astype(np.int64)
        length += np.where(going, (byte & 0x7F) << shift, 0)
        body += going
        going &= byte >= 0x80
    return np.where(going, size + 1, body + length)


def _fall_into_step(
    data: bytes, marks: bytearray, begins: list[int], limits: list[int], exits: list[int], astray: list[int]
) -> tuple[int, bool]:
    """Leave marks on true packets alone. Returns where the last whole one ends and whether no packet follows there."""
    size = len(data)
    entry, damaged = 0, False
    lane = 0
    for lane, (begin, limit) in enumerate(zip(begins, limits, strict=True)):
        if entry >= limit:  # a long packet reaches over all of it
            marks[begin:limit] = bytes(limit - begin)
            continue
        walked: list[int] = []
        true = entry
        if not marks[entry]:
            walked, true, damaged = _walk(data, entry, limit, marks)
            if damaged or (true < limit and not marks[true]):
                marks[begin:size] = bytes(size - begin)
                for i in walked:
                    marks[i] = 1
                return true, damaged
        marks[begin:true] = bytes(max(true - begin, 0))
        for i in walked:
            marks[i] = 1
        if true >= limit:
            entry = true
        elif astray[lane] < true:
            entry = exits[lane]
        else:  # it went astray after this: there is damage, or it began blind and gave up
            marks[true:limit] = bytes(limit - true)
            walked, entry, damaged = _walk(data, true, limit)
            for i in walked:
                marks[i] = 1
            if entry < limit:
                marks[limit:size] = bytes(size - limit)
                return entry, damaged
        if entry > size:
            break
    if entry <= size:
        return entry, False
    # The last packet is not whole: its own mark goes, and those of chains behind it.
    last = marks.rindex(1, 0, limits[lane])
    marks[last:size] = bytes(size - last)
    return last, _walk(data, last, size)[2]


def _bodies(data: bytes, starts: Places) -> Places:
    """Where each packet's message begins."""
    if not len(starts):
        return starts
    array = np.frombuffer(data, np.uint8)
    bodies = starts + 2
    going = starts
    while True:
        more = np.flatnonzero(array[bodies - 1] >= 0x80) if going is starts else going[array[bodies[going] - 1] >= 0x80]
        if not more.size:
            return bodies
        bodies[more] += 1
        going = more
