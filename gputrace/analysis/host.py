"""What the host did: in a stretch of time, and how long it waited for devices.

A wait is known by its name, or by its arg "waits" where an operator of PyTorch has it: `item` waits for tensors of a
device alone.
"""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gputrace.analysis.places import HOST
from gputrace.analysis.statistics import covered_ns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gputrace.analysis.places import Place
    from gputrace.table.columns import Flags, Ids, Ints
    from gputrace.table.trace import Trace

#: Names of calls that return when a device has got there. Asynchronous copies and waits between streams do not block.
WAITS = (
    "*[sS]ynchroni[sz]e*",
    "cudaMemcpy",
    "cuMemcpy*_v2",
    "hipMemcpy",
    "hipMemcpyWithStream",
)

#: Operators of which `torch.ops` and `torch.copies` say whether they wait. In other tools' traces a call inside does.
_STATING = ("aten::copy_", "aten::_local_scalar_dense", "aten::nonzero", "aten::equal")


@dataclass(frozen=True)
class Doing:
    """So much of a stretch of time a thread was in a span, and in none inside that."""

    place: str
    name: str
    ns: int


@dataclass(frozen=True)
class Wait:
    """Calls of one thread that waited: how many, none of them in another one, and how long."""

    place: str
    rank: int
    count: int
    total_ns: int


class Host:
    """The host's slices of a trace. ``of_track`` and ``places`` are as `places` gives them."""

    def __init__(self, trace: Trace, of_track: Ids, places: list[Place]) -> None:
        self._slices = trace.slices
        self._places = places
        self._end_ns = trace.slices.end_ns
        self._place = of_track[trace.slices.track_id]
        is_host = np.array([place.side == HOST for place in places], np.bool_)
        self._is_host = is_host[self._place] if len(places) else np.zeros(len(trace.slices), np.bool_)
        self._pids = {place.pid for place in places if place.side == HOST}
        self._pid = np.array([place.pid for place in places], np.int64)

    def doing(self, begin_ns: int, end_ns: int, pid: int, most: int = 3) -> list[Doing]:
        """What its threads did then, the longest first; of one process, where the trace has any of that pid."""
        slices = self._slices
        there = self._is_host & (slices.ts_ns < end_ns) & (self._end_ns > begin_ns)
        rows = np.flatnonzero(there)
        if pid in self._pids:
            rows = rows[self._pid[self._place[rows]] == pid]
        inside = np.minimum(self._end_ns[rows], end_ns) - np.maximum(slices.ts_ns[rows], begin_ns)
        own = inside.copy()
        parent = slices.parent[rows]
        at = np.searchsorted(rows, parent)
        known = np.flatnonzero(parent >= 0)
        known = known[rows[np.minimum(at[known], len(rows) - 1)] == parent[known]]
        np.subtract.at(own, at[known], inside[known])
        found: dict[tuple[int, int], int] = {}
        for place, name, ns in zip(
            self._place[rows].tolist(), slices.name_id[rows].tolist(), own.tolist(), strict=True
        ):
            if ns > 0:
                found[place, name] = found.get((place, name), 0) + ns
        longest = sorted(found.items(), key=lambda item: -item[1])[:most]
        return [Doing(self._places[place].label, slices.strings[name], ns) for (place, name), ns in longest]

    def waiting(self, patterns: Sequence[str]) -> Flags:
        """Which slices are calls that wait."""
        names = self._slices.strings.texts.tolist()
        like = [any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns) for name in names]
        named = np.array(like, np.bool_)
        ended: Flags = self._is_host & ~self._slices.unfinished
        if not len(named):
            return ended
        found: Flags = named[self._slices.name_id]
        found[self._stated()] = True
        return found & ended

    def _stated(self) -> Ints:
        """Operators that say that they wait."""
        slices = self._slices
        ids = [id for id, name in enumerate(slices.strings.texts.tolist()) if name in _STATING]
        if not ids:
            return np.empty(0, np.int64)
        rows = np.intersect1d(np.flatnonzero(np.isin(slices.name_id, ids)), slices.args.rows)
        return np.array([row for row in rows.tolist() if slices.args[row].get("waits") is True], np.int64)

    def waits(self, patterns: Sequence[str], asked: Flags) -> list[Wait]:
        """By thread, the longest first; of slices that are ``asked`` for."""
        waiting = self.waiting(patterns) & asked
        rows: Ints = np.flatnonzero(waiting)
        outer = ~self._inside(waiting, rows)
        found = []
        for number in np.unique(self._place[rows]).tolist():
            of_place = self._place[rows] == number
            here = rows[of_place]
            place = self._places[number]
            total = covered_ns(self._slices.ts_ns[here], self._end_ns[here])
            found.append(Wait(place.label, place.rank, int(np.count_nonzero(outer & of_place)), total))
        return sorted(found, key=lambda wait: -wait.total_ns)

    def _inside(self, chosen: Flags, rows: Ints) -> Flags:
        """Which of ``rows`` lie in a slice of ``chosen``."""
        parent = self._slices.parent
        found = np.zeros(len(rows), np.bool_)
        around = parent[rows]
        while len(known := np.flatnonzero(around >= 0)):
            found[known] |= chosen[around[known]]
            around[known] = parent[around[known]]
        return found
