"""Statistics of many groups of durations at once. It knows no trace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gputrace.table.columns import Floats, Ints


class Grouped:
    """Values by group: arrays of ``count`` groups, group ``k`` being the values whose ``group`` is ``k``. Each is there
    as often as ``times`` says, or once.

    A group may be empty: its `total` and `count` are 0, and its other figures NaN, or 0 where they are integers.
    """

    def __init__(self, group: NDArray[Any], values: Ints, groups: int, times: Ints | None = None) -> None:
        order = np.lexsort((values, group))
        self._sorted = values[order]
        self._behind: Ints | None = None  # how many are there up to each value, itself included
        if times is None:
            self.count: Ints = np.bincount(group, minlength=groups).astype(np.int64)
            summed = self._sorted
        else:
            self._behind = np.cumsum(times[order])
            self.count = np.zeros(groups, np.int64)
            np.add.at(self.count, group, times)
            summed = self._sorted * times[order]
        self._ends = np.cumsum(self.count)
        self._starts = self._ends - self.count
        sums = np.zeros(len(values) + 1, np.int64)
        np.cumsum(summed, out=sums[1:])
        rows = self._row(self._starts), self._row(self._ends)
        self.total: Ints = sums[rows[1]] - sums[rows[0]]

    @property
    def mean(self) -> Floats:
        with np.errstate(invalid="ignore"):
            found: Floats = self.total / self.count
        return found

    def quantile(self, share: float) -> Floats:
        """The value that a ``share`` of the group is below, between two neighbours by where it falls between them."""
        place = self._starts + share * np.maximum(self.count - 1, 0)
        below = np.floor(place).astype(np.int64)
        last = np.maximum(self._ends - 1, 0)
        low, high = self._at(below), self._at(np.minimum(below + 1, last))
        return np.where(self.count > 0, low + (high - low) * (place - below), np.nan)

    @property
    def min(self) -> Ints:
        return np.where(self.count > 0, self._at(self._starts), 0)

    @property
    def max(self) -> Ints:
        return np.where(self.count > 0, self._at(self._ends - 1), 0)

    def _at(self, places: Ints) -> Ints:
        if not len(self._sorted):
            return np.zeros(len(places), np.int64)
        return self._sorted[np.clip(self._row(places), 0, len(self._sorted) - 1)]

    def _row(self, places: Ints) -> Ints:
        """Where the value of a place is, all that are there several times counted as often."""
        if self._behind is None:
            return places
        rows: Ints = np.searchsorted(self._behind, places, side="right")
        return rows


def union(begin_ns: Ints, end_ns: Ints) -> tuple[Ints, Ints]:
    """(begins, ends) of the time that intervals cover, in order, none touching another: overlap is counted once."""
    order = np.argsort(begin_ns, kind="stable")
    begin, reach = begin_ns[order], np.maximum.accumulate(end_ns[order])
    if not len(begin):
        return begin, reach
    apart = np.flatnonzero(begin[1:] > reach[:-1])
    return begin[np.concatenate(([0], apart + 1))], reach[np.concatenate((apart, [len(reach) - 1]))]


def covered_ns(begin_ns: Ints, end_ns: Ints) -> int:
    """How long intervals last, overlap counted once."""
    begin, end = union(begin_ns, end_ns)
    return int((end - begin).sum())
