"""Events as a reader finds them, gathered as columns; and the tables made of them.

A reader gives chunks in the order of the file. Every event has a number, its place in all of them; args and arrows go
by that. It knows no file format.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gputrace.table.args import Args
from gputrace.table.columns import UNFINISHED, Counters, Flows, Instants, Problem, Slices, Strings
from gputrace.table.nesting import NEVER, lay_out, match

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gputrace.table.args import Decode
    from gputrace.table.columns import Ids, Ints

# Kinds of event. A WHOLE is a slice whose duration is stated; an ARROW is an end of one, bound to a slice by its time.
BEGIN, END, INSTANT, WHOLE, ARROW = 1, 2, 3, 4, 5
# Ways of an arrow's end: it leads on from the last of its id and to the next; it is the first; it is the last.
STEP, FIRST, LAST = 0, 1, 2


class Numbers(dict[Any, int]):
    """Numbers for values, in the order they are first asked for."""

    def __missing__(self, value: Any) -> int:
        number = self[value] = len(self)
        return number


@dataclass
class Chunk:
    """Some events. ``dur_ns`` is of WHOLE ones; None if there are none among them."""

    ts_ns: Ints
    kind: NDArray[np.int8]
    track: Ids
    name: Ids
    category: Ids | None = None
    dur_ns: Ints | None = None


@dataclass
class Piece:
    """What a reader found in a piece of a file, in its order: events by column, ``args`` and ``arrows`` (event, id,
    way) by their places among them, ``samples`` (time, track, value) of counters.
    """

    ts_ns: Ints
    kind: NDArray[np.int8]
    track: Ids
    name: Ids
    category: Ids
    args: Args
    arrows: list[tuple[Ints, Ints, Ints]]
    samples: list[tuple[Ints, Ids, NDArray[np.float64]]]


def unmatched(path: str, lone: int, unbound: int) -> list[Problem]:
    """What is wrong where so many ends close nothing, and so many ends of arrows lie on no slice."""
    found = []
    if lone:
        found.append(Problem(path, "no begin", f"{lone:,} ends close nothing that is open", count=lone))
    if unbound:
        found.append(Problem(path, "no slice", f"{unbound:,} ends of arrows lie on no slice", count=unbound))
    return found


class Gathered:
    """Everything a reader found. Names and categories are ids of ``strings``."""

    def __init__(self, path: str, decode: Decode) -> None:
        self.path = path
        self.decode = decode
        self.strings = Numbers()
        self.no_name = self.strings[""]
        self.problems: list[Problem] = []
        self.count = 0
        self._chunks: list[Chunk] = []
        self._args: list[tuple[Ints, Ints, Ints, Ints]] = []
        self._data = bytearray()
        self._arrows: list[tuple[Ints, Ints, Ints]] = []
        self._samples: list[tuple[Ints, Ids, NDArray[np.float64]]] = []
        #: Events of kind ARROW whose end is the next slice to begin.
        self.following: set[int] = set()

    def add(self, chunk: Chunk) -> int:
        """Returns the number of its first event."""
        first = self.count
        self._chunks.append(chunk)
        self.count += len(chunk.ts_ns)
        return first

    def add_args(self, number: Ints, size: Ints, table: Ints, data: bytes) -> None:
        """Pieces of args that lie in ``data`` one after another, of events by number."""
        ends = np.cumsum(size) + len(self._data)
        self._data += data
        self._args.append((number, ends - size, size, table))

    def add_arrows(self, number: Ints, id: Ints, way: Ints) -> None:
        """Ends of arrows, of events by number. Ids are 64 bits of whatever meaning."""
        self._arrows.append((number, id, way))

    def add_samples(self, ts_ns: Ints, track: Ids, value: NDArray[np.float64]) -> None:
        self._samples.append((ts_ns, track, value))

    def problem(self, kind: str, what: str, place: int = -1, count: int = 1) -> None:
        self.problems.append(Problem(self.path, kind, what, place, count))

    def tables(self, base_ns: int = 0) -> tuple[Slices, Instants, Counters, Flows]:
        """All of it, as tables, with ``base_ns`` added to every time; what was gathered is let go of on the way."""
        strings = Strings(["" if text is None else str(text) for text in self.strings])  # JSON may have any value there
        ts, kind, track, name, category, dur = self._columns()
        ts += base_ns
        made = _Made(ts, kind, track, dur)
        self.problems += unmatched(self.path, made.lone, 0)
        # Every event's row in the table that it is in: an end's is that of the slice it ends.
        row = made.slice_row(len(ts))
        at_instants = np.flatnonzero(kind == INSTANT)
        at_instants = at_instants[np.argsort(ts[at_instants], kind="stable")]
        instant_row = np.full(len(ts), -1, np.int64)
        instant_row[at_instants] = np.arange(len(at_instants))
        args = self._all_args()
        number = made.number
        slices = Slices(
            made.ts_ns,
            made.dur_ns,
            name[number],
            category[number],
            track[number],
            made.depth,
            made.parent,
            made.lane,
            strings,
            args.renumbered(row),
        )
        instants = Instants(
            ts[at_instants],
            name[at_instants],
            category[at_instants],
            track[at_instants],
            strings,
            args.renumbered(instant_row),
        )
        bound = _bind(self.following, ts, kind, track, slices, number, row)
        return slices, instants, self._counters(base_ns), self._flows(ts, bound)

    def let_go(self) -> Piece:
        """What was gathered since this was last asked; all of it is forgotten, but what the ids of texts mean."""
        ts_ns, kind, track, name, category, _ = self._columns()
        piece = Piece(ts_ns, kind, track, name, category, self._all_args(), self._arrows, self._samples)
        self._data, self._arrows, self._samples, self.count = bytearray(), [], [], 0
        return piece

    def _columns(self) -> tuple[Ints, NDArray[np.int8], Ids, Ids, Ids, Ints | None]:
        chunks, self._chunks = self._chunks, []
        if not chunks:
            none = np.empty(0, np.int32)
            return np.empty(0, np.int64), np.empty(0, np.int8), none, none, none, None
        whole = any(chunk.dur_ns is not None for chunk in chunks)
        return (
            np.concatenate([chunk.ts_ns for chunk in chunks]),
            np.concatenate([chunk.kind for chunk in chunks]),
            np.concatenate([chunk.track for chunk in chunks]),
            np.concatenate([chunk.name for chunk in chunks]),
            np.concatenate([np.zeros(len(c.ts_ns), np.int32) if c.category is None else c.category for c in chunks]),
            np.concatenate([np.zeros(len(c.ts_ns), np.int64) if c.dur_ns is None else c.dur_ns for c in chunks])
            if whole
            else None,
        )

    def _all_args(self) -> Args:
        parts, self._args = self._args, []
        if not parts:
            return Args.none()
        number, at, size, table = (np.concatenate([part[k] for part in parts]) for k in range(4))
        order = np.argsort(number, kind="stable")
        return Args(number[order], at[order], size[order], table[order], self._data, self.decode)

    def _counters(self, base_ns: int) -> Counters:
        parts, self._samples = self._samples, []
        if not parts:
            return Counters(np.empty(0, np.int64), np.empty(0, np.int32), np.empty(0, np.float64))
        ts, track, value = (np.concatenate([part[k] for part in parts]) for k in range(3))
        order = np.argsort(ts, kind="stable")
        return Counters(ts[order] + base_ns, track[order], value[order])

    def _flows(self, ts: Ints, row: Ints) -> Flows:
        parts, self._arrows = self._arrows, []
        none = np.empty(0, np.int64)
        if not parts:
            return Flows(none, none)
        number, id, way = (np.concatenate([part[k] for part in parts]) for k in range(3))
        here = row[number]
        lost = int(np.count_nonzero(here < 0))
        if lost:
            self.problems += unmatched(self.path, 0, lost)
            number, id, way, here = (column[here >= 0] for column in (number, id, way, here))
        order = np.lexsort((number, ts[number], id))
        id, way, here = id[order], way[order], here[order]
        same = id[1:] == id[:-1]
        joined = np.flatnonzero(same & (way[1:] != FIRST) & (way[:-1] != LAST))
        # An id's two ends alone, the last before the first: it leads back in time, and says so.
        alone = np.concatenate(([True], ~same))[:-1] & np.concatenate((~same, [True]))[1:]
        back = np.flatnonzero(same & alone & (way[:-1] == LAST) & (way[1:] == FIRST))
        return Flows(np.concatenate((here[joined], here[back + 1])), np.concatenate((here[joined + 1], here[back])))


class _Made:
    """Slices of events: columns in their final order, ``number`` being the event that began each."""

    def __init__(self, ts: Ints, kind: NDArray[np.int8], track: Ids, dur: Ints | None) -> None:
        edges = np.flatnonzero((kind == BEGIN) | (kind == END))
        order = edges[_by_track(track[edges], ts[edges])]
        is_begin = kind[order] == BEGIN
        matched = match(track[order], is_begin)
        self.lone = int(np.count_nonzero(~is_begin & (matched.partner < 0)))
        at = np.flatnonzero(is_begin)
        number, ends = order[at], matched.partner[at]
        self._ends = order[ends[ends >= 0]], number[ends >= 0]  # ends, and the begins they close
        begin_ns = ts[number]
        lasted = np.where(ends >= 0, ts[order[ends]] - begin_ns, UNFINISHED)
        slot = np.full(len(order), -1, np.int64)
        slot[at] = np.arange(len(at))
        inside = matched.parent[at]
        parent = np.where(inside >= 0, slot[inside], -1)
        depth, lane = matched.depth[at], np.zeros(len(at), np.int32)

        whole = np.flatnonzero(kind == WHOLE)
        if len(whole):
            assert dur is not None
            number, begin_ns, lasted, depth, parent, lane = _with_whole(
                (number, begin_ns, lasted, depth, parent, lane), whole, ts, dur, track
            )
        order = np.argsort(begin_ns, kind="stable")  # outer before inner, as they are by now on each track
        back = np.empty(len(order), np.int64)
        back[order] = np.arange(len(order))
        self.number = number[order]
        self.ts_ns = begin_ns[order]
        self.dur_ns = lasted[order]
        self.depth = depth[order]
        self.lane = lane[order]
        parent = parent[order]
        self.parent = np.where(parent >= 0, back[parent], -1) if len(parent) else parent

    def slice_row(self, count: int) -> Ints:
        row = np.full(count, -1, np.int64)
        row[self.number] = np.arange(len(self.number))
        end, begin = self._ends
        row[end] = row[begin]
        return row


def _with_whole(found: tuple[Any, ...], whole: Ints, ts: Ints, dur: Ints, track: Ids) -> tuple[Any, ...]:
    """Slices of begins and ends, and those that were stated whole, which nest among them by time."""
    number, begin_ns, lasted, depth, parent, lane = found
    mixed = np.isin(track[number], np.unique(track[whole]))
    apart, joined = np.flatnonzero(~mixed), np.flatnonzero(mixed)
    numbers = np.concatenate((number[joined], whole))
    begins, durs = ts[numbers], np.concatenate((lasted[joined], dur[whole]))
    ends = np.where(durs == UNFINISHED, NEVER, begins + durs)
    on = track[numbers]
    order = np.lexsort((numbers, -ends, begins, on))
    numbers, begins, durs = numbers[order], begins[order], durs[order]
    depths, parents, lanes = lay_out(on[order], begins, ends[order])
    # Parents are places among these; both kinds stand behind one another from here on.
    slot = np.full(len(number), -1, np.int64)
    slot[apart] = np.arange(len(apart))
    outer = parent[apart]
    return (
        np.concatenate((number[apart], numbers)),
        np.concatenate((begin_ns[apart], begins)),
        np.concatenate((lasted[apart], durs)),
        np.concatenate((depth[apart], depths)),
        np.concatenate((np.where(outer >= 0, slot[outer], -1), np.where(parents >= 0, parents + len(apart), -1))),
        np.concatenate((lane[apart], lanes)),
    )


def _by_track(track: Ids, ts: Ints) -> Ints:
    """The order by track, then time, then as they stand."""
    # Sixteen bits are sorted by radix, which is several times quicker.
    keys = track.astype(np.uint16) if track.max(initial=0) < 1 << 16 else track
    order = np.argsort(keys, kind="stable")
    steps = np.diff(ts[order])
    if (steps[track[order][1:] == track[order][:-1]] >= 0).all():  # mostly so: tools write as time goes on
        return order
    return np.lexsort((ts, track))


def _bind(
    following: set[int], ts: Ints, kind: NDArray[np.int8], track: Ids, slices: Slices, number: Ints, row: Ints
) -> Ints:
    """``row``, and where an ARROW is the slice that it lies on or leads to: the last to begin before it in the order of
    time and file, or one around that; for one of ``following``, the next.
    """
    arrows = np.flatnonzero(kind == ARROW)
    if not len(arrows):
        return row
    row = row.copy()
    events = np.concatenate((number, arrows))
    order = events[np.lexsort((events, ts[events], track[events]))]
    begins = kind[order] != ARROW
    places = np.arange(len(order))
    last = np.maximum.accumulate(np.where(begins, places, -1))
    following_place = np.minimum.accumulate(np.where(begins, places, len(order))[::-1])[::-1]
    end_ns = slices.end_ns
    for place in np.flatnonzero(~begins).tolist():
        arrow = int(order[place])
        after, before = int(following_place[place]), int(last[place])
        if arrow in following:
            if after < len(order) and track[order[after]] == track[arrow]:
                row[arrow] = row[order[after]]
            continue
        found = -1
        for k in range(before, max(before - 64, -1), -1):
            if not begins[k] or track[order[k]] != track[arrow]:
                continue
            found = int(row[order[k]])
            while found >= 0 and end_ns[found] < ts[arrow]:
                found = int(slices.parent[found])
            if found >= 0:
                break
        if found < 0 and after < len(order) and (track[order[after]], ts[order[after]]) == (track[arrow], ts[arrow]):
            found = int(row[order[after]])  # it stands before its slice in the file
        row[arrow] = found
    return row
