"""The stand-in's program with the real CuPy, whose ranges need no device."""

from __future__ import annotations

from pathlib import Path

from tests.instrument.launching import launches, plain, record
from tests.instrument.test_cupy import NAMES, PROGRAM


def test_each_range_is_there(tmp_path: Path) -> None:
    program = "import cupy\n" + PROGRAM
    stdout, stderr, trace = record(tmp_path, program, "pure", device="host", real=True)
    assert stdout == plain(tmp_path, program, real=True)
    assert "does not work" not in stderr
    assert [each.name for each in launches(trace)] == NAMES
