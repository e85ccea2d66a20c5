"""Durations of spans by name and place, gathered of any number of traces. It keeps no trace."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gputrace.analysis.places import places

if TYPE_CHECKING:
    from gputrace.analysis.places import Place
    from gputrace.table.columns import Ids, Ints
    from gputrace.table.trace import Trace


class Spans:
    """``keys[id]`` is (place, name) of a span; `columns` has one row a slice, traces one after another.

    Rows of different traces that have the same label are one place.
    """

    def __init__(self) -> None:
        self.keys: list[tuple[Place, str]] = []
        self._ids: dict[tuple[str, str], int] = {}
        self._chunks: list[tuple[Ids, Ints, Ints]] = []
        self._unfinished: list[Ids] = []

    def add(self, trace: Trace) -> Ids:
        """Take the slices of a trace. Returns the id of each, in the order of its rows."""
        slices = trace.slices
        of_track, found = places(trace)
        names = max(len(slices.strings), 1)
        pairs = of_track[slices.track_id].astype(np.int64) * names + slices.name_id
        there = np.flatnonzero(np.bincount(pairs, minlength=1)) if len(found) * names < 1 << 24 else np.unique(pairs)
        ids = np.array([self._id(found[int(p) // names], slices.strings[int(p) % names]) for p in there], np.int32)
        span = ids[np.searchsorted(there, pairs)] if len(ids) else np.empty(0, np.int32)
        ended = ~slices.unfinished
        self._chunks.append((span[ended], slices.dur_ns[ended], slices.self_ns[ended]))
        self._unfinished.append(span[~ended])
        return span

    def _id(self, place: Place, name: str) -> int:
        id = self._ids.setdefault((place.label, name), len(self.keys))
        if id == len(self.keys):
            self.keys.append((place, name))
        return id

    def __len__(self) -> int:
        return len(self.keys)

    def columns(self) -> tuple[Ids, Ints, Ints]:
        """(id, duration, self time) of every slice that ended, in ns."""
        if len(self._chunks) != 1:
            none = (np.empty(0, np.int32), np.empty(0, np.int64), np.empty(0, np.int64))
            chunks = [*self._chunks, none]
            self._chunks = [
                (
                    np.concatenate([chunk[0] for chunk in chunks]),
                    np.concatenate([chunk[1] for chunk in chunks]),
                    np.concatenate([chunk[2] for chunk in chunks]),
                )
            ]
        return self._chunks[0]

    def unfinished(self) -> Ints:
        """How many slices of each span never ended."""
        ids = np.concatenate([*self._unfinished, np.empty(0, np.int32)])
        return np.bincount(ids, minlength=len(self)).astype(np.int64)
