"""Steps by calls of `gputrace.step()`: each is from the call before to its own, in every trace that tells."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import gputrace
from gputrace.analysis.summary import Summary
from gputrace.devices.simulated import default_gpu
from gputrace.model import COUNTER, COUNTER_TRACK, INSTANT, SLICE
from gputrace.regions import RECORDED, STEP
from tests.analysis.test_summary import rank, summed
from tests.exporters.recordings import Script
from tests.merging.making import Host, write_trace

BOTH = pytest.mark.parametrize("suffix", [".pftrace", ".json"])


def recorded(path: Path, program: Callable[[], object]) -> Summary:
    with gputrace.trace(path, device="simulated") as recording:
        program()
    found = recording.summary
    assert (found.dropped, found.failed, found.told) == (0, 0, []), found
    return summed(path, by_step=True)


def work(windows: int = 1) -> None:
    stream = default_gpu().stream("main")
    for _ in range(windows):
        with gputrace.span("forward", stream=stream):
            stream.launch(20_000)
    with gputrace.span("synchronize"):
        time.sleep(0.001)


@BOTH
def test_a_program_that_marks_its_steps(tmp_path: Path, suffix: str) -> None:
    def program() -> None:
        for k in range(5):
            work(k)
            gputrace.step()

    steps = recorded(tmp_path / f"t{suffix}", program).steps
    assert [(each.name, each.args, each.number, each.windows) for each in steps] == [
        ("step", {"number": k}, k - 1, k) for k in range(1, 5)
    ]  # when the first began is not known
    assert all(each.place.endswith("MainThread") for each in steps)
    for before, after in itertools.pairwise(steps):
        assert before.begin_ns + before.duration_ns == after.begin_ns
    for each in steps:
        assert each.duration_ns > each.wait_ns >= 1_000_000
        assert each.gpu_busy_ns >= 20_000 * each.windows


@BOTH
def test_a_step_with_a_pause_in_it_is_none(tmp_path: Path, suffix: str) -> None:
    def program() -> None:
        for k in range(6):
            work()
            if k == 3:
                gputrace.pause()
                time.sleep(0.001)
                gputrace.resume()
            gputrace.step()

    steps = recorded(tmp_path / f"t{suffix}", program).steps
    assert [each.args["number"] for each in steps] == [1, 2, 4, 5]


def marks(script: Script, *ends: tuple[int, int]) -> None:
    thread = script.thread()
    script.add(thread, *((at, INSTANT, STEP, {"number": number}) for at, number in ends))


def test_what_is_between_marks_that_do_not_follow_one_another_is_none(tmp_path: Path) -> None:
    """An optimizer's count gave way to the program's, and some marks found no room."""
    script = Script()
    marks(script, (0, 6), (100, 7), (250, 0), (300, 1), (500, 3), (700, 4))
    steps = summed(write_trace(tmp_path / "t.pftrace", Host("n"), script), by_step=True).steps
    assert [(each.args["number"], each.duration_ns) for each in steps] == [(7, 100), (1, 50), (4, 200)]


def test_each_process_has_its_own(tmp_path: Path) -> None:
    """What one of them did not record is no gap of the other's."""
    scripts = [Script(k, 100 + k, f"rank {k}") for k in range(2)]
    for script in scripts:
        marks(script, (0, 0), (100, 1), (200, 2))
    counter = scripts[0].track(COUNTER_TRACK, RECORDED)
    scripts[0].add(counter, (0, COUNTER, 1), (120, COUNTER, 0))
    steps = summed(write_trace(tmp_path / "t.pftrace", Host("n"), *scripts), by_step=True).steps
    assert [(each.place, each.args["number"]) for each in steps] == [
        ("rank 0/MainThread", 1),
        ("rank 1/MainThread", 1),
        ("rank 1/MainThread", 2),
    ]


def test_spans_go_before_marks_on_a_thread_that_has_both(tmp_path: Path) -> None:
    script = rank(0)
    thread = script.tracks[0]
    script.add(thread, *((200_000 + k, INSTANT, STEP, {"number": k}) for k in range(4)))
    path = write_trace(tmp_path / "t.pftrace", Host("n"), script)
    assert [each.duration_ns for each in summed(path, by_step=True).steps] == [9_000] * 10
    assert [each.duration_ns for each in summed(path, by_step=True, steps=[STEP]).steps] == [1, 1, 1]
    assert summed(path, by_step=True, steps=["epoch"]).steps == []


def training(*optimizers: str, also: tuple[str, ...] = ()) -> Script:
    """Three rounds of 10,000 ns, in which each of these optimizers steps."""
    script = Script(0)
    thread = script.thread()
    for k in range(3):
        at = k * 10_000
        script.add(thread, *((at + n, SLICE, name, None, 0, at + n + 1) for n, name in enumerate(also)))
        for n, name in enumerate(optimizers):
            script.add(thread, (at + 5_000 + 100 * n, SLICE, name, None, 0, at + 5_050 + 100 * n))
    return script


@BOTH
@pytest.mark.parametrize(
    ("optimizers", "also"),
    [
        (("AdamW.step",), ()),
        (("AdamW.step", "SGD.step"), ()),
        (("Optimizer.step#Mine.step",), ()),
        (("Mine.step",), ("StepLR.step", "Mine.zero_grad")),
    ],
)
def test_an_optimizer_ends_a_step_where_nothing_else_does(
    tmp_path: Path, suffix: str, optimizers: tuple[str, ...], also: tuple[str, ...]
) -> None:
    path = write_trace(tmp_path / f"t{suffix}", Host("n"), training(*optimizers, also=also))
    steps = summed(path, by_step=True).steps
    assert [(each.name, each.begin_ns - steps[0].begin_ns, each.duration_ns, each.args) for each in steps] == [
        ("step", 0, 10_000, {"number": 1}),
        ("step", 10_000, 10_000, {"number": 2}),
    ]


@pytest.mark.parametrize("also", ["step", "GradScaler.step", "Block.step", "StepLR.step"])
def test_what_is_no_optimizer_ends_none(tmp_path: Path, also: str) -> None:
    path = write_trace(tmp_path / "t.pftrace", Host("n"), training(also=(also,)))
    assert len(summed(path, by_step=True).steps) == (3 if also == "step" else 0)
    both = write_trace(tmp_path / "both.pftrace", Host("n"), training("SGD.step", also=(also,)))
    assert {each.duration_ns for each in summed(both, by_step=True).steps} == {1 if also == "step" else 10_000}
