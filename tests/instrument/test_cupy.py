"""Ranges that a program marks by CuPy's copy of NVTX are spans, windows and instants, with no change to it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hot.twin import TWINS
from tests.instrument.launching import FAULT, launches, plain, record

PROGRAM = """
from cupyx.profiler import time_range
nvtx = cupy.cuda.nvtx
with time_range("block", color_id=2):
    nvtx.RangePushC("inner", 0xFF00FF00)
    nvtx.Mark("mark")
    nvtx.RangePop()
@time_range(argb_color=0xFF00FF00)
def decorated():
    return 1
print(decorated())
one = nvtx.RangeStart("one", 0)
nvtx.RangePush("pushed", id_color=1)
print(nvtx.RangeEnd(one), nvtx.RangePop(), nvtx.RangePop())
nvtx.MarkC("coloured", 1)
try:
    nvtx.RangePush(7)
except AttributeError as error:
    print(type(error).__name__)
"""
NAMES = ["block", "inner", "mark", "decorated", "one", "pushed", "coloured"]


@pytest.mark.parametrize("twin", TWINS)
def test_each_is_there(tmp_path: Path, twin: str) -> None:
    program = "import cupy\n" + PROGRAM
    stdout, stderr, trace = record(tmp_path, program, twin, device="host")
    assert stdout == plain(tmp_path, program)
    assert "does not work" not in stderr
    assert [each.name for each in launches(trace)] == NAMES


@pytest.mark.parametrize("twin", TWINS)
def test_a_fault_of_ours_ends_the_patch_and_not_the_program(tmp_path: Path, twin: str) -> None:
    stdout, stderr, _ = record(tmp_path, "import cupy\n" + FAULT + PROGRAM, twin, device="host")
    assert stdout == plain(tmp_path, "import cupy\n" + PROGRAM)
    assert stderr.count("cupy.ranges does not work here and was switched off") == 1


def test_nothing_is_left_of_it(tmp_path: Path) -> None:
    program = """
import cupy, gputrace
before = dict(vars(cupy.cuda.nvtx))
with gputrace.trace("inside.pftrace", device="host"):
    print(sum(before[name] is not value for name, value in vars(cupy.cuda.nvtx).items()))
print(all(before[name] is value for name, value in vars(cupy.cuda.nvtx).items()))
"""
    assert plain(tmp_path, program) == "7\nTrue\n"
