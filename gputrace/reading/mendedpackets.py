"""What is good of a shard of Perfetto's packets with rot in it (`exporters/sequence.py` writes them).

Where packets go on is seen by two in a row that are well formed and of the recording's own sequences. A sequence counts
time from event to event, so that one that has lost some says nothing of time any more: of those that began before a
loss, nothing behind it is taken.
"""

from __future__ import annotations

import mmap
from typing import IO, TYPE_CHECKING

import numpy as np

from gputrace.reading.fields import BYTES, Malformed, encode_bytes, encode_integer, fields, varint, well_formed
from gputrace.reading.layout import Events, varints
from gputrace.reading.packets import CHUNK_BYTES, TAG, Packets, frame

if TYPE_CHECKING:
    from collections.abc import Container

    from numpy.typing import NDArray

    from gputrace.reading.packets import Places

_BEGIN, _END = 1, 2
# Fields by number: of a packet, of an event, of an annotation, of a name that is defined.
_SNAPSHOT, _TIME, _SEQUENCE, _EVENT, _INTERNED, _FLAGS = 6, 8, 10, 11, 12, 13
_TYPE, _ANNOTATION, _NAME, _STRING, _TEXT = 9, 4, 10, 6, 2
_MESSAGES = (5, 6, 11, 12, 59, 60, 89)
_FIELDS = (*_MESSAGES, 8, 10, 13, 58, 87)
_SEQUENCE_TAG, _TYPE_TAG, _NAME_TAG, _FLOW = 0x50, 0x48, 0x50, (0xF9, 0x02)
_FLOW_BYTES = 10
_TYPES = 4
#: No packet of ours is longer.
_LONGEST = 1 << 28


def mend(shard: IO[bytes], length: int, mended: IO[bytes] | None, numbers: Container[int]) -> tuple[int, int]:
    """The bytes of packets that cannot be read, or not be placed in time, and how many sequences the latter are of.

    Copies the others, if ``mended`` is given. ``numbers`` are the shard numbers that sequences are made of. Raises
    OSError.
    """
    if not length:
        return 0, 0
    with mmap.mmap(shard.fileno(), length, access=mmap.ACCESS_READ) as data:
        return _Mending(data, length, mended, numbers).run()


class _Mending:
    def __init__(self, data: mmap.mmap, length: int, mended: IO[bytes] | None, numbers: Container[int]) -> None:
        self._data = data
        self._length = length
        self._mended = mended
        self._numbers = numbers
        self._lost = 0
        self._ended: set[int] = set()  # sequences of which something good was left out
        self._depth: dict[int, int] = {}  # slices open, by sequence
        self._trusted: set[int] | None = None  # sequences whose times are known; None: all are

    def run(self) -> tuple[int, int]:
        place, size = 0, CHUNK_BYTES
        while place < self._length:
            found, end, damaged = frame(self._data[place : place + size])
            good = self._good(found)
            bad = int(np.argmin(good)) if not good.all() else len(found)
            self._take(found, bad)
            if bad < len(found):
                end, damaged = int(found.starts[bad]), True
            place += end
            if not damaged and end:
                size = CHUNK_BYTES
            elif not damaged and place + size < self._length and size < _LONGEST:
                size *= 8  # a packet longer than what was looked at
            else:
                after = self._next(place + 1)
                self._lose(after - place)
                place, size = after, CHUNK_BYTES
        return self._lost, len(self._ended)

    def _good(self, found: Packets) -> NDArray[np.bool_]:
        """Which packets are well formed, through and through, and of this recording's sequences."""
        events = Events(found)
        good = np.zeros(len(found), np.bool_)
        good[events.which[_plain(events, found.ends)]] = True
        own = np.fromiter(map(self._is_own, events.sequence.tolist()), np.bool_, len(found))
        good &= own
        for k in np.flatnonzero(~good & own).tolist():
            good[k] = self._is_good(found.data, int(found.bodies[k]), int(found.ends[k]))
        return good

    def _is_own(self, sequence: int) -> bool:
        return sequence >> 12 in self._numbers

    def _is_good(self, data: bytes, start: int, end: int) -> bool:
        seen = set()
        try:
            for number, kind, _, value, stop in fields(data, start, end):
                if number in seen or number not in _FIELDS or (kind == BYTES) != (number in _MESSAGES):
                    return False
                if kind == BYTES and not _is_message(data, number, value, stop):
                    return False
                if number == _SEQUENCE and not self._is_own(value):
                    return False
                seen.add(number)
        except Malformed:
            return False
        return _SEQUENCE in seen

    def _next(self, place: int) -> int:
        """Where packets go on, from ``place``; the end if they do not."""
        while (at := self._data.find(bytes([TAG]), place)) >= 0:
            after = self._after(at)
            if after and (after == self._length or self._after(after)):
                return at
            place = at + 1
        return self._length

    def _after(self, at: int) -> int:
        """The end of a good packet at ``at``; 0 if none is there."""
        head = self._data[at : at + 11]
        try:
            if head[:1] != bytes([TAG]):
                return 0
            size, body = varint(head, 1, len(head))
        except Malformed:
            return 0
        start, end = at + body, at + body + size
        if not size or end > self._length or self._data[start] != _SEQUENCE_TAG:
            return 0
        return end if self._is_good(self._data[start:end], 0, size) else 0

    def _take(self, found: Packets, count: int) -> None:
        """Take the first ``count`` packets over, as far as they can be placed."""
        if not count:
            return
        kept = Packets(found.data, found.starts[:count], found.bodies[:count], found.ends[:count])
        if self._trusted is None:
            self._count(Events(kept))
            if self._mended is not None:
                self._mended.write(found.data[: int(kept.ends[-1])])
            return
        for start, body, end in zip(kept.starts.tolist(), kept.bodies.tolist(), kept.ends.tolist(), strict=True):
            inside = {number: value for number, _, _, value, _ in fields(found.data, body, end)}
            sequence = inside[_SEQUENCE]
            if _SNAPSHOT in inside:
                self._trusted.add(sequence)
            if (_EVENT in inside or _FLAGS in inside) and sequence not in self._trusted:
                self._lost += end - start
                self._ended.add(sequence)
            else:
                if _EVENT in inside:
                    self._step(sequence, found.data[inside[_EVENT] + 1])
                if self._mended is not None:
                    self._mended.write(found.data[start:end])

    def _count(self, events: Events) -> None:
        """Follow how deep slices are open. An event's type is what it begins with."""
        types = events.padded[events.event_at + 1].astype(np.int64)
        pairs, counts = np.unique(np.stack([events.sequence[events.which], types]), axis=1, return_counts=True)
        for sequence, type, count in zip(*pairs.tolist(), counts.tolist(), strict=True):
            self._step(sequence, type, count)

    def _step(self, sequence: int, type: int, count: int = 1) -> None:
        if type in (_BEGIN, _END):
            self._depth[sequence] = self._depth.get(sequence, 0) + (count if type == _BEGIN else -count)

    def _lose(self, size: int) -> None:
        """Here ``size`` bytes are left out: nothing that is open now can be ended by what follows."""
        self._lost += size
        if self._mended is not None:
            for sequence, depth in self._depth.items():
                self._mended.write(_ended(sequence) * max(depth, 0))
        self._depth.clear()
        self._trusted = set()


def _is_message(data: bytes, number: int, start: int, end: int) -> bool:
    """Is it well formed, and are an event's texts, or the names it defines, as they are written: without a NUL?"""
    if not well_formed(data, start, end):
        return False
    text = {_EVENT: _STRING, _INTERNED: _TEXT}.get(number)
    if text is None:
        return True
    for inner, kind, _, value, stop in fields(data, start, end):
        if kind != BYTES or (number == _EVENT and inner != _ANNOTATION):
            continue
        if not well_formed(data, value, stop):
            return False
        for each, kind_of_each, _, at, after in fields(data, value, stop):
            if each == text and kind_of_each == BYTES and not _is_text(data[at:after]):
                return False
    return True


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return b"\0" not in data


def _plain(events: Events, ends: Places) -> NDArray[np.bool_]:
    """Which events are of the shapes that nearly all have: a type alone, a name behind it, a flow behind that."""
    whole = events.time_at + events.time_width == ends[events.which]
    at = events.event_at
    end = events.time_at - 1
    type, tag = events.padded[at + 1], events.padded[at + 2]
    good = (events.padded[at] == _TYPE_TAG) & (type >= _BEGIN) & (type <= _TYPES)
    _, after = varints(events.padded, at + 3)
    named = (tag == _NAME_TAG) & (after <= end)
    flow = (events.padded[after] == _FLOW[0]) & (events.padded[after + 1] == _FLOW[1]) & (after + _FLOW_BYTES == end)
    plain: NDArray[np.bool_] = good & whole & ((at + 2 == end) | (named & ((after == end) | flow)))
    return plain


def _ended(sequence: int) -> bytes:
    """A packet that ends the innermost open slice of a sequence, at its last event's time, and says why."""
    reason = encode_bytes(_NAME, b"ended") + encode_bytes(_STRING, b"the recording is damaged here")
    event = encode_integer(_TYPE, _END) + encode_bytes(_ANNOTATION, reason)
    packet = encode_integer(_SEQUENCE, sequence) + encode_integer(_FLAGS, 2)
    return encode_bytes(1, packet + encode_bytes(_EVENT, event) + encode_integer(_TIME, 0))
