"""Statistics of many groups of durations at once. It knows no trace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gputrace.table.columns import Floats, Ints


class Grouped:
    """Values by group: arrays of ``count`` groups, group ``k`` being the values whose ``group`` is ``k``.

    A group may be empty: its `total` and `count` are 0, and its other figures NaN, or 0 where they are integers.
    """

    def __init__(self, group: NDArray[Any], values: Ints, groups: int) -> None:
        self._sorted = values[np.lexsort((values, group))]
        self.count: Ints = np.bincount(group, minlength=groups).astype(np.int64)
        self._ends = np.cumsum(self.count)
        self._starts = self._ends - self.count
        sums = np.zeros(len(values) + 1, np.int64)
        np.cumsum(self._sorted, out=sums[1:])
        self.total: Ints = sums[self._ends] - sums[self._starts]

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
        return self._sorted[np.clip(places, 0, len(self._sorted) - 1)]


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
