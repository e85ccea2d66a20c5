"""Each launch of a Triton kernel is a slice and a window on its stream; Triton's hooks stay the program's alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hot.twin import TWINS
from tests.instrument.launching import (
    FAULT,
    POSTLUDE,
    PRELUDE,
    assert_launched,
    assert_same_and_launched,
    launches,
    plain,
    record,
)

#: Launches by every road, with hooks of the program's own set and taken away between them.
PROGRAM = """
from triton import knobs
enter, leave = knobs.runtime.launch_enter_hook, knobs.runtime.launch_exit_hook
seen = []
def first(metadata): seen.append(("first", metadata.get()["name"], metadata.get()["stream"] == two))
def last(metadata): seen.append(("last", metadata.get()["name"], metadata.get()["stream"] == two))
kernel = add[(4,)](30_000, num_warps=2, num_stages=4)
enter.add(first)
add[(2, 3)](31_000)
leave.add(last)
kernel[(2, 3, 5)](32_000, stream=two)
enter.remove(first)
add[(1, 1, 1)](33_000)
leave.remove(last)
def refuses(metadata): raise RuntimeError("the program's own")
enter.add(refuses)
try:
    add[(6,)](34_000)
except RuntimeError as error:
    print(error)
enter.remove(refuses)
add.run(35_000, grid=(7,), warmup=True, num_warps=8)
add[(8,)](36_000)
print(kernel.name, len(enter.calls), len(leave.calls), seen)
"""
STANDIN = """
import triton
triton.backends.backends["nvidia"].driver.active.get_current_stream = lambda device: one
@triton.jit
def add(ns):
    pass
"""


def expected(stages: int = 3) -> list[tuple[str, dict[str, object], int, int]]:
    two, four = ({"num_warps": warps, "num_stages": stages} for warps in (2, 4))
    return [
        ("add", {"grid": "4x1x1", **two, "num_stages": 4}, 1, 30_000),
        ("add", {"grid": "2x3x1", **four}, 1, 31_000),
        ("add", {"grid": "2x3x5", **two, "num_stages": 4}, 2, 32_000),
        ("add", {"grid": "1x1x1", **four}, 1, 33_000),
        ("add", {"grid": "6x1x1", **four, "error": "RuntimeError"}, 1, 0),
        ("add", {"grid": "8x1x1", **four}, 1, 36_000),
    ]


@pytest.mark.parametrize("twin", TWINS)
def test_each_launch_is_there_and_the_programs_hooks_see_what_they_saw(tmp_path: Path, twin: str) -> None:
    assert_same_and_launched(tmp_path, PRELUDE + STANDIN + PROGRAM + POSTLUDE, twin, expected())


def test_of_a_kernel_loaded_before_what_its_launch_says(tmp_path: Path) -> None:
    inner = """
import gputrace
add[(1,)](1000, num_warps=2)
print(len(vars(type(add.kernels[2, 3].run))))
with gputrace.trace("inside.pftrace", device="cuda"):
    add[(4,)](30_000, num_warps=2)
    kernel = add.kernels[2, 3]
    kernel.launch_metadata = lambda *args: None
    kernel[(5, 1, 1)](31_000, stream=one)
"""
    plain(tmp_path, PRELUDE + STANDIN + inner + POSTLUDE)
    two = {"num_warps": 2}
    assert_launched(
        launches(tmp_path / "inside.pftrace"),
        [("add", {"grid": "4x1x1", **two}, 1, 30_000), ("Triton kernel", {"grid": "5x1x1", **two}, 1, 31_000)],
    )


def test_nothing_is_left_of_it(tmp_path: Path) -> None:
    inner = """
import gputrace
kind = triton.backends.backends["nvidia"].driver.active.launcher_cls
before = [kind.__init__.__code__, kind.__call__.__code__]
with gputrace.trace("inside.pftrace", device="host"):
    print([kind.__init__.__code__, kind.__call__.__code__] == before)
print([kind.__init__.__code__, kind.__call__.__code__] == before)
"""
    assert plain(tmp_path, PRELUDE + STANDIN + inner) == "False\nTrue\n"


@pytest.mark.parametrize("twin", TWINS)
def test_a_fault_of_ours_ends_the_patch_and_not_the_program(tmp_path: Path, twin: str) -> None:
    program = PRELUDE + STANDIN + FAULT + PROGRAM + POSTLUDE
    stdout, stderr, _ = record(tmp_path, program, twin)
    assert stdout == plain(tmp_path, PRELUDE + STANDIN + PROGRAM)
    assert stderr.count("triton.launches does not work here and was switched off") == 1
    assert "a fault of ours" in stderr


def test_it_can_be_left_out(tmp_path: Path) -> None:
    _, stderr, _ = record(tmp_path, PRELUDE + STANDIN + PROGRAM, "pure", "--no-instrument", "triton")
    assert "nothing was traced" in stderr


def test_a_triton_for_other_devices_is_left_alone(tmp_path: Path) -> None:
    other = "import triton.backends\ntriton.backends.backends.clear()\n"
    program = (
        "import triton, gputrace\n" + other + "with gputrace.trace('t.pftrace', 'host') as r: gputrace.instant('x')\n"
    )
    assert plain(tmp_path, program + "print(r.summary.told)") == "[]\n"
