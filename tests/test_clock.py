"""The clock map against anchors of known truth: continuous, increasing, frozen, never further off than it says."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gputrace.clock import PIECES_KEPT, UNKNOWN_SKEW, Anchor, ClockMap, Placed, half_step_ns
from gputrace.devices.simulated import DriftingClock

SECOND = 1_000_000_000


def as_read(elapsed_ns: int) -> int:
    """An elapsed time as a driver tells it: an f32 of milliseconds."""
    return round(struct.unpack("f", struct.pack("f", elapsed_ns / 1e6))[0] * 1e6)


@dataclass
class Edge:
    true_ns: int
    device_ns: int
    error_ns: int
    placed: Placed


class Truth:
    """Two clocks, and a map that is only told what a driver would tell."""

    def __init__(self, clock: DriftingClock) -> None:
        self.clock = clock
        self.map = ClockMap(clock.tick_ns)
        self.now_ns = 0
        self.anchored_ns = 0  # true host time of the last anchor
        self.edges: list[Edge] = []

    def anchor(self, before_ns: int, after_ns: int) -> None:
        """Take an anchor now; the bracket reaches so far to both sides of the truth."""
        device_ns = chained_ns = 0
        if self.map.last is not None:
            elapsed = as_read(self.clock.device_ns(self.now_ns) - self.clock.device_ns(self.anchored_ns))
            if elapsed <= 0:
                return
            device_ns = self.map.last.device_ns + elapsed
            chained_ns = self.map.last.chained_ns + half_step_ns(elapsed)
        self.map.add(Anchor(device_ns, self.now_ns - before_ns, self.now_ns + after_ns, chained_ns))
        self.anchored_ns = self.now_ns

    def place(self, true_ns: int, force: bool = False) -> Placed | None:
        """Read an event that the device passed then against the last anchor, and place it."""
        if self.map.last is None:
            return None
        elapsed = as_read(self.clock.device_ns(true_ns) - self.clock.device_ns(self.anchored_ns))
        device_ns, error_ns = self.map.last.device_ns + elapsed, 2 * half_step_ns(elapsed)
        if force:
            self.map.extend(device_ns)
        placed = self.map.place(device_ns, error_ns)
        if placed is not None:
            self.edges.append(Edge(true_ns, device_ns, error_ns, placed))
        return placed


clocks = st.builds(
    DriftingClock,
    skew_ppm=st.floats(-50, 50),
    wander_ppm=st.floats(0, 10),
    wander_period_s=st.floats(2, 60),
    tick_ns=st.sampled_from([1, 32, 500, 1024]),
    offset_ns=st.integers(0, 10**15),
    origin_ns=st.integers(-(10**10), 0),
)
gaps = st.integers(1, 4 * SECOND) | st.integers(1, 300_000_000) | st.integers(1, 20_000)
halves = st.integers(0, 20_000)
steps = st.lists(
    st.tuples(st.just("anchor"), gaps, halves, halves)
    | st.tuples(st.just("place"), gaps, gaps, st.just(0))
    | st.tuples(st.just("force"), st.integers(1, SECOND), gaps, st.just(0)),
    min_size=10,
    max_size=40,
)


def run(clock: DriftingClock, program: list[tuple[str, int, int, int]]) -> Truth:
    truth = Truth(clock)
    for what, gap_ns, first, second in program:
        truth.now_ns += gap_ns
        if what == "anchor":
            truth.anchor(first, second)
        else:
            truth.place(truth.now_ns - first, force=what == "force")
    return truth


@settings(deadline=None)
@given(clocks, steps)
@example(  # anchors so near to one another that a tick is half of what lies between them
    DriftingClock(skew_ppm=0.0, wander_ppm=0.0, tick_ns=32, offset_ns=0, origin_ns=0),
    [
        ("anchor", 1, 0, 0),
        ("force", 1, 1, 0),
        *[("anchor", 1, 0, 0)] * 4,
        ("force", 3051, 1, 0),
        ("anchor", 1, 0, 0),
        ("anchor", 68, 0, 0),
        ("force", 2635, 1, 0),
    ],
)
def test_the_truth_is_within_the_stated_error(clock: DriftingClock, program: list[tuple[str, int, int, int]]) -> None:
    for edge in run(clock, program).edges:
        assert abs(edge.placed.host_ns - edge.true_ns) <= edge.placed.error_ns


@settings(deadline=None)
@given(clocks, steps)
def test_a_place_once_given_is_given_again(clock: DriftingClock, program: list[tuple[str, int, int, int]]) -> None:
    truth = run(clock, program)
    for edge in truth.edges:
        again = truth.map.place(edge.device_ns, edge.error_ns)
        assert again is not None
        assert again.host_ns == edge.placed.host_ns


@settings(deadline=None)
@given(clocks, steps)
def test_what_is_in_order_on_the_device_is_in_order_on_the_host(
    clock: DriftingClock, program: list[tuple[str, int, int, int]]
) -> None:
    edges = sorted(run(clock, program).edges, key=lambda edge: edge.device_ns)
    for one, next_ in pairwise(edges):
        assert one.placed.host_ns <= next_.placed.host_ns


@settings(deadline=None)
@given(clocks, steps)
def test_pieces_join_and_rise(clock: DriftingClock, program: list[tuple[str, int, int, int]]) -> None:
    clock_map = run(clock, program).map
    for piece in clock_map.pieces:
        assert piece.device0 < piece.device1
        assert piece.host0 <= piece.host1
        assert piece.slope > 0
        assert piece.host1 - 1 <= piece.host_ns(piece.device1) <= piece.host1
        for share in (0, 0.3, 0.5, 1):
            inside = piece.device0 + int((piece.device1 - piece.device0) * share)
            assert piece.error_ns(inside) <= piece.worst_error_ns + 1e-6
    for one, next_ in pairwise(clock_map.pieces):
        assert (one.device1, one.host1) == (next_.device0, next_.host0)


@settings(deadline=None)
@given(st.integers(-(2**55), 2**55))
def test_half_a_step_bounds_what_a_float_loses(elapsed_ns: int) -> None:
    assert abs(as_read(elapsed_ns) - elapsed_ns) <= half_step_ns(elapsed_ns)


def test_nothing_can_be_placed_before_an_anchor() -> None:
    clock_map = ClockMap(1)
    assert clock_map.place(0) is None
    assert clock_map.extend(0) is None
    assert clock_map.reach_ns is None
    assert clock_map.skew_ppm is None


def test_a_time_before_the_first_anchor_waits_for_the_rate() -> None:
    clock_map = ClockMap(1)
    clock_map.add(Anchor(0, SECOND - 100, SECOND + 100))
    assert clock_map.place(-1000) is None
    clock_map.add(Anchor(SECOND, 3 * SECOND // 2, 3 * SECOND // 2))  # no clock is that far off, but it shows the slope
    clock_map.add(Anchor(2 * SECOND, 3 * SECOND, 3 * SECOND))
    placed = clock_map.place(-1000)
    assert placed is not None
    assert not placed.exact
    assert placed.host_ns <= SECOND - 1000


def test_a_time_before_the_only_anchor_is_placed_when_it_must_be() -> None:
    clock_map = ClockMap(1)
    clock_map.add(Anchor(0, SECOND - 100, SECOND + 100))
    clock_map.extend(-1_000_000)
    placed = clock_map.place(-1_000_000)
    assert placed is not None
    assert not placed.exact
    assert placed.host_ns == SECOND - 1_000_000
    assert placed.error_ns >= 100 + 1_000_000 * UNKNOWN_SKEW


def test_skew_is_how_much_faster_the_device_runs() -> None:
    truth = Truth(DriftingClock(skew_ppm=50, origin_ns=0, tick_ns=1))
    for _ in range(3):
        truth.now_ns += SECOND
        truth.anchor(0, 0)
    assert truth.map.skew_ppm == pytest.approx(50, abs=0.2)


def test_a_burst_of_anchors_does_not_spoil_the_rate() -> None:
    """Two wide brackets a moment apart may suggest any slope at all."""
    truth = Truth(DriftingClock(skew_ppm=20, origin_ns=0, tick_ns=1))
    truth.anchor(1000, 1000)
    truth.now_ns += 300_000_000
    truth.anchor(1000, 1000)
    for before_ns, after_ns in ((0, 8000), (8000, 0), (0, 8000), (8000, 0)):
        truth.now_ns += 20_000
        truth.anchor(before_ns, after_ns)
    assert truth.map.skew_ppm == pytest.approx(20, abs=10)
    placed = truth.place(truth.now_ns + 50_000_000, force=True)
    assert placed is not None
    assert abs(placed.host_ns - truth.now_ns - 50_000_000) <= placed.error_ns < 15_000


def test_a_long_pause_does_not_make_what_follows_uncertain() -> None:
    """An hour in one reading is off by 100 us and more: only what lies in that hour may suffer."""
    truth = Truth(DriftingClock(skew_ppm=20, origin_ns=0, tick_ns=1))
    for gap_ns in (SECOND // 4, SECOND // 4, 3600 * SECOND, SECOND // 4, SECOND // 4):
        truth.now_ns += gap_ns
        truth.anchor(1000, 1000)
    placed = truth.place(truth.now_ns - SECOND // 8)
    assert placed is not None
    assert placed.exact
    assert placed.error_ns < 5_000


def test_an_anchor_that_an_extension_has_overtaken_still_serves_for_reading() -> None:
    truth = Truth(DriftingClock(skew_ppm=0, origin_ns=0, tick_ns=1))
    truth.anchor(10, 10)
    truth.now_ns = SECOND
    truth.place(3 * SECOND, force=True)  # nothing was that late; the map has to bear it all the same
    pieces = list(truth.map.pieces)
    truth.now_ns = 2 * SECOND
    truth.anchor(10, 10)
    assert truth.map.pieces == pieces
    assert truth.map.last is not None
    assert truth.map.last.device_ns == 2 * SECOND
    placed = truth.place(5 * SECOND // 2)
    assert placed is not None
    assert abs(placed.host_ns - 5 * SECOND // 2) <= placed.error_ns


def test_an_anchor_behind_an_extension_that_ran_ahead_does_not_turn_the_map_back() -> None:
    clock_map = ClockMap(1)
    clock_map.add(Anchor(0, 0, 0))
    clock_map.extend(SECOND)
    piece = clock_map.add(Anchor(SECOND + 100, SECOND - 500, SECOND - 500))
    assert piece is not None
    assert piece.host1 > piece.host0
    assert piece.error1 >= piece.host1 - (SECOND - 500)


def test_memory_is_flat() -> None:
    truth = Truth(DriftingClock(skew_ppm=20, origin_ns=0))
    for _ in range(5 * PIECES_KEPT):
        truth.now_ns += SECOND // 4
        truth.anchor(500, 500)
    assert len(truth.map.pieces) <= 2 * PIECES_KEPT
    assert truth.map.pieces_made == 5 * PIECES_KEPT - 1
    ancient = truth.map.place(0)  # older than anything kept: approximate, and honest about it
    assert ancient is not None
    assert not ancient.exact
    assert abs(ancient.host_ns - SECOND // 4) <= ancient.error_ns
