"""The columns of a trace: slices, instants, counters, arrows, clocks, and what could not be read.

Arrays of one table are of one length, a row each. Times are int64, in ns on the trace's clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gputrace.table.args import Args

    Ints = NDArray[np.int64]
    Ids = NDArray[np.int32]
    Floats = NDArray[np.float64]
    Flags = NDArray[np.bool_]
    Objects = NDArray[np.object_]

#: What `Slices.dur_ns` is where a slice never ended in the trace.
UNFINISHED = -1


@dataclass(frozen=True)
class Problem:
    """Something of a file that could not be read as it stands.

    ``kind`` is one word for it, the same for all its like ("torn", "no begin", "bad time", ...). ``place`` is the
    offset in the unzipped file, in bytes, or -1 where it is of no one place; ``count`` how many such there are.
    """

    path: str
    kind: str
    what: str
    place: int = -1
    count: int = 1

    def __str__(self) -> str:
        where = f" (at byte {self.place:,})" if self.place >= 0 else ""
        return f"{self.path}: {self.what}{where}"


class Strings:
    """Texts by number: ``texts[id]``. Ids are dense, from 0."""

    def __init__(self, texts: list[str]) -> None:
        self.texts: Objects = np.array(texts, dtype=object) if texts else np.empty(0, object)

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, id: int) -> str:
        return str(self.texts[id])


class _Named:
    """What tables of named events share; their columns are the tables' own."""

    ts_ns: Ints
    name_id: Ids
    category_id: Ids
    strings: Strings

    def __len__(self) -> int:
        return len(self.ts_ns)

    @cached_property
    def names(self) -> Objects:
        """Each one's name, as str."""
        return self.strings.texts[self.name_id]

    @cached_property
    def categories(self) -> Objects:
        """Each one's category, as str."""
        return self.strings.texts[self.category_id]


@dataclass
class Slices(_Named):
    """Slices in order of ``ts_ns``; of those that begin together, on one track, the outer first.

    ``dur_ns`` is `UNFINISHED` where no end was seen. ``name_id`` and ``category_id`` are ids into ``strings`` (of no
    category: ""), ``track_id`` an index of the trace's ``tracks``. ``parent`` is the row of the innermost slice around
    it on its track, -1 if there is none, and ``depth`` how many there are. ``lane`` is above 0 for one that overlaps
    another of its track without lying inside it: parent and depth are of its lane alone.
    """

    ts_ns: Ints
    dur_ns: Ints
    name_id: Ids
    category_id: Ids
    track_id: Ids
    depth: Ids
    parent: Ints
    lane: Ids
    strings: Strings
    args: Args

    @property
    def unfinished(self) -> Flags:
        """Which slices never ended."""
        found: Flags = self.dur_ns == UNFINISHED
        return found

    @cached_property
    def end_ns(self) -> Ints:
        """When each ended; an unfinished one, where the trace does: at the last time it holds."""
        ends = self.ts_ns + self.dur_ns
        last = max(int(ends.max(initial=0)), int(self.ts_ns.max(initial=0)))
        return np.where(self.unfinished, last, ends)

    @cached_property
    def self_ns(self) -> Ints:
        """Each slice's time less that of the slices right inside it. 0 for an unfinished one."""
        own = np.where(self.unfinished, 0, self.dur_ns)
        inside = np.flatnonzero((self.parent >= 0) & ~self.unfinished)
        spent = np.zeros(len(self), np.int64)
        np.add.at(spent, self.parent[inside], self.dur_ns[inside])
        return np.where(self.unfinished, 0, own - spent)


@dataclass
class Instants(_Named):
    """Moments, in order of ``ts_ns``. Ids are as in `Slices`."""

    ts_ns: Ints
    name_id: Ids
    category_id: Ids
    track_id: Ids
    strings: Strings
    args: Args


@dataclass
class Counters:
    """Samples of counters, in order of ``ts_ns``; ``track_id`` says of which, and its track in what unit."""

    ts_ns: Ints
    track_id: Ids
    value: Floats

    def __len__(self) -> int:
        return len(self.ts_ns)


@dataclass
class Flows:
    """Arrows: from the slice of row ``source`` to that of row ``target``."""

    source: Ints
    target: Ints

    def __len__(self) -> int:
        return len(self.source)


@dataclass
class Clocks:
    """The host's clocks as they were read together, in order of ``boottime_ns``."""

    boottime_ns: Ints
    monotonic_ns: Ints
    realtime_ns: Ints

    def __len__(self) -> int:
        return len(self.boottime_ns)


def as_ints(values: Any) -> Ints:
    return np.asarray(values, np.int64)


def as_ids(values: Any) -> Ids:
    return np.asarray(values, np.int32)


def as_floats(values: Any) -> Floats:
    return np.asarray(values, np.float64)
