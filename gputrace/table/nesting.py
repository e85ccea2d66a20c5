"""Begins and ends to slices: which end closes which begin, how deep each slice lies, and in what.

Two rules. Where a track has begins and ends alone, an end closes the innermost open begin, in order of time and then of
the file. Where a file states whole slices, they nest by their times, and one that overlaps another without lying in it
goes to a lane of its own. It knows no file format.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from gputrace.table.columns import Flags, Ids, Ints

NEVER = np.iinfo(np.int64).max
_ROUNDS = 64


@dataclass
class Matched:
    """Begins and ends of tracks, matched. All arrays are as long as the edges are many.

    ``partner`` is a begin's end, an end's begin, -1 where there is none. ``depth`` and ``parent`` are good for begins.
    """

    partner: Ints
    depth: Ids
    parent: Ints


def match(track: Ids, is_begin: Flags) -> Matched:
    """Match edges that are sorted by track, and within it in order."""
    count = len(track)
    if not count:
        none = np.empty(0, np.int64)
        return Matched(none, none.astype(np.int32), none)
    first = np.empty(count, np.bool_)
    first[0] = True
    np.not_equal(track[1:], track[:-1], out=first[1:])
    group = np.cumsum(first) - 1
    # How many are open after each edge, if ends could go below none; then the lowest that this ever was on the track.
    height = np.cumsum(np.where(is_begin, 1, -1))
    starts = np.flatnonzero(first)
    base = np.zeros(len(starts), np.int64)
    base[1:] = height[starts[1:] - 1]
    height -= base[group]
    step = 2 * count + 1  # so much lower is each track than the one before it: no minimum reaches over from there
    lowest = np.minimum(np.minimum.accumulate(height - group * step) + group * step, 0)
    before = np.empty_like(lowest)
    before[0] = 0
    before[1:] = lowest[:-1]
    before[first] = 0
    lone = lowest < before  # ends that nothing was open for
    level = height - lowest - is_begin

    kept = np.flatnonzero(~lone)
    deepest = int(level[kept].max(initial=0))
    # Radix sort, where levels fit into 16 bits.
    keys = level[kept].astype(np.uint16) if deepest < 1 << 16 else level[kept]
    by_level = kept[np.argsort(keys, kind="stable")]
    # On each level of each track, begins and ends take turns; a begin that never ends is followed by another begin.
    pairs = np.flatnonzero(is_begin[by_level[:-1]] & ~is_begin[by_level[1:]])
    partner = np.full(count, -1, np.int64)
    partner[by_level[pairs]] = by_level[pairs + 1]
    partner[by_level[pairs + 1]] = by_level[pairs]

    # The parent is the last begin before it that lies one level up.
    begins = by_level[is_begin[by_level]]
    parent = np.full(count, -1, np.int64)
    inner = begins[level[begins] > 0]
    places = level[begins] * count + begins
    parent[inner] = begins[np.searchsorted(places, (level[inner] - 1) * count + inner) - 1]
    return Matched(partner, level.astype(np.int32), parent)


def lay_out(track: Ids, ts_ns: Ints, end_ns: Ints) -> tuple[Ids, Ints, Ids]:
    """(depth, parent, lane) of whole slices, sorted by track and begin; of those that begin together, longest first.

    ``parent`` is an index into these arrays. An ``end_ns`` of `NEVER` is one that was not seen.
    """
    parent = _around(track, ts_ns, end_ns)
    depth, lane = _depths(parent), np.zeros(len(track), np.int32)
    inner = np.flatnonzero(parent >= 0)
    overlapping = np.unique(track[inner[end_ns[inner] > end_ns[parent[inner]]]])
    edges = np.searchsorted(track, overlapping), np.searchsorted(track, overlapping, "right")
    for start, stop in zip(*(edge.tolist() for edge in edges), strict=True):
        depths, parents, lanes = _on_lanes(ts_ns[start:stop].tolist(), end_ns[start:stop].tolist())
        depth[start:stop], lane[start:stop] = depths, lanes
        parent[start:stop] = np.where(np.array(parents) >= 0, np.array(parents) + start, -1)
    return depth, parent, lane


def _around(track: Ids, ts_ns: Ints, end_ns: Ints) -> Ints:
    """Of each slice the last before it, on its track, that has not ended when it begins; -1 if there is none.

    All at once: each looks at the slice before it, and where that is over, at what that one has come to so far. So a
    row of neighbours is passed over in steps that double.
    """
    parent = np.arange(-1, len(track) - 1)
    parent[:1] = -1
    parent[1:][track[1:] != track[:-1]] = -1
    going = np.flatnonzero(parent >= 0)
    for _ in range(_ROUNDS):
        going = going[end_ns[parent[going]] <= ts_ns[going]]
        if not len(going):
            return parent
        parent[going] = parent[parent[going]]
        going = going[parent[going] >= 0]
    # What is left lies behind the end of very many at once.
    found, begins, ends = parent.tolist(), ts_ns.tolist(), end_ns.tolist()
    for k in going.tolist():
        last = k - 1
        while last >= 0 and ends[last] <= begins[k]:
            last = found[last]
        found[k] = last
    return np.array(found, np.int64)


def _depths(parent: Ints) -> Ids:
    """How many are around each."""
    depth, outer = (parent >= 0).astype(np.int32), parent.copy()
    going = np.flatnonzero(outer >= 0)
    while len(going):
        above = outer[going]
        depth[going] += depth[above]
        outer[going] = outer[above]
        going = going[outer[going] >= 0]
    return depth


def _on_lanes(begins: list[int], ends: list[int]) -> tuple[list[int], list[int], list[int]]:
    """(depth, parent, lane) of one track's slices, of which some overlap."""
    count = len(begins)
    depths, parents, lane_numbers = [0] * count, [-1] * count, [0] * count
    main: list[tuple[int, int]] = []
    lanes = [main]
    for k, (begin, end) in enumerate(zip(begins, ends, strict=True)):
        while main and main[-1][0] <= begin:
            main.pop()
        number, lane = (0, main) if not main or end <= main[-1][0] else _lane(lanes, begin, end)
        lane_numbers[k] = number
        depths[k] = len(lane)
        parents[k] = lane[-1][1] if lane else -1
        lane.append((end, k))
    return depths, parents, lane_numbers


def _lane(lanes: list[list[tuple[int, int]]], begin: int, end: int) -> tuple[int, list[tuple[int, int]]]:
    """The first lane but the main one that a slice fits into, and its number."""
    for number in range(1, len(lanes)):
        lane = lanes[number]
        while lane and lane[-1][0] <= begin:
            lane.pop()
        if not lane or end <= lane[-1][0]:
            return number, lane
    lanes.append([])
    return len(lanes) - 1, lanes[-1]
