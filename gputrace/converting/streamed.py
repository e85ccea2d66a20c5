"""A trace, or a part of it, to any exporter as it is read: what is held is what is open.

It takes a `Course`, whose tracks are in order, so an end closes the innermost open slice of its track. A slice that
began before the part does is held back until it is known to reach into it.
"""

from __future__ import annotations

import graphlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from gputrace.converting.drawn import as_int, model_args, runs, with_category
from gputrace.model import BEGIN, COUNTER, END, INSTANT
from gputrace.table import events as gathered
from gputrace.table.nesting import match

if TYPE_CHECKING:
    from gputrace.converting.course import Course
    from gputrace.converting.places import Places
    from gputrace.model import Edge
    from gputrace.table.columns import Flags, Ids, Ints
    from gputrace.table.events import Piece

_FLOWS_KEPT = 1 << 20
_NO_START, _NO_END = np.iinfo(np.int64).min, np.iinfo(np.int64).max


class _Begun:
    """A slice that is open. ``edge`` is None for one that is not of the part."""

    __slots__ = ("edge", "written")

    def __init__(self, edge: Edge | None) -> None:
        self.edge = edge
        self.written = False


class _Row:
    """A track: what is ``open`` on it, the innermost last; and what is ``held`` back, in order of time."""

    __slots__ = ("held", "open")

    def __init__(self) -> None:
        self.open: list[_Begun] = []
        self.held: list[_Begun | Edge] = []


class Streaming:
    """Writes a part: of the tracks by number that are ``wanted``, slices and instants whose name ``is_named``, where
    they overlap the time from ``start_ns`` to ``end_ns``.

    ``edges`` and ``samples`` are how many of each were written; ``arrows_lost`` how many ends of arrows found no room,
    or lie in the file far behind the ends that they should lead to.
    """

    def __init__(
        self,
        course: Course,
        places: Places,
        wanted: Flags,
        is_named: Callable[[str], bool],
        start_ns: int | None,
        end_ns: int | None,
    ) -> None:
        self._course = course
        self._places = places
        self._wanted = wanted
        self._is_named = is_named
        self._start_ns = _NO_START if start_ns is None else start_ns
        self._end_ns = _NO_END if end_ns is None else end_ns
        self._rows: dict[int, _Row] = {}
        self._texts: list[str] = []
        self._named: list[bool] = []  # by a text's id
        self._flows: dict[int, tuple[int, int, int, int]] = {}  # number, time, track and piece of the first end, by id
        self._flow_count = self._pieces = 0
        self._links: set[tuple[int, int]] = set()  # tracks that an arrow of this piece leads from and to
        self.edges = self.samples = self.arrows_lost = 0

    def write(self) -> None:
        """Write all of it. Raises `InputError`, and what exporters raise."""
        for piece, texts in self._course.pieces():
            self._texts = texts
            self._named += map(self._is_named, texts[len(self._named) :])
            self._write(_Piece(piece, self._wanted, self._start_ns, self._end_ns))
            self._pieces += 1
        for track, row in self._rows.items():
            if self._course.last_ns <= self._start_ns:  # those that never ended do not reach into the part
                row.held = [each for each in row.held if _ts_ns(each) >= self._start_ns]
            edges: list[Edge] = []
            _release(row, edges)
            self._put(track, edges)
        self._places.flush()

    def _put(self, track: int, edges: list[Edge]) -> None:
        if edges:
            self._places.put(track, 0, edges)
            self.edges += len(edges)

    def _write(self, piece: _Piece) -> None:
        self._links.clear()
        written = {
            track: edges
            for track, _, rows in runs(piece.order, piece.track, np.zeros_like(piece.track))
            if (edges := self._edges(track, piece, rows))
        }
        for track in self._in_turn(written):
            self._put(track, written[track])
        for ts_ns, of, value in piece.samples:
            kept = self._wanted[of] & (ts_ns >= self._start_ns) & (ts_ns < self._end_ns)
            order = np.flatnonzero(kept)[np.argsort(of[kept], kind="stable")]
            for each, _, at in runs(order, of, np.zeros_like(of)):
                samples = zip(ts_ns[at].tolist(), value[at].tolist(), strict=True)
                self._places.put(each, 0, [(ns, COUNTER, as_int(number), None, 0, 0) for ns, number in samples])
                self.samples += len(at)

    def _in_turn(self, written: dict[int, list[Edge]]) -> list[int]:
        """Tracks, each behind those that arrows lead to it from: of an arrow, the first end that is written is its
        beginning. Where they lead in a circle, they stay as they are.
        """
        graph: dict[int, set[int]] = {track: set() for track in written}
        for source, target in self._links:
            if source in graph and target in graph:
                graph[target].add(source)
        try:
            return list(graphlib.TopologicalSorter(graph).static_order())
        except graphlib.CycleError:
            return list(written)

    def _edges(self, track: int, piece: _Piece, rows: Ints) -> list[Edge]:
        row = self._rows.setdefault(track, _Row())
        ts_ns = piece.ts_ns[rows]
        first, last = np.searchsorted(ts_ns, (self._start_ns, self._end_ns)).tolist()
        out: list[Edge] = []
        if first:
            self._pass_by(track, row, piece, rows[:first], out)
        self._take(track, row, piece, rows[first:last], out)
        if last < len(rows):
            self._pass_by(track, row, piece, rows[last:], out)
        return out

    def _pass_by(self, track: int, row: _Row, piece: _Piece, rows: Ints, out: list[Edge]) -> None:
        """What lies before the part, or behind it: what closes or opens nothing else there is all that matters."""
        kind = piece.kind[rows]
        rows = rows[(kind == gathered.BEGIN) | (kind == gathered.END)]
        is_begin = piece.kind[rows] == gathered.BEGIN
        alone = match(np.zeros(len(rows), np.int32), is_begin).partner < 0
        for k in rows[alone & ~is_begin].tolist():
            ns = int(piece.ts_ns[k])
            self._end(row, (ns, END, None, piece.one_args(k), self._flow(piece, k, ns, track), 0), out)
        for k in rows[alone & is_begin].tolist():
            ns, name = int(piece.ts_ns[k]), int(piece.name[k])
            begun = _Begun(None)
            if ns < self._start_ns and self._named[name]:
                args = with_category(piece.one_args(k), self._texts[int(piece.category[k])])
                begun.edge = (ns, BEGIN, self._texts[name], args, self._flow(piece, k, ns, track), 0)
                row.held.append(begun)
            row.open.append(begun)

    def _take(self, track: int, row: _Row, piece: _Piece, rows: Ints, out: list[Edge]) -> None:
        """What lies in the part."""
        texts, named, args, flows = self._texts, self._named, piece.args, piece.flows
        columns = (rows, *(column[rows] for column in (piece.ts_ns, piece.kind, piece.name, piece.category)))
        for k, ns, kind, name, category in zip(*(column.tolist() for column in columns), strict=True):
            flow = self._flow(piece, k, ns, track) if k in flows else 0
            if kind == gathered.END:
                self._end(row, (ns, END, None, args.get(k), flow, 0), out)
                continue
            edge: Edge | None = None
            if named[name]:
                found = with_category(args.get(k), texts[category])
                edge = (ns, kind, texts[name], found, flow if kind == BEGIN else 0, 0)
            if kind == INSTANT:
                if edge:
                    self._add(row, ns, edge, out)
                continue
            begun = _Begun(edge)
            row.open.append(begun)
            if edge:
                self._add(row, ns, begun, out)

    def _end(self, row: _Row, edge: Edge, out: list[Edge]) -> None:
        if not row.open:
            return  # nothing is open: the course counted it
        begun = row.open.pop()
        if begun.edge is None:
            return
        if not begun.written and edge[0] <= self._start_ns and begun.edge[0] < self._start_ns:
            if row.held[-1] is begun:
                row.held.pop()
            else:
                row.held.remove(begun)
            return
        self._add(row, edge[0], edge, out)

    def _add(self, row: _Row, ns: int, each: _Begun | Edge, out: list[Edge]) -> None:
        """Once the part has begun, all that is held back reaches into it; right at its beginning that is not sure."""
        row.held.append(each)
        if ns > self._start_ns:
            _release(row, out)

    def _flow(self, piece: _Piece, k: int, ns: int, track: int) -> int:
        """The number of the arrow that an edge is an end of; 0 for none."""
        ids = piece.flows.get(k)
        if not ids:
            return 0
        self.arrows_lost += len(ids) - 1
        first = self._flows.pop(ids[0], None)
        if first is None:
            if len(self._flows) >= _FLOWS_KEPT:
                del self._flows[next(iter(self._flows))]
            self._flow_count += 1
            self._flows[ids[0]] = self._flow_count, ns, track, self._pieces
            return self._flow_count
        number, first_ns, first_track, first_piece = first
        if first_piece == self._pieces:
            self._links.add((first_track, track) if first_ns <= ns else (track, first_track))
        elif ns < first_ns:  # it is written by now as what the arrow leads from
            self.arrows_lost += 1
            return 0
        return number


def _release(row: _Row, out: list[Edge]) -> None:
    for each in row.held:
        if isinstance(each, _Begun):
            each.written = True
            assert each.edge is not None
            out.append(each.edge)
        else:
            out.append(each)
    row.held.clear()


def _ts_ns(each: _Begun | Edge) -> int:
    edge = each.edge if isinstance(each, _Begun) else each
    assert edge is not None
    return edge[0]


class _Piece:
    """A piece's columns; ``order`` are its events of wanted tracks, by track. ``args`` are of those in the part."""

    def __init__(self, piece: Piece, wanted: Flags, start_ns: int, end_ns: int) -> None:
        self.ts_ns, self.kind, self.name, self.category = piece.ts_ns, piece.kind, piece.name, piece.category
        self.track: Ids = piece.track
        self.samples = piece.samples
        self._args = piece.args
        kept = wanted[piece.track] if len(piece.track) else np.zeros(0, np.bool_)
        rows = np.flatnonzero(kept)
        self.order: Ints = rows[np.argsort(piece.track[rows], kind="stable")]
        inside = kept & (piece.ts_ns >= start_ns) & (piece.ts_ns < end_ns)
        self.args = model_args(piece.args.renumbered(np.where(inside, np.arange(len(inside)), -1)))
        self.flows: dict[int, list[int]] = {}
        for number, id, _ in piece.arrows:
            for k, each in zip(number.tolist(), id.tolist(), strict=True):
                if kept[k]:
                    self.flows.setdefault(k, []).append(each)

    def one_args(self, k: int) -> dict[str, Any] | None:
        """Those of any event."""
        return model_args({k: found}).get(k) if (found := self._args[k]) else None
