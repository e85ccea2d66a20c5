"""Whether events follow one another in time, as they come some at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gputrace.table.columns import Ids, Ints

BEFORE_ALL = np.iinfo(np.int64).min


class Order:
    """Whether times of each track ``holds`` their order."""

    def __init__(self) -> None:
        self.holds = True
        self._last: NDArray[np.int64] = np.zeros(0, np.int64)  # by track

    def take(self, track: Ids, ts_ns: Ints) -> None:
        """Look at some more events, in the order of the file."""
        if not len(track):
            return
        order = np.argsort(track, kind="stable")
        track, ts_ns = track[order], ts_ns[order]
        known = np.full(max(len(self._last), int(track[-1]) + 1), BEFORE_ALL)
        known[: len(self._last)] = self._last
        changes = np.flatnonzero(track[1:] != track[:-1]) + 1
        firsts, lasts = np.append(0, changes), np.append(changes, len(track)) - 1
        back = ts_ns[1:] < ts_ns[:-1]
        back[changes - 1] = False
        self.holds &= not back.any() and bool((ts_ns[firsts] >= known[track[firsts]]).all())
        known[track[lasts]] = ts_ns[lasts]
        self._last = known
