"""The stand-in's program with the real Numba, its compiler too, on the fake driver."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hot.twin import TWINS
from tests.instrument.launching import FAULT, POSTLUDE, PRELUDE, assert_launched, launches, plain, record
from tests.instrument.test_numba import EXPECTED, PROGRAM, START

QUIET = "import warnings\nwarnings.simplefilter('ignore')\n"


@pytest.mark.parametrize("twin", TWINS)
def test_each_launch_is_there_once(tmp_path: Path, twin: str) -> None:
    program = QUIET + PRELUDE + START + PROGRAM + POSTLUDE
    stdout, stderr, trace = record(tmp_path, program, twin, real=True)
    assert stdout == plain(tmp_path, program, real=True)
    assert "does not work" not in stderr
    assert_launched(launches(trace), EXPECTED)


def test_a_fault_of_ours_ends_the_patch_and_not_the_program(tmp_path: Path) -> None:
    program = QUIET + PRELUDE + START + FAULT + PROGRAM + POSTLUDE
    stdout, stderr, _ = record(tmp_path, program, "pure", real=True)
    assert stdout == plain(tmp_path, QUIET + PRELUDE + START + PROGRAM, real=True)
    assert stderr.count("numba.launches does not work here and was switched off") == 1


def test_the_simulator_is_left_alone(tmp_path: Path) -> None:
    program = """
import os
os.environ["NUMBA_ENABLE_CUDASIM"] = "1"
import gputrace, numpy
from numba import cuda
@cuda.jit
def add(values):
    values[cuda.grid(1)] += 1
with gputrace.trace("inside.pftrace", device="host") as recording, gputrace.span("own"):
    values = numpy.zeros(4)
    add[2, 2](values)
print(values.tolist(), recording.summary.told)
"""
    assert plain(tmp_path, program, real=True) == "[1.0, 1.0, 1.0, 1.0] []\n"
