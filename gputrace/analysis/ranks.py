"""How ranks differ: which is the slowest at each span, and by how much."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gputrace.analysis.statistics import Grouped

if TYPE_CHECKING:
    from gputrace.analysis.spans import Spans


@dataclass
class RankSpread:
    """A span that several ranks have: total time by rank in ns, and which rank has the most and the least.

    ``spread`` is how much more the slowest has than the fastest, as a share of what the fastest has; None where that is
    nothing.
    """

    side: str
    name: str
    total_ns: dict[int, int]
    median_ns: dict[int, float]
    slowest: int
    fastest: int

    @property
    def lost_ns(self) -> int:
        return self.total_ns[self.slowest] - self.total_ns[self.fastest]

    @property
    def spread(self) -> float | None:
        fastest_ns = self.total_ns[self.fastest]
        return self.lost_ns / fastest_ns if fastest_ns else None


def rank_spreads(spans: Spans) -> list[RankSpread]:
    """Of spans that two ranks or more have, the most time apart first. Spans of no known rank are left out."""
    ranks = sorted({place.rank for place, _ in spans.keys if place.rank >= 0})
    if len(ranks) < 2:
        return []
    names: dict[tuple[str, str], int] = {}
    group_of = np.full(len(spans), -1, np.int64)
    for id, (place, name) in enumerate(spans.keys):
        if place.rank >= 0:
            number = names.setdefault((place.side, name), len(names))
            group_of[id] = number * len(ranks) + ranks.index(place.rank)
    span, dur_ns, times = spans.durations()
    group = group_of[span]
    known = np.flatnonzero(group >= 0)
    groups = len(names) * len(ranks)
    by_group = Grouped(group[known], dur_ns[known], groups, None if times is None else times[known])
    medians = by_group.quantile(0.5)
    totals = np.zeros(groups, np.int64)
    ranked = np.flatnonzero(group_of >= 0)
    np.add.at(totals, group_of[ranked], spans.total_ns[ranked])
    found = []
    for (side, name), number in names.items():
        at = [number * len(ranks) + k for k in range(len(ranks)) if by_group.count[number * len(ranks) + k]]
        if len(at) < 2:
            continue
        total = {ranks[k % len(ranks)]: int(totals[k]) for k in at}
        median = {ranks[k % len(ranks)]: float(medians[k]) for k in at}
        slowest, fastest = max(total, key=total.__getitem__), min(total, key=total.__getitem__)
        found.append(RankSpread(side, name, total, median, slowest, fastest))
    return sorted(found, key=lambda each: -each.lost_ns)
