"""Reads a ring file: the newest host slices of a process that is over, as its compiled hot path left them.

Any bytes whatever are taken: what makes no sense is passed over, never followed. It knows neither tracks nor formats.
The file is little-endian and was mapped into the process that wrote it, so what is stored last says what is whole::

    header, 65536 bytes, as a page may be: 8s magic, u32 version, u32 65536, u64 committed, u64 pending, u64 length[2],
        u64 tracks, u32 pid, u32 name's length, 512 bytes of the process's name, u64 dropped spans, u64 dropped windows
    pieces, of 65536 bytes times `units`, each with a header of 64 bytes:
        u32 kind, u32 units, u32 thread, u32 -, u64 sequence, u64 consumed_old, u64 consumed_new, u64 epoch_new
    EDGES    slots of 32 bytes: u64 tag, i64 ns, u64 number (or value), u64 scope (or unit's name), then payload slots
    NAMES    u32 id, u32 length, text, padded to 8
    THREADS  128 bytes: u32 number, u32 tid, u32 track, u32 name's length, u64 epoch, 8 unused, 96 of name
    OPEN     40 bytes: u64 number, u32 thread, u32 track, u64 begin_epoch, u64 end_epoch, u64 scope

Writing goes in epochs: what epoch `committed` and those before it took off the ring is in the shard, whose length after
epoch e is `length[e & 1]`.
"""

from __future__ import annotations

import os
import stat
from struct import Struct

from gputrace.model import Flow

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Final

    from gputrace.model import ArgValue

BEGIN: Final = 1
END: Final = 2
INSTANT: Final = 3
SAMPLE: Final = 4
#: The scope of an explicit window, which nests in nothing.
EXPLICIT: Final = (1 << 64) - 1
#: What an edge is called whose name was lost.
NO_NAME: Final = "?"

_MAGIC: Final = b"gputrng1"
_VERSION: Final = 2
#: The first that says what was dropped.
_SAYS_DROPPED: Final = 2
_HEADER_BYTES: Final = 65536
_PIECE_BYTES: Final = 65536
_FIRST: Final = 64  # bytes of a piece's own header
_SLOT: Final = 32
_FILL: Final = 255
#: A piece holds at least one record, and none takes more than 2 MiB: beyond this, its size is garbage.
_MOST_UNITS: Final = 1024
_EDGES, _NAMES, _THREADS, _OPEN = 1, 2, 3, 4

_HEADER = Struct("<8sIIQQQQQII")
_LONGEST_NAME: Final = 512
_DROPPED_AT: Final = _HEADER.size + _LONGEST_NAME
_DROPPED = Struct("<QQ")
# Not blocking: a FIFO put in its place must not hold us.
_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_PIECE = Struct("<IIIIQQQQ")
_RECORD = Struct("<QqQQ")
_THREAD = Struct("<IIIIQ")
_OPEN_SPAN = Struct("<QIIQQQ")
_NAME = Struct("<II")
_U32 = Struct("<I")
_INT = Struct("<q")
_DOUBLE = Struct("<d")


def dropped(path: str) -> tuple[int, int] | None:
    """How many host spans a ring's process did not record, and how many windows; None if it does not say."""
    try:
        with open(os.open(path, _FLAGS), "rb", buffering=0) as file:
            header = file.read(_DROPPED_AT + _DROPPED.size)
    except OSError:
        return None
    if len(header) < _DROPPED_AT + _DROPPED.size or _HEADER.unpack_from(header)[:2] != (_MAGIC, _SAYS_DROPPED):
        return None
    spans, windows = _DROPPED.unpack_from(header, _DROPPED_AT)
    return spans, windows


class RingEdge:
    """One edge: ``kind`` is BEGIN, END, INSTANT or SAMPLE, ``ns`` CLOCK_MONOTONIC, ``number`` that of the span.

    ``args`` of an END are what the slice says at its end. A BEGIN has a ``scope`` (0, `EXPLICIT`, or the identity of a
    task or generator) and says whether it was given a stream; a SAMPLE has a ``value`` and a ``unit``.
    """

    __slots__ = ("args", "has_stream", "kind", "name", "ns", "number", "scope", "unit", "value")

    def __init__(self, kind: int, ns: int, number: int) -> None:
        self.kind = kind
        self.ns = ns
        self.number = number
        self.name = NO_NAME
        self.args: dict[str, ArgValue] | None = None
        self.scope = 0
        self.has_stream = False
        self.value: int | float = 0
        self.unit = ""


class RingThread:
    """A host thread. ``track`` is the id its track was announced with in the shard, 0 if it was not."""

    __slots__ = ("name", "number", "tid", "track")

    def __init__(self, number: int, tid: int, name: str, track: int) -> None:
        self.number = number
        self.tid = tid
        self.name = name
        self.track = track


class OpenSpan:
    """A host slice that was begun in the shard, on track ``track``, and not ended there. ``scope`` is as an edge's."""

    __slots__ = ("number", "scope", "thread", "track")

    def __init__(self, number: int, thread: int, track: int, scope: int) -> None:
        self.number = number
        self.thread = thread
        self.track = track
        self.scope = scope


class _Piece:
    """Where a piece lies in the file, and which of its bytes were dealt with."""

    __slots__ = ("consumed_new", "consumed_old", "epoch_new", "offset", "sequence", "size")

    def __init__(self, offset: int, size: int, sequence: int, old: int, new: int, epoch_new: int) -> None:
        self.offset = offset
        self.size = size
        self.sequence = sequence
        self.consumed_old = old
        self.consumed_new = new
        self.epoch_new = epoch_new


class Ring:
    """A ring file, open for reading. ``path`` is not followed if it is a link.

    Raises OSError if it cannot be opened, `ValueError` if it holds no ring, as when its process was killed while it
    made it. One piece is in memory at a time, and all names.
    """

    def __init__(self, path: str) -> None:
        self._file = open(os.open(path, _FLAGS), "rb", buffering=0)  # noqa: SIM115 - a context manager itself
        try:
            status = os.fstat(self._file.fileno())
            header = (
                os.pread(self._file.fileno(), _HEADER.size + _LONGEST_NAME, 0) if stat.S_ISREG(status.st_mode) else b""
            )
            if len(header) < _HEADER.size:
                raise ValueError("is too short to be a ring")
            magic, version, piece_bytes, committed, pending, even, odd, tracks, pid, size = _HEADER.unpack_from(header)
            if (magic, piece_bytes) != (_MAGIC, _PIECE_BYTES) or not 0 < version <= _VERSION:
                raise ValueError("is no ring, or of another version")
            self._committed: int = committed
            self._pending: int = pending
            self._lengths: tuple[int, int] = (even, odd)
            #: Track ids from 1 to this may be in use.
            self.tracks: int = tracks
            #: Of the process that wrote it, as it knew itself: 0 and "" if it did not say.
            self.pid: int = pid
            self.process_name: str = _text(header[_HEADER.size : _HEADER.size + min(size, _LONGEST_NAME)])
            self._edges: dict[int, list[_Piece]] = {}
            self._tables: dict[int, list[_Piece]] = {_NAMES: [], _THREADS: [], _OPEN: []}
            self._find_pieces(status.st_size)
            self._names = self._read_names()
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Ring:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def epoch(self, shard_bytes: int) -> int:
        """The last epoch that is whole in a shard of this size."""
        if self._pending == self._committed + 1 and shard_bytes >= self._lengths[self._pending & 1]:
            return self._pending
        return self._committed

    def length(self, epoch: int) -> int:
        """The shard's length in bytes after the epoch that `epoch` named."""
        return self._lengths[epoch & 1]

    def threads(self, epoch: int) -> dict[int, RingThread]:
        """The threads known, by number, with the tracks announced by then."""
        found: dict[int, RingThread] = {}
        for data in map(self._read, self._tables[_THREADS]):
            for at in range(_FIRST, len(data) - 127, 128):
                number, tid, track, size, announced = _THREAD.unpack_from(data, at)
                if number and number not in found:
                    name = _text(data[at + 32 : at + 32 + min(size, 96)])
                    found[number] = RingThread(number, tid, name, track if announced <= epoch else 0)
        # One that no entry tells of has its edges all the same.
        for number in self._edges:
            found.setdefault(number, RingThread(number, 0, "", 0))
        return found

    def open_spans(self, epoch: int) -> list[OpenSpan]:
        """The slices open in the shard after an epoch, by number: of two on one track the later one is the inner."""
        found: dict[int, OpenSpan] = {}
        for data in map(self._read, self._tables[_OPEN]):
            for at in range(_FIRST, len(data) - _OPEN_SPAN.size + 1, _OPEN_SPAN.size):
                number, thread, track, begun, ended, scope = _OPEN_SPAN.unpack_from(data, at)
                if number and track and begun <= epoch and (not ended or ended > epoch):
                    found.setdefault(number, OpenSpan(number, thread, track, scope))
        return [found[number] for number in sorted(found)]

    def edges(self, thread: int, epoch: int) -> Iterator[RingEdge]:
        """The edges that a thread committed and no epoch up to this one has dealt with, in order."""
        for data, tag, at in self._records(thread, epoch):
            _, ns, number, last = _RECORD.unpack_from(data, at)
            edge = RingEdge(tag & 0xFF, ns, number)
            flags, name = tag >> 8 & 0xFF, tag >> 32
            end = at + _SLOT * (1 + (tag >> 16 & 0xFFFF))
            place = at + _SLOT
            if name:
                edge.name = self._names.get(name, NO_NAME)
            elif edge.kind != END and place < end:
                edge.name, place = _sized_text(data, place, end)
            if edge.kind == BEGIN:
                edge.scope, edge.has_stream = last, bool(flags & 1)
            elif edge.kind == SAMPLE:
                edge.value = (_DOUBLE if flags & 1 else _INT).unpack_from(data, at + 16)[0]
                edge.unit = self._names.get(last, "") if last else ""
            if place < end:
                edge.args = self._read_args(data, place, end) or None
            yield edge

    def outline(self, thread: int, epoch: int) -> Iterator[tuple[int, int, int]]:
        """As `edges`, but (kind, number, ns) alone: to look ahead at little cost."""
        for data, tag, at in self._records(thread, epoch):
            _, ns, number, _ = _RECORD.unpack_from(data, at)
            yield tag & 0xFF, number, ns

    def _records(self, thread: int, epoch: int) -> Iterator[tuple[bytes, int, int]]:
        """Each whole record of a known kind: its piece, its tag, where in the piece it begins."""
        for piece in self._edges.get(thread, []):
            data = self._read(piece)
            consumed = piece.consumed_new if piece.epoch_new <= epoch else piece.consumed_old
            at = max(consumed, _FIRST)
            while at + _SLOT <= len(data):
                tag = int.from_bytes(data[at : at + 8], "little")
                kind = tag & 0xFF
                after = at + _SLOT * (1 + (tag >> 16 & 0xFFFF))
                if not tag or kind == _FILL or after > len(data):
                    break
                if BEGIN <= kind <= SAMPLE:
                    yield data, tag, at
                at = after

    def _find_pieces(self, size: int) -> None:
        offset = _HEADER_BYTES
        while offset + _FIRST <= size:
            header = os.pread(self._file.fileno(), _FIRST, offset)
            if len(header) < _FIRST:
                break
            kind, units, thread, _, sequence, old, new, epoch_new = _PIECE.unpack_from(header)
            if not 0 < units <= _MOST_UNITS or kind > _OPEN:
                units = 1
            piece = _Piece(offset, units * _PIECE_BYTES, sequence, old, new, epoch_new)
            if kind == _EDGES:
                self._edges.setdefault(thread, []).append(piece)
            elif kind in self._tables:
                self._tables[kind].append(piece)
            offset += piece.size
        for pieces in self._edges.values():
            pieces.sort(key=lambda piece: piece.sequence)

    def _read(self, piece: _Piece) -> bytes:
        """A piece's bytes; fewer where the file ends before it does."""
        parts, left, offset = [], piece.size, piece.offset
        while left and (part := os.pread(self._file.fileno(), left, offset)):
            parts.append(part)
            left -= len(part)
            offset += len(part)
        return b"".join(parts)

    def _read_names(self) -> dict[int, str]:
        names: dict[int, str] = {}
        for data in map(self._read, self._tables[_NAMES]):
            at = _FIRST
            while at + _NAME.size <= len(data):
                id, size = _NAME.unpack_from(data, at)
                at += _NAME.size
                if not id or at + size > len(data):
                    break
                names.setdefault(id, _text(data[at : at + size]))
                at += size + 7 & ~7
        return names

    def _read_args(self, data: bytes, at: int, end: int) -> dict[str, ArgValue]:
        """Args up to the payload's end, or to where they make no sense."""
        args: dict[str, ArgValue] = {}
        while at < end and data[at]:
            kind = data[at]
            if kind not in _ARGS or at + 5 > end:
                break
            (id,) = _U32.unpack_from(data, at + 1)
            at += 5
            if id:
                key = self._names.get(id, NO_NAME)
            else:
                key, at = _sized_text(data, at, end)
            form = _ARGS[kind]
            if form is None:
                text, at = _sized_text(data, at, end)
                args[key] = text if kind == _TEXT else _wide(text)
            elif at + form.size <= end:
                value = form.unpack_from(data, at)[0]
                args[key] = bool(value) if kind == _BOOL else Flow(value) if kind == _FLOW else value
                at += form.size
            else:
                break
        return args


_BOOL, _TEXT, _FLOW = 1, 4, 6
#: How an argument's value is stored, by its type; None: as text.
_ARGS: Final = {_BOOL: Struct("<B"), 2: _INT, 3: _DOUBLE, _TEXT: None, 5: None, _FLOW: _INT}


def _sized_text(data: bytes, at: int, end: int) -> tuple[str, int]:
    """A length and text, no longer than up to ``end``; and where what follows begins."""
    if at + 4 > end:
        return NO_NAME, end
    after = min(at + 4 + _U32.unpack_from(data, at)[0], end)
    return _text(data[at + 4 : after]), after


def _text(data: bytes) -> str:
    try:
        return data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return data.decode("utf-8", "replace")


def _wide(text: str) -> int | str:
    """An int from text as Python's ``hex`` writes it."""
    try:
        return int(text, 16)
    except ValueError:
        return text
