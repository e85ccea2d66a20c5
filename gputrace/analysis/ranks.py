"""How ranks differ: which is late at each span, and by how much."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gputrace.analysis.statistics import Grouped
from gputrace.reading.collectives import LEFT_TOGETHER

if TYPE_CHECKING:
    from gputrace.analysis.spans import Spans


@dataclass
class RankSpread:
    """A span that several ranks have: total time by rank in ns, and which rank has the most and the least.

    ``late`` is the rank that the others lose time by: the one that takes longest, but in what all ranks leave together
    the one that spends the least, since the others wait there for it to come. ``spread`` is how much more the longest
    takes than the shortest, as a share of what the shortest takes; None where that is nothing.
    """

    side: str
    name: str
    total_ns: dict[int, int]
    median_ns: dict[int, float]
    late: int
    longest: int
    shortest: int

    @property
    def lost_ns(self) -> int:
        return self.total_ns[self.longest] - self.total_ns[self.shortest]

    @property
    def spread(self) -> float | None:
        shortest_ns = self.total_ns[self.shortest]
        return self.lost_ns / shortest_ns if shortest_ns else None


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
        longest, shortest = max(total, key=total.__getitem__), min(total, key=total.__getitem__)
        late = shortest if LEFT_TOGETHER.search(name) else longest
        found.append(RankSpread(side, name, total, median, late, longest, shortest))
    return sorted(found, key=lambda each: -each.lost_ns)
