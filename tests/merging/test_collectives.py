"""Hosts lined up by what their ranks leave together, against the truth of a simulation."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from gputrace.merging.collectives import LEAST_MATCHES, fit_pair
from gputrace.merging.merge import Options, merge
from gputrace.merging.writing import Outcome
from gputrace.model import SLICE, THREAD, ClockSnapshot, Process
from tests.exporters.recordings import BASE, Script
from tests.merging.making import Drawn, Host, write_trace

#: What the merge may be off by at most, anywhere in the run.
MOST_ERROR_NS = 20_000
STEP_NS = 50_000_000
RUN_S = 120


class Rank:
    """A rank on a host of its own, whose clock is off by ``offset_ns`` at the start and runs ``ppm`` fast."""

    def __init__(
        self, number: int, offset_ns: int = 0, ppm: float = 0.0, *, late: int = 0, stepped_ns: int = 0
    ) -> None:
        self.number = number
        self.offset_ns = offset_ns
        self.ppm = ppm
        self.late = late  # collectives that it had not begun to record yet
        self.stepped_ns = stepped_ns

    def clock(self, true_ns: int) -> int:
        """What its clock shows ``true_ns`` after the run began."""
        shown = true_ns + self.offset_ns + round(true_ns * self.ppm * 1e-6)
        return shown + (self.stepped_ns if true_ns > RUN_S * 4 * 10**8 else 0)


def simulate(tmp_path: Path, ranks: list[Rank], suffix: str = ".pftrace", steps: int = RUN_S * 5) -> list[Path]:
    """Each rank's trace of one run: all-reduces that all leave at once, give or take; and marks at known true times."""
    chance = random.Random(7)
    scripts = []
    for rank in ranks:
        script = Script(0, 100)  # the same pid on every host
        script.process = Process(
            0, 100, f"rank {rank.number} · node{rank.number} · 100", [], BASE, lambda: 1, rank.number
        )
        script.track(THREAD, "MainThread", tid=100)
        script.track(THREAD, "marks", tid=101)
        scripts.append(script)
    true_ns = 2_000_000_000
    for step in range(steps):
        true_ns += round(RUN_S * 1e9 / steps * chance.uniform(0.8, 1.2))
        enters = [true_ns - round(chance.expovariate(1 / 3e6)) for _ in ranks]
        for rank, script, enter in zip(ranks, scripts, enters, strict=True):
            leave = true_ns + 8_000 + round(chance.expovariate(1 / 15_000))  # woken up some us later
            if chance.random() < 0.1:  # a straggler
                leave += round(chance.expovariate(1 / 2e6))
            mark = true_ns + 30_000_000
            if step >= rank.late:
                name = "gloo:all_reduce"
                script.add(script.tracks[0], (rank.clock(enter), SLICE, name, None, 0, rank.clock(leave)))
            script.add(
                script.tracks[1], (rank.clock(mark), SLICE, f"mark {step}", None, 0, rank.clock(mark + 1_000_000))
            )
    paths = []
    for rank, script in zip(ranks, scripts, strict=True):
        host = Host(f"node{rank.number}", boottime_ns=10**12 * (rank.number + 1))
        # Its wall clock is as wrong as the clock it is read from: nothing in the snapshots tells.
        path = write_trace(tmp_path / f"rank{rank.number}{suffix}", host, script, number=rank.number)
        paths.append(path)
    return paths


def spread_of_marks(path: Path) -> float:
    """By how many ns marks that were made at one true time lie apart, at worst."""
    marks: dict[str, list[int]] = {}
    for each in Drawn(path).slices:
        if each.name and each.name.startswith("mark"):
            marks.setdefault(each.name, []).append(each.ts)
    assert len(marks) >= RUN_S
    return max(max(times) - min(times) for times in marks.values())


def aligned(tmp_path: Path, paths: list[Path], output: str = "all.pftrace") -> Outcome:
    return merge(tuple(map(str, paths)), str(tmp_path / output), Options(align="collectives"))


RANKS = [Rank(0), Rank(1, 1_000_000_000, 50), Rank(2, -730_000_000, -50), Rank(3, 12_345, 17.5, late=3)]


@pytest.mark.parametrize("suffix", [".pftrace", ".json"])
@pytest.mark.parametrize("output", ["all.pftrace", "all.json"])
def test_offsets_of_a_second_and_skews_of_50_ppm(tmp_path: Path, suffix: str, output: str) -> None:
    paths = simulate(tmp_path, RANKS, suffix)
    outcome = aligned(tmp_path, paths, output)
    assert outcome.problems == []
    assert spread_of_marks(tmp_path / output) <= MOST_ERROR_NS
    fits = [alignment.fit for alignment in outcome.alignments]
    for rank, fit in zip(RANKS[1:], fits, strict=True):
        assert fit is not None
        assert fit.skew * 1e6 == pytest.approx(-rank.ppm, abs=0.2)
        assert 0 < fit.residual_ns < 60_000
        assert fit.residual_ns < fit.worst_ns


def test_without_it_the_wall_clocks_errors_show(tmp_path: Path) -> None:
    paths = simulate(tmp_path, RANKS, steps=RUN_S)
    merge(tuple(map(str, paths)), str(tmp_path / "all.pftrace"))
    assert spread_of_marks(tmp_path / "all.pftrace") > 1_700_000_000


def test_the_residual_is_in_the_trace(tmp_path: Path) -> None:
    outcome = aligned(tmp_path, simulate(tmp_path, RANKS[:2]))
    found = Drawn(tmp_path / "all.pftrace").engine.query(
        "select name, str_value from metadata where name like '%aligned%'"
    )
    assert found == [{"name": "cr-aligned.rank1.pftrace", "str_value": outcome.notes[-1]}]
    assert " us, 95 % within " in outcome.notes[-1]


def test_slices_keep_their_lengths_and_their_nesting(tmp_path: Path) -> None:
    paths = simulate(tmp_path, RANKS[:2])
    aligned(tmp_path, paths)
    before = sorted(s.dur for path in paths for s in Drawn(path).slices)
    after = sorted(s.dur for s in Drawn(tmp_path / "all.pftrace").slices)
    assert len(before) == len(after)
    assert max(abs(a - b) / b for a, b in zip(after, before, strict=True)) < 1e-4


@pytest.mark.parametrize("stepped_ns", [STEP_NS, -STEP_NS])
def test_a_clock_that_was_set_is_told(tmp_path: Path, stepped_ns: int) -> None:
    ranks = [Rank(0), Rank(1, 400_000_000, 30, stepped_ns=stepped_ns)]
    outcome = aligned(tmp_path, simulate(tmp_path, ranks))
    [problem] = outcome.problems
    assert problem.startswith("rank1.pftrace (node1): its clock was set by ")
    [alignment] = outcome.alignments
    assert alignment.fit is not None
    assert alignment.fit.step_ns == pytest.approx(stepped_ns, abs=MOST_ERROR_NS)
    # The longer part lies where it should: the step came two fifths in.
    marks = [s for s in Drawn(tmp_path / "all.pftrace").slices if s.name in ("mark 500", "mark 590")]
    assert len(marks) == 4
    for name in ("mark 500", "mark 590"):
        first, second = (s.ts for s in marks if s.name == name)
        assert abs(first - second) <= MOST_ERROR_NS


def test_a_wall_clock_that_was_set_is_seen_in_the_snapshots(tmp_path: Path) -> None:
    paths = simulate(tmp_path, RANKS[:2], steps=RUN_S)
    host = Host("node1", boottime_ns=2 * 10**12)
    snapshots = host.snapshots((0, 10**10, 2 * 10**10))
    snapshots = [
        *snapshots[:2],
        *(ClockSnapshot(s.boottime_ns, s.monotonic_ns, s.realtime_ns - STEP_NS) for s in snapshots[2:]),
    ]
    script = Script(0, 100)
    script.add(script.thread(), (0, SLICE, "x", None, 0, 10))
    paths[1] = write_trace(tmp_path / "set.pftrace", host, script, number=1, snapshots=snapshots)
    outcome = merge(tuple(map(str, paths)), str(tmp_path / "all.pftrace"))
    assert [n for n in outcome.notes if n.startswith(f"{paths[1]}: the wall clock of node1 was set by -0.050000 s")]


def test_nothing_to_align_by(tmp_path: Path) -> None:
    paths = simulate(tmp_path, RANKS[:2], steps=RUN_S)
    options = Options(align="collectives", collectives=("nccl*",))
    outcome = merge(tuple(map(str, paths)), str(tmp_path / "all.pftrace"), options)
    why = "no collectives to align by ('nccl*') on any side"
    assert outcome.problems == [f"rank1.pftrace (node1): {why}; placed by its wall clock"]
    assert outcome.notes == []
    assert outcome.merged == list(map(str, paths))


def test_too_few_and_on_one_side_alone(tmp_path: Path) -> None:
    outcome = aligned(tmp_path, simulate(tmp_path, RANKS[:2], steps=LEAST_MATCHES - 1))
    [problem] = outcome.problems
    assert "too few collectives to align by: 3 of one name on both sides, and it takes 4; placed by" in problem
    paths = simulate(tmp_path, RANKS[:2], steps=RUN_S)
    script = Script(0, 100)
    script.add(script.thread(), (0, SLICE, "all_reduced", None, 0, 10), (20, SLICE, "step", None, 0, 30))
    paths[1] = write_trace(tmp_path / "none.pftrace", Host("node1", boottime_ns=2 * 10**12), script, number=1)
    options = Options(align="collectives", collectives=("*:all_reduce", "tep"))  # names are meant whole
    outcome = merge(tuple(map(str, paths)), str(tmp_path / "all.pftrace"), options)
    [problem] = outcome.problems
    assert "(node1): no collectives to align by ('*:all_reduce' or 'tep') in it; placed by its wall clock" in problem


def test_one_host_alone_needs_no_aligning_and_that_is_said(tmp_path: Path) -> None:
    host = Host("node0")
    paths = []
    for number in range(2):
        script = Script(number, 100 + number)
        script.add(script.thread(), (0, SLICE, "all_reduce", None, 0, 10))
        paths.append(write_trace(tmp_path / f"rank{number}.pftrace", host, script, number=number))
    outcome = aligned(tmp_path, paths)
    assert outcome.problems == []
    assert outcome.notes == ["nothing to align: all traces are of one host's clock, which is exact already"]


def test_a_name_of_ones_own(tmp_path: Path) -> None:
    paths = simulate(tmp_path, RANKS[:2], steps=RUN_S)
    options = Options(align="collectives", collectives=("*all_red*",))
    assert merge(tuple(map(str, paths)), str(tmp_path / "all.pftrace"), options).problems == []
    assert spread_of_marks(tmp_path / "all.pftrace") <= 3 * MOST_ERROR_NS  # fewer to go by


# --- the line ---------------------------------------------------------------------------------------------------------


def test_too_few_to_tell() -> None:
    times = np.arange(LEAST_MATCHES - 1) * 1e9
    assert fit_pair(times, times + 5) is None


def test_a_few_give_an_offset_and_no_skew() -> None:
    times = np.arange(LEAST_MATCHES) * 1e9
    fit = fit_pair(times + 5_000_000, times)
    assert fit is not None
    assert (fit.offset_ns, fit.skew, fit.matches) == (5_000_000, 0.0, LEAST_MATCHES)


def test_noise_alone_has_no_skew_and_no_step() -> None:
    for seed in range(50):
        chance = np.random.default_rng(seed)
        times = np.cumsum(chance.uniform(0.9e7, 1.1e7, 200))
        fit = fit_pair(times + chance.exponential(20_000, 200), times + chance.exponential(20_000, 200))
        assert fit is not None
        assert abs(fit.skew) < 20e-6
        assert fit.step_ns == 0
        assert abs(fit.offset_ns) < 10_000


def test_absurd_rates_are_no_clock() -> None:
    times = np.arange(100) * 1e9
    assert fit_pair(times * 1.5, times) is None
