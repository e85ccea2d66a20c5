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
    count = len(track)
    depths, parents, lane_numbers = [0] * count, [-1] * count, [0] * count
    now = -1
    lanes: list[list[tuple[int, int]]] = []
    for k, (on, begin, end) in enumerate(zip(track.tolist(), ts_ns.tolist(), end_ns.tolist(), strict=True)):
        if on != now:
            now = on
            main: list[tuple[int, int]] = []
            lanes = [main]
        while main and main[-1][0] <= begin:
            main.pop()
        if not main:
            main.append((end, k))
        elif end <= main[-1][0]:
            depths[k] = len(main)
            parents[k] = main[-1][1]
            main.append((end, k))
        else:
            number, lane = _lane(lanes, begin, end)
            lane_numbers[k] = number
            depths[k] = len(lane)
            parents[k] = lane[-1][1] if lane else -1
            lane.append((end, k))
    return np.array(depths, np.int32), np.array(parents, np.int64), np.array(lane_numbers, np.int32)


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
