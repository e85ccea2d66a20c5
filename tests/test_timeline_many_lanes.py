"""Thousands of windows open at once: each has a lane, and none is looked for among all the others."""

from __future__ import annotations

from typing import Any

from gputrace.clock import Anchor, ClockMap
from gputrace.counts import Counts
from gputrace.model import BEGIN, END, LANE, SLICE, Track
from gputrace.timeline import LaneSet, StreamTimeline


class Looks(list[Any]):
    """A list that counts how often it is walked."""

    walks = 0

    def __iter__(self) -> Any:
        Looks.walks += 1
        return super().__iter__()


def lane(index: int) -> Track:
    return Track(index + 1, LANE, "x")


def test_no_walk_over_all_lanes() -> None:
    lanes = LaneSet(lane, Counts())
    lanes.lanes = Looks()
    Looks.walks = 0
    written: list[tuple[int, list[Any]]] = []
    for number in range(5000):
        chosen = lanes.choose(None, number)
        lanes.emit(chosen, (number, BEGIN, "w", None, 0, 0))
        lanes.begin(chosen, number, None)
    for number in reversed(range(5000)):
        lanes.end(number, 10_000 + number, None)
    lanes.flush(lambda track, edges: written.append((track.id, edges)))
    lanes.flush(lambda track, edges: written.append((track.id, edges)))
    assert Looks.walks == 0
    assert len(written) == 5000
    assert [[edge[1] for edge in edges] for _, edges in written] == [[BEGIN, END]] * 5000


def test_lanes_are_used_again_lowest_first() -> None:
    lanes = LaneSet(lane, Counts())

    def begin(number: int, ts: int) -> int:
        chosen = lanes.choose(None, ts)
        chosen.last_ns = ts
        lanes.begin(chosen, number, None)
        return chosen.index

    assert [begin(number, 0) for number in range(4)] == [0, 1, 2, 3]
    for number in (2, 0, 3):
        lanes.end(number, 100_000, None)
    assert begin(4, 50_000) == 4, "no lane is free so early"
    assert [begin(5, 100_000), begin(6, 100_000), begin(7, 100_000)] == [0, 2, 3]
    assert lanes.choose(None, 100_000).index == 5


def test_a_leaf_leaves_its_lane_empty() -> None:
    line = StreamTimeline(lane, Counts())
    clock = ClockMap(1)
    clock.add(Anchor(0, 0, 10))
    clock.add(Anchor(10**9, 10**9, 10**9 + 10))
    line.waiting = [(k * 1000, k * 1000 + 500, k + 1, "leaf", None, None, 0) for k in range(100)]
    line.place(clock, 0, 1000)
    written: list[Any] = []
    line.flush(lambda track, edges: written.append((track.id, [edge[1] for edge in edges])))
    assert written == [(1, [SLICE] * 100)]
