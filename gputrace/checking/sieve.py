"""What a rule might find fault with in a Perfetto trace, as it is read: memory grows with the faults, not the slices.

It knows each rule's question well enough to let go of what none of them can mean, and no more: what is left is a trace
of its own, and the rules say the same of it as of the whole. A trace whose events are out of order, and Chrome's JSON,
are read whole.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gputrace.checking.rules import ABSURD_NS
from gputrace.reading import recognise
from gputrace.reading.stream import ByteStream
from gputrace.remote import here
from gputrace.table.args import Args, as_pieces, from_json
from gputrace.table.columns import UNFINISHED, Counters, Flows, Instants, Slices, Strings, as_ids, as_ints
from gputrace.table.events import BEGIN, END, INSTANT, Piece, unmatched
from gputrace.table.nesting import match
from gputrace.table.order import Order
from gputrace.table.perfetto import PerfettoReader
from gputrace.table.read import of_perfetto, read

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gputrace.table.columns import Ints
    from gputrace.table.trace import Trace

_CHUNK_BYTES = 1 << 20
#: So many arrows are put aside before it is asked which lead from a device.
_ARROWS_KEPT = 1 << 16
# Rows of an end of an arrow: its id, and of the event that bears it the time and number; then the slice it lies on.
_ID, _TS, _NUMBER, _SLICE_TS, _SLICE, _TRACK, _NAME, _CATEGORY = range(8)


@dataclass
class Sifted:
    """``trace`` holds what rules may find fault with, of a trace of so many ``slices``."""

    trace: Trace
    slices: int


@dataclass
class _Slice:
    """A slice by what is known of it; ``number`` is the place in the file of the event that began it."""

    number: int
    ts_ns: int
    track: int
    name: int
    category: int
    dur_ns: int = 0


def sifted(path: str | os.PathLike[str]) -> Sifted:
    """A trace for the rules. Raises as `gputrace.read` does."""
    with here(os.fspath(path)) as name:
        if recognise.recognise(name) == recognise.PERFETTO:
            with ByteStream(name) as stream:
                found = _Sieve(stream).run()
            if found is not None:
                return found
        trace = read(name)
    return Sifted(trace, len(trace.slices))


class _Sieve:
    def __init__(self, stream: ByteStream) -> None:
        self._reader = PerfettoReader(stream)
        self._path = stream.path
        self._order = Order()
        self._count = 0  # events so far
        self._slices = self._lone = self._unbound = 0
        self._open: dict[int, list[_Slice]] = {}  # by track, the innermost last
        self._kept: dict[int, _Slice] = {}  # by number
        self._unplaced: dict[int, Any] = {}  # why, by number
        self._weeks: dict[int, tuple[int, int]] = {}  # the first and the last time in each `ABSURD_NS`
        self._ends: NDArray[np.int64] = np.zeros((8, 0), np.int64)  # of arrows, whose others did not come yet
        self._pairs: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
        self._pair_count, self._most_pairs = 0, _ARROWS_KEPT
        self._back: list[tuple[int, int]] = []  # arrows to look at, by numbers of slices

    def run(self) -> Sifted | None:
        """None where it must be read whole. Raises `InputError`."""
        has_arrows = False
        for _ in self._reader.pieces(_CHUNK_BYTES):
            piece = self._reader.gathered.let_go()
            has_arrows |= bool(piece.arrows)
            if not self._take(piece):
                return None
        if has_arrows and not any(name.startswith("gputrace") for name in self._reader.metadata):
            return None  # theirs may have more ends than two
        for opened in self._open.values():
            for each in opened:
                each.dur_ns = UNFINISHED
                self._kept[each.number] = each
        self._sift_arrows()
        self._reader.gathered.problems += unmatched(self._path, self._lone, self._unbound)
        return Sifted(self._trace(), self._slices)

    def _take(self, piece: Piece) -> bool:
        """Sift a piece. False if it is one that cannot be."""
        ts_ns, kind = piece.ts_ns, piece.kind
        edges = np.flatnonzero((kind == BEGIN) | (kind == END))
        self._order.take(piece.track[edges], ts_ns[edges])
        self._note_times(ts_ns[kind != END], *(sample[0] for sample in piece.samples))
        if not self._order.holds or min(self._weeks, default=0) < 0:
            return False
        order = edges[np.argsort(piece.track[edges], kind="stable")]
        is_begin = kind[order] == BEGIN
        self._slices += int(is_begin.sum())
        partner = match(piece.track[order], is_begin).partner
        both = np.flatnonzero(is_begin & (partner >= 0))
        begins, ends = order[both], order[partner[both]]
        begun_at = np.full(len(ts_ns), -1, np.int64)  # where in the piece the slice of each edge began
        begun_at[begins] = begun_at[ends] = begins
        lasted = np.zeros(len(ts_ns), np.int64)
        lasted[begins] = ts_ns[ends] - ts_ns[begins]
        for k in np.flatnonzero(lasted > ABSURD_NS).tolist():
            self._keep(piece, k).dur_ns = int(lasted[k])
        reaching: dict[int, _Slice] = {}  # slices that reach over the piece's edges, by the places of theirs
        for k in order[partner < 0].tolist():
            opened = self._open.setdefault(int(piece.track[k]), [])
            if kind[k] == BEGIN:
                opened.append(self._slice(piece, k))
                reaching[k] = opened[-1]
            elif opened:
                reaching[k] = each = opened.pop()
                each.dur_ns = int(ts_ns[k]) - each.ts_ns
                if each.dur_ns > ABSURD_NS:
                    self._kept[each.number] = each
            else:
                self._lone += 1
        for k, why in piece.args.values("gpu"):
            if kind[k] != INSTANT and (found := reaching.get(k) or self._inside(piece, int(begun_at[k]), lasted)):
                self._kept[found.number] = found
                self._unplaced[found.number] = why
        fits = self._take_arrows(piece, begun_at, reaching) if piece.arrows else True
        self._count += len(ts_ns)
        return fits

    def _slice(self, piece: Piece, k: int) -> _Slice:
        columns = (piece.ts_ns, piece.track, piece.name, piece.category)
        return _Slice(self._count + k, *(int(column[k]) for column in columns))

    def _keep(self, piece: Piece, k: int) -> _Slice:
        each = self._slice(piece, k)
        return self._kept.setdefault(each.number, each)

    def _inside(self, piece: Piece, k: int, lasted: Ints) -> _Slice | None:
        """A slice that began at a place of the piece, and ended in it."""
        if k < 0:
            return None
        each = self._keep(piece, k)
        each.dur_ns = int(lasted[k])
        return each

    def _note_times(self, *times: Ints) -> None:
        for ts_ns in times:
            weeks = ts_ns // ABSURD_NS
            for week in np.unique(weeks).tolist():
                inside = ts_ns[weeks == week]
                first, last = self._weeks.get(week, (int(inside[0]), int(inside[0])))
                self._weeks[week] = min(first, int(inside.min())), max(last, int(inside.max()))

    # Arrows: of those whose ends are both here, which may lead back in time.

    def _take_arrows(self, piece: Piece, begun_at: Ints, reaching: dict[int, _Slice]) -> bool:
        number, id = (np.concatenate([arrow[k] for arrow in piece.arrows]) for k in (0, 1))
        at = begun_at[number]
        count = self._count
        found = np.stack(
            [
                id,
                piece.ts_ns[number],
                count + number,
                piece.ts_ns[at],
                count + at,
                piece.track[number].astype(np.int64),
                piece.name[at].astype(np.int64),
                piece.category[at].astype(np.int64),
            ]
        )
        bound = at >= 0
        for k in np.flatnonzero(~bound).tolist():
            each = reaching.get(int(number[k]))
            if each is not None:
                bound[k] = True
                found[_SLICE_TS:, k] = each.ts_ns, each.number, each.track, each.name, each.category
        self._unbound += int((~bound).sum())
        ends = np.concatenate((self._ends, found[:, bound]), axis=1)
        ends = ends[:, np.lexsort((ends[_NUMBER], ends[_TS], ends[_ID]))]
        firsts = np.flatnonzero(np.diff(ends[_ID], prepend=ends[_ID, :1] - 1))
        sizes = np.diff(firsts, append=ends.shape[1])
        if (sizes > 2).any():
            return False
        self._ends = ends[:, firsts[sizes == 1]]
        pairs = firsts[sizes == 2]
        self._pairs.append((ends[:, pairs], ends[:, pairs + 1]))
        self._pair_count += len(pairs)
        if self._pair_count > self._most_pairs:
            self._sift_arrows()
        return True

    def _sift_arrows(self) -> None:
        """Ours lead from the host to a device: one from a device is turned, or leads back in time."""
        tracks = self._reader.descriptors.tracks()
        on_device = np.array([track.is_gpu for track in tracks], np.bool_)
        for sources, targets in self._pairs:
            back = on_device[sources[_TRACK]] | (sources[_SLICE_TS] > targets[_SLICE_TS])
            for source, target in zip(sources[:, back].T.tolist(), targets[:, back].T.tolist(), strict=True):
                for end in (source, target):
                    each = _Slice(end[_SLICE], end[_SLICE_TS], end[_TRACK], end[_NAME], end[_CATEGORY])
                    self._kept.setdefault(each.number, each)
                self._back.append((source[_SLICE], target[_SLICE]))
        # Where there are many tracks, they are not to be gone through for every few arrows.
        self._pairs, self._pair_count, self._most_pairs = [], 0, max(_ARROWS_KEPT, 2 * len(tracks))

    # What is left.

    def _trace(self) -> Trace:
        strings = Strings(list(self._reader.gathered.strings))
        kept = sorted(self._kept.values(), key=lambda each: (each.ts_ns, each.track, each.number))
        row = {each.number: k for k, each in enumerate(kept)}
        none = np.empty(0, np.int64)
        slices = Slices(
            as_ints([each.ts_ns for each in kept]),
            as_ints([each.dur_ns for each in kept]),
            as_ids([each.name for each in kept]),
            as_ids([each.category for each in kept]),
            as_ids([each.track for each in kept]),
            np.zeros(len(kept), np.int32),
            np.full(len(kept), -1, np.int64),
            np.zeros(len(kept), np.int32),
            strings,
            _why({row[number]: why for number, why in self._unplaced.items()}),
        )
        # The first and last of each week stand for all events, as samples of no counter.
        times = as_ints(sorted({ns for both in self._weeks.values() for ns in both}))
        counters = Counters(times, np.full(len(times), -1, np.int32), np.zeros(len(times), np.float64))
        ids = as_ids(none)
        flows = Flows(*(as_ints([row[pair[k]] for pair in self._back]) for k in (0, 1)))
        return of_perfetto(self._reader, slices, Instants(none, ids, ids, ids, strings, Args.none()), counters, flows)


def _why(unplaced: dict[int, Any]) -> Args:
    """Why a window has no GPU time, as args of rows."""
    if not unplaced:
        return Args.none()
    rows = sorted(unplaced)
    size, data = as_pieces([{"gpu": unplaced[row]} for row in rows])
    return Args(as_ints(rows), np.cumsum(size) - size, size, np.zeros(len(rows), np.int64), data, from_json)
