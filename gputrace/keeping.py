"""What a process keeps of its last seconds, for ``--last``: edges as they come, in files that soon go again.

A *piece* is a file of some seconds that begins with all it takes to go on from there: the tracks, and what is open on
them. So a piece that has become too old is removed unread, however much is open. Files rather than memory, because they
outlive the process, however it ends. `gputrace.record.kept` makes a trace of them; neither knows its format.
"""

from __future__ import annotations

import os
from binascii import crc32
from marshal import dumps

from gputrace.descriptors import OwnFile
from gputrace.hostclock import now_ns
from gputrace.model import BEGIN, COUNTER, END, Exporter
from gputrace.shardfile import ShardFile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any, Final

    from gputrace.model import Edge, Process, Recording, Track

#: Kinds of record; what follows each is in `Keeping`.
STATE, TRACK, EDGES, CLOSED, METADATA, ALIVE = range(6)
#: A record is its length, the CRC-32 of what follows, up to when there is something by then, all little-endian, and a
#: marshalled tuple of that length. That time is the edges' own: under load they come here seconds late.
LENGTH_BYTES: Final = 4
SUM_BYTES: Final = 4
TIME_BYTES: Final = 8
#: Any Python since 3.4 reads it: the launcher's need not be the program's.
_MARSHAL: Final = 4
#: So many pieces make up what is kept; the oldest is that much too old at most.
_PIECES: Final = 8
#: Edges a record has at most: what comes in one go may be more than all that is kept, and would push itself out.
_MOST_EDGES: Final = 1024
_SHORTEST_NS: Final = 100_000_000
#: So much longer a piece is kept than it counts: whoever was asked for a dump is not there at once.
_SLACK_NS: Final = 2_000_000_000
_ALIVE_NS: Final = 1_000_000_000
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)


class KeptFile:
    """The pieces of one process, as `gputrace.shardfile.ShardFile` is its shard. ``path(index)`` names each.

    Keeps ``keep_ns``, and at most ``most_bytes`` of it: ``tell`` is told once where that was less.
    """

    def __init__(self, path: Callable[[int], str], keep_ns: int, most_bytes: int, tell: Callable[[str], None]) -> None:
        self._path = path
        self._keep_ns = keep_ns
        self._most_bytes = most_bytes
        self._tell = tell
        self.last_ns = now_ns()  # up to when there is something
        self._old: list[tuple[str, int, int]] = []  # path, bytes, and up to when it goes
        self._index = 0
        self._begun_ns = 0
        self._before = 0
        self._piece: ShardFile | None = None
        self.closed = False
        self.written = 0  # of a shard, which the launcher writes

    @property
    def length(self) -> int:
        """Bytes taken so far."""
        return self._before + (self._piece.length if self._piece else 0)

    @property
    def kept(self) -> int:
        """Bytes taken that are not in a file yet."""
        return self._piece.kept if self._piece else 0

    def write(self, data: bytes) -> int:
        """Take all of ``data``. Raises OSError."""
        assert self._piece is not None
        return self._piece.write(data)

    def flush(self) -> None:
        """Hand everything to the operating system. Raises OSError."""
        if self._piece is not None:
            self._piece.flush()

    @property
    def full(self) -> bool:
        """Is it time for another piece?"""
        return self.long or self.last_ns - self._begun_ns > max(self._keep_ns // _PIECES, _SHORTEST_NS)

    @property
    def long(self) -> bool:
        """Does the piece hold its share of all that may be kept?"""
        return self._piece is not None and self._piece.length > self._most_bytes // _PIECES

    def begin_piece(self, state: bytes) -> None:
        """Go on in a new piece, which begins with ``state``, and remove those that are too old, or too much.

        Raises OSError where no file can be made and the last piece has all it may have.
        """
        path = self._path(self._index)
        try:
            OwnFile(path, _NEW).close()
        except OSError:
            if self._piece is None or self._piece.length > self._most_bytes:
                raise
            return  # the program may have every descriptor in use for now
        if self._piece is not None:
            self._piece.close()
            self._before += self._piece.length
            self._old.append((self._piece.path, self._piece.length, self.last_ns))
        self._index += 1
        self._begun_ns = self.last_ns
        self._piece = ShardFile(path)
        self._piece.write(state)
        self._remove_old()

    def _remove_old(self) -> None:
        left = sum(size for _, size, _ in self._old)
        wanted_ns = self.last_ns - self._keep_ns
        while self._old and (self._old[0][2] < wanted_ns - _SLACK_NS or left > self._most_bytes):
            path, size, until_ns = self._old.pop(0)
            left -= size
            if until_ns >= wanted_ns:
                self._tell(
                    f"process {os.getpid()} records more in {self._keep_ns / 1e9:g} s than it may keep, so less of its"
                    " last seconds is there: --max-size (max_size=) lets it keep more"
                )
            try:
                os.unlink(path)
            except OSError:
                pass  # its folder is gone, or the program gave up its privileges

    def close(self) -> None:
        """Flush, and take no more."""
        self.closed = True
        if self._piece is not None:
            self._piece.close()

    def abandon(self) -> None:
        """Take no more; what was not flushed is not written. For a forked child, whose parent goes on writing."""
        self.closed = True
        if self._piece is not None:
            self._piece.abandon()


class _Row:
    """A track, what is open on it, outermost first, and a counter's last value."""

    __slots__ = ("last", "open", "track")

    def __init__(self, track: tuple[Any, ...]) -> None:
        self.track = track
        self.open: list[Edge] = []
        self.last: Edge | None = None


class Keeping(Exporter):
    """Writes records in place of a format, each a tuple:

    - STATE, process, [(track, [open edges], last edge of a counter or None)], [metadata]: what a piece begins with
    - TRACK, track; CLOSED, track's id; EDGES, track's id, [edges]; METADATA, metadata
    - ALIVE, once a second where there is nothing else: what is open then is not over

    A process is (pid, name, command line, start in ns, order), a track (id, kind, name, parent's id or 0, tid, order,
    merge key, unit, labels).
    """

    def __init__(self, file: KeptFile, recording: Recording, process: Process) -> None:
        self._file = file
        self._rows: dict[int, _Row] = {}
        self._metadata: list[dict[str, Any]] = []
        self._process = (process.pid, process.name, process.command_line, process.start_ns, process.order)
        self._length, self._written_ns = 0, 0  # of the file at the last flush, and when that was
        file.begin_piece(self._state())

    def _state(self) -> bytes:
        rows = [(row.track, row.open, row.last) for row in self._rows.values()]
        return self._record((STATE, self._process, rows, self._metadata))

    def _record(self, values: tuple[Any, ...]) -> bytes:
        """A record as it stands in a piece."""
        try:
            data = dumps(values, _MARSHAL)
        except ValueError:  # it takes no subclass of str, int, ...
            data = dumps(_plain(values), _MARSHAL)
        body = self._file.last_ns.to_bytes(TIME_BYTES, "little") + data
        return len(data).to_bytes(LENGTH_BYTES, "little") + crc32(body).to_bytes(SUM_BYTES, "little") + body

    def open_track(self, track: Track) -> None:
        parent = track.parent.id if track.parent else 0
        labels = dict(track.labels) if track.labels else None
        place = track.tid, track.order, track.merge_key, track.unit, labels
        plain = track.id, track.kind, track.name, parent, *place
        self._rows[track.id] = _Row(plain)
        self._file.write(self._record((TRACK, plain)))

    def close_track(self, track: Track) -> None:
        if self._rows.pop(track.id, None) is not None:
            self._file.write(self._record((CLOSED, track.id)))

    def write(self, track: Track, edges: Iterable[Edge]) -> None:
        edges = list(edges)
        for first in range(0, len(edges), _MOST_EDGES):
            self._write(self._rows[track.id], edges[first : first + _MOST_EDGES])

    def _write(self, row: _Row, edges: list[Edge]) -> None:
        for edge in edges:
            kind = edge[1]
            if kind == BEGIN:
                row.open.append(edge)
            elif kind == END:
                if row.open:
                    row.open.pop()
            elif kind == COUNTER:
                row.last = edge
        newest_ns = edges[-1][5] or edges[-1][0]  # a slice's end
        # No clock of a device may push out what is kept: nothing is later than now.
        self._file.last_ns = max(self._file.last_ns, min(newest_ns, now_ns()))
        self._file.write(self._record((EDGES, row.track[0], edges)))
        if self._file.long:
            self._file.begin_piece(self._state())

    def metadata(self, values: Mapping[str, object]) -> None:
        self._metadata.append(dict(values))
        self._file.write(self._record((METADATA, dict(values))))

    def flush(self) -> None:
        if self._file.length == self._length:
            if now_ns() - self._written_ns < _ALIVE_NS:
                return
            self._file.last_ns = now_ns()
            self._file.write(self._record((ALIVE,)))
        self._length, self._written_ns = self._file.length, now_ns()
        self._file.flush()
        if self._file.full:
            self._file.begin_piece(self._state())
            self._file.flush()

    def close(self) -> None:
        self._file.close()


def _plain(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return [*map(_plain, value)]
    if isinstance(value, dict):
        return {_plain(key): _plain(each) for key, each in value.items()}
    for kind in (bool, int, float, str):
        if isinstance(value, kind):
            return kind(value)
    return None if value is None else str(value)
