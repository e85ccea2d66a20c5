"""Durations of spans by name and place, gathered of any number of traces. It keeps no trace.

Memory is bounded: durations that are there several times are kept once, with how often, and where there are more
different ones than `MOST`, only their first bits are. Whether that is so depends on all that was gathered, and not on
its order, nor on how it was divided: many processes say together what one says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gputrace.analysis.places import places

if TYPE_CHECKING:
    from gputrace.analysis.places import Place
    from gputrace.table.columns import Flags, Ids, Ints
    from gputrace.table.trace import Trace

#: So many different durations are kept, of all spans together: 170 MB.
MOST = 1 << 23
#: Of each that is kept beyond, so many bits, which is to within this share of it.
_BITS = 11
PRECISION = 2.0**-_BITS

_POWERS = 1 << np.arange(63, dtype=np.int64)


class Spans:
    """``keys[id]`` is (place, name) of a span. By id, exactly: ``count`` of slices that ended, their ``total_ns``,
    ``self_ns``, ``min_ns`` and ``max_ns``, 0 where none did, and how many are ``unfinished``.

    Rows of different traces that have the same label are one place.
    """

    def __init__(self) -> None:
        self.keys: list[tuple[Place, str]] = []
        self.approximate = False
        self._ids: dict[tuple[str, str], int] = {}
        self._chunks: list[tuple[Ids, Ints, Ints | None]] = []  # (id, duration, how often)
        self._rows = 0
        none = np.empty(0, np.int64)
        self.count = self.total_ns = self.self_ns = self.min_ns = self.max_ns = self.unfinished = none

    def add(self, trace: Trace, keep: Flags | None = None) -> Ids:
        """Take the slices of a trace, or those that ``keep`` says. Returns the id of each, in the order of its rows."""
        slices = trace.slices
        rows = np.arange(len(slices)) if keep is None else np.flatnonzero(keep)
        of_track, found = places(trace)
        names = max(len(slices.strings), 1)
        pairs = of_track[slices.track_id[rows]].astype(np.int64) * names + slices.name_id[rows]
        there = np.flatnonzero(np.bincount(pairs, minlength=1)) if len(found) * names < 1 << 24 else np.unique(pairs)
        ids = np.array([self._id(found[int(p) // names], slices.strings[int(p) % names]) for p in there], np.int32)
        span = ids[np.searchsorted(there, pairs)] if len(ids) else np.empty(0, np.int32)
        self._make_room()
        ended = ~slices.unfinished[rows]
        id, dur_ns = span[ended], slices.dur_ns[rows[ended]]
        first = np.zeros(len(self), np.bool_)
        first[id] = True
        first &= self.count == 0
        self.min_ns[first], self.max_ns[first] = np.iinfo(np.int64).max, np.iinfo(np.int64).min
        np.minimum.at(self.min_ns, id, dur_ns)
        np.maximum.at(self.max_ns, id, dur_ns)
        self.count += np.bincount(id, minlength=len(self))
        self.unfinished += np.bincount(span[~ended], minlength=len(self))
        np.add.at(self.total_ns, id, dur_ns)
        np.add.at(self.self_ns, id, slices.self_ns[rows[ended]])
        self._keep(id, dur_ns, None)
        return span

    def merge(self, other: Spans) -> None:
        """Take what another gathered, as if it had been gathered here, after all that was."""
        ids = np.array([self._id(place, name) for place, name in other.keys], np.int32)
        self._make_room()
        there, known = other.count > 0, self.count[ids] > 0
        for mine, theirs, least in (
            (self.min_ns, other.min_ns, np.minimum),
            (self.max_ns, other.max_ns, np.maximum),
        ):
            both = np.where(known, least(mine[ids], theirs), theirs)
            mine[ids] = np.where(there, both, mine[ids])
        for name in ("count", "total_ns", "self_ns", "unfinished"):
            getattr(self, name)[ids] += getattr(other, name)
        self.approximate |= other.approximate
        for id, dur_ns, times in other._chunks:
            self._keep(ids[id], dur_ns, times)

    def durations(self) -> tuple[Ids, Ints, Ints | None]:
        """(id, duration in ns, how often) of slices that ended; each once where the last is None. To within `PRECISION`
        where that is `approximate`.
        """
        if self._rows > MOST or (self.approximate and len(self._chunks) > 1):
            self._compact()
        if len(self._chunks) != 1:
            self._chunks = [_joined(self._chunks)]
        return self._chunks[0]

    def _id(self, place: Place, name: str) -> int:
        id = self._ids.setdefault((place.label, name), len(self.keys))
        if id == len(self.keys):
            self.keys.append((place, name))
        return id

    def __len__(self) -> int:
        return len(self.keys)

    def _make_room(self) -> None:
        more = np.zeros(len(self) - len(self.count), np.int64)
        if len(more):
            for name in ("count", "total_ns", "self_ns", "min_ns", "max_ns", "unfinished"):
                setattr(self, name, np.concatenate((getattr(self, name), more)))

    def _keep(self, id: Ids, dur_ns: Ints, times: Ints | None) -> None:
        self._chunks.append((id, dur_ns, times))
        self._rows += len(id)
        if self._rows > 2 * MOST:
            self._compact()

    def _compact(self) -> None:
        """Each duration once; and where there are too many of them, its first bits alone."""
        id, dur_ns, times = _joined(self._chunks)
        while True:
            if self.approximate:
                dur_ns = rounded(dur_ns)
            id, dur_ns, times = _once(id, dur_ns, times)
            if self.approximate or len(id) <= MOST:
                break
            self.approximate = True
        self._chunks, self._rows = [(id, dur_ns, times)], len(id)


def rounded(dur_ns: Ints) -> Ints:
    """Durations by their first bits, each the middle of all that have the same: to within `PRECISION`."""
    shift = np.maximum(np.searchsorted(_POWERS, dur_ns, side="right") - _BITS, 0)
    return (dur_ns >> shift << shift) + ((np.int64(1) << shift) >> 1)


def _joined(chunks: list[tuple[Ids, Ints, Ints | None]]) -> tuple[Ids, Ints, Ints | None]:
    id = np.concatenate([np.empty(0, np.int32), *(chunk[0] for chunk in chunks)])
    dur_ns = np.concatenate([np.empty(0, np.int64), *(chunk[1] for chunk in chunks)])
    if all(chunk[2] is None for chunk in chunks):
        return id, dur_ns, None
    times = [np.ones(len(chunk[0]), np.int64) if chunk[2] is None else chunk[2] for chunk in chunks]
    return id, dur_ns, np.concatenate(times)


def _once(id: Ids, dur_ns: Ints, times: Ints | None) -> tuple[Ids, Ints, Ints]:
    order = np.lexsort((dur_ns, id))
    id, dur_ns = id[order], dur_ns[order]
    starts = np.flatnonzero(np.concatenate(([True], (id[1:] != id[:-1]) | (dur_ns[1:] != dur_ns[:-1]))))
    often = np.diff(starts, append=len(id)) if times is None else np.add.reduceat(times[order], starts)
    return id[starts], dur_ns[starts], often.astype(np.int64)
