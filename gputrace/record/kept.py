"""A trace of the last seconds, from what the processes keep of them (`gputrace.keeping`).

Each process's pieces are read in order, twice: once for how far they go, once to draw. What began earlier and goes on
is drawn whole, from its beginning, and a counter shows since when all is there. It reads what running processes write
on, too, up to the last whole record, and knows no format.
"""

from __future__ import annotations

import contextlib
import os
from binascii import crc32
from marshal import loads

from gputrace.keeping import CLOSED, EDGES, LENGTH_BYTES, METADATA, STATE, SUM_BYTES, TIME_BYTES, TRACK
from gputrace.model import BEGIN, COUNTER, COUNTER_TRACK, END, SLICE, STREAM, Process, Track
from gputrace.record import alive
from gputrace.record.replace import replacing
from gputrace.regions import RECORDED
from gputrace.shards import NUMBER_LIMIT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import IO, Any

    from gputrace.model import Edge, Exporter
    from gputrace.shards import ShardFolder

_HEAD = LENGTH_BYTES + SUM_BYTES + TIME_BYTES


class Drawn:
    """What was drawn of a process: ``slices`` counts windows, too; ``unfinished`` those open at its end."""

    def __init__(self) -> None:
        self.slices = 0
        self.windows = 0
        self.unfinished = 0


def keeps(folder: ShardFolder) -> int:
    """How many ns of its end a recording keeps; 0: all of it."""
    value = folder.options.get("last_ns", 0)
    return value if isinstance(value, int) else 0


def draw_shards(folder: ShardFolder, exporter: type[Exporter], running: set[int]) -> dict[int, Drawn]:
    """Write each process's shard, anew if there is one, of the time before the last that any of them recorded.

    ``running`` are the pids of those that still run. Returns what was drawn, by shard number. Raises OSError, and what
    the exporter raises.
    """
    ends = _ends(folder)
    from_ns = max(ends.values(), default=0) - keeps(folder)
    wanted = _alive_since(from_ns, folder, ends, running)
    found = {}
    for number in ends:
        with open(folder.drawn_path(number), "wb", opener=_private) as file:
            if number in wanted:  # else it is emptied of what an earlier draw may have left
                found[number] = _draw(folder, number, exporter, from_ns, lambda file=file: file)  # type: ignore[misc]
    return found


def write_dump(
    folder: ShardFolder,
    output: str,
    exporter: type[Exporter],
    until_ns: int,
    running: set[int],
    *,
    gzip: bool,
    metadata: Mapping[str, object],
) -> Drawn:
    """Write what all processes keep of the time before ``until_ns`` to ``output``, and leave them to go on.

    ``running``: see `draw_shards`. Raises OSError, and what the exporter raises.
    """
    from_ns = until_ns - keeps(folder)
    total = Drawn()
    with replacing(output, folder.recording.id[:12] + ".dumped", gzip=gzip) as write:
        write(exporter.header(folder.recording, folder.snapshots(), metadata))
        for number in _alive_since(from_ns, folder, _ends(folder), running):
            drawn = _draw(folder, number, exporter, from_ns, lambda: _Into(write))
            for name, count in vars(drawn).items():
                setattr(total, name, getattr(total, name) + count)
        write(exporter.footer())
    return total


class _Into:
    """The part of one process in a file that others write to, too."""

    closed = False

    def __init__(self, write: Callable[[bytes], int]) -> None:
        self._write = write

    def write(self, data: bytes) -> int:
        """Take all of it: what the other returns may count compressed bytes."""
        self._write(data)
        return len(data)

    def flush(self) -> None:
        pass

    close = flush


def _draw(
    folder: ShardFolder, number: int, exporter: type[Exporter], from_ns: int, open_file: Callable[[], Any]
) -> Drawn:
    taken = set(folder.numbers())
    # From the top, where no process will look for long: an exporter may need one.
    spare = (each for each in range(NUMBER_LIMIT - 1, 0, -1) if each not in taken)
    drawing = _Drawing(folder, number, exporter, from_ns, open_file, lambda: next(spare))
    for values in _records(folder, number):
        drawing.take(values)
    drawing.end()
    return drawing.drawn


def _ends(folder: ShardFolder) -> dict[int, int]:
    """Up to when there is something of each process, in ns, by shard number."""
    return {number: _end(folder.kept_paths(number)) for number in folder.kept_numbers()}


def _end(paths: list[str]) -> int:
    for path in reversed(paths):  # the last may be all damage
        with contextlib.ExitStack() as stack:
            times = [ns for file in _open_all([path], stack) for ns, data in _frames(file) if data is not None]
        if times:
            return max(times)
    return 0


def _alive_since(from_ns: int, folder: ShardFolder, ends: dict[int, int], running: set[int]) -> list[int]:
    """The processes of which something belongs into the trace: what was open in another is over."""
    images = dict(folder.writers())
    return [n for n, end_ns in ends.items() if end_ns >= from_ns or alive.pid_of(images.get(n, "")) in running]


def _records(folder: ShardFolder, number: int) -> Iterator[tuple[Any, ...]]:
    """All records of a process, up to the first that is damaged, which is noted in ``folder.damage``."""
    with contextlib.ExitStack() as stack:
        # All before any is read: its process removes the oldest meanwhile.
        files = _open_all(folder.kept_paths(number), stack)
        for file in files:
            for ns, data in _frames(file):
                if data is not None:
                    yield loads(data)
                elif ns or file is not files[-1] or folder.report(number).get("ended"):
                    folder.damage[os.path.basename(file.name)] = "is damaged"
                    return


def _open_all(paths: list[str], stack: contextlib.ExitStack) -> list[IO[bytes]]:
    files: list[IO[bytes]] = []
    for path in paths:
        with contextlib.suppress(FileNotFoundError):  # it has become too old
            files.append(stack.enter_context(open(path, "rb", opener=_no_link)))  # noqa: SIM115 - the stack's
    return files


def _frames(file: IO[bytes]) -> Iterator[tuple[int, bytes | None]]:
    """Up to when there is something by each record, in ns, and the record, None if it is damaged. At the end of a piece
    that ends within one, as by a kill, 0 and None.
    """
    while head := file.read(_HEAD):
        length, time_ns = int.from_bytes(head[:LENGTH_BYTES], "little"), head[-TIME_BYTES:]
        data = file.read(length)
        if len(head) < _HEAD or len(data) < length:
            yield 0, None
            return
        sound = crc32(time_ns + data) == int.from_bytes(head[LENGTH_BYTES:-TIME_BYTES], "little")
        yield int.from_bytes(time_ns, "little"), data if sound else None


class _Row:
    """A track, what is open on it where the drawing begins, and whether it is announced and that is drawn yet."""

    def __init__(self, track: Track, parent: _Row | None) -> None:
        self.track = track
        self.parent = parent
        self.open: list[Edge] = []
        self.value: Edge | None = None
        self.announced = False
        self.drawn = False
        self.depth = 0  # of what is drawn


class _Drawing:
    """One process, from its records to an exporter, which it opens with the first thing that there is to draw."""

    def __init__(
        self,
        folder: ShardFolder,
        number: int,
        exporter: type[Exporter],
        from_ns: int,
        open_file: Callable[[], IO[bytes]],
        claim_number: Callable[[], int],
    ) -> None:
        self.drawn = Drawn()
        self._folder = folder
        self._number = number
        self._format = exporter
        self._from_ns = from_ns
        self._open_file = open_file
        self._claim_number = claim_number
        self._process: tuple[Any, ...] | None = None
        self._metadata: list[dict[str, Any]] = []
        self._rows: dict[int, _Row] = {}
        self._next_id = 1
        self._exporter: Exporter | None = None
        self._first_ns = from_ns
        self._recorded: list[Edge] = []  # of the counter that shows what was recorded, drawn last

    def take(self, values: tuple[Any, ...]) -> None:
        """The next record."""
        kind = values[0]
        if kind == EDGES:
            self._take_edges(self._rows[values[1]], values[2])
        elif kind == TRACK:
            self._add(values[1])
        elif kind == CLOSED:
            row = self._rows.pop(values[1], None)
            if row is not None and row.announced and self._exporter is not None:
                self._exporter.close_track(row.track)
        elif kind == METADATA:
            self._metadata.append(values[1])
        elif kind == STATE and self._process is None:  # else it says what is known
            _, self._process, rows, self._metadata = values
            for track, edges, value in rows:
                row = self._add(track)
                row.open, row.value = edges, value

    def _add(self, values: tuple[Any, ...]) -> _Row:
        id, kind, name, parent, tid, order, merge_key, unit, labels = values
        above = self._rows.get(parent)
        track = Track(
            id,
            kind,
            name,
            parent=None if above is None else above.track,
            tid=tid,
            order=order,
            merge_key=merge_key,
            unit=unit,
            labels=labels,
        )
        row = self._rows[id] = _Row(track, above)
        self._next_id = max(self._next_id, id + 1)
        return row

    def _take_edges(self, row: _Row, edges: list[Edge]) -> None:
        first = 0
        for edge in edges:  # in order of time
            kind = edge[1]
            if (edge[5] if kind == SLICE else edge[0]) >= self._from_ns:
                break
            if kind == BEGIN:
                row.open.append(edge)
            elif kind == END:
                del row.open[-1:]
            elif kind == COUNTER:
                row.value = edge
            first += 1
        if first < len(edges):
            self._write(row, edges[first:])

    def _write(self, row: _Row, edges: list[Edge]) -> None:
        if row.track.kind == COUNTER_TRACK and row.track.name == RECORDED and row.track.parent is None:
            self._recorded += edges
            return
        exporter = self._begin(row)
        for edge in edges:
            kind = edge[1]
            if kind in (BEGIN, SLICE):
                self.drawn.slices += 1
                self.drawn.windows += row.track.kind == STREAM
                self._first_ns = min(self._first_ns, edge[0])
            row.depth += (kind == BEGIN) - (kind == END)
        exporter.write(row.track, edges)

    def _begin(self, row: _Row) -> Exporter:
        """The exporter, once it has the row and what was open there."""
        exporter = self._opened()
        if not row.drawn:
            self._announce(row)
            row.drawn = True
            before, row.open = row.open, []
            if row.value is not None:
                before = [(self._from_ns, *row.value[1:])]
            if before:
                self._write(row, before)
        return exporter

    def _announce(self, row: _Row) -> None:
        if not row.announced:
            if row.parent is not None:
                self._announce(row.parent)
            self._opened().open_track(row.track)
            row.announced = True

    def _opened(self) -> Exporter:
        if self._exporter is None:
            assert self._process is not None
            pid, name, command_line, start_ns, order = self._process
            process = Process(self._number, pid, name, command_line, start_ns, self._claim_number, order)
            self._exporter = self._format(self._open_file(), self._folder.recording, process)
        return self._exporter

    def end(self) -> None:
        """No record follows: draw what was open all the while, and what tells of the rest."""
        for row in list(self._rows.values()):
            if not row.drawn and row.open:
                self._begin(row)
            self.drawn.unfinished += row.depth
        if self._exporter is None:
            return
        self._draw_recorded(self._exporter)
        for values in self._metadata:
            self._exporter.metadata(values)
        self._exporter.close()

    def _draw_recorded(self, exporter: Exporter) -> None:
        """The counter that shows where something is left out: 0 before the kept time, of which not all is there."""
        rows = [row for row in self._rows.values() if row.track.kind == COUNTER_TRACK and row.track.name == RECORDED]
        edges = self._recorded
        if rows and rows[0].value is not None:
            edges = [(self._from_ns, *rows[0].value[1:]), *edges]
        if self._first_ns < self._from_ns:
            on = [] if edges and edges[0][0] == self._from_ns else [(self._from_ns, COUNTER, 1, None, 0, 0)]
            edges = [(self._first_ns, COUNTER, 0, None, 0, 0), *on, *edges]
        if edges:
            track = rows[0].track if rows else Track(self._next_id, COUNTER_TRACK, RECORDED)
            exporter.open_track(track)
            exporter.write(track, edges)


def _no_link(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)
