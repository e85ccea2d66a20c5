"""Each launch of a Numba kernel is a slice and a window on its stream, by the name of its Python function, once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

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

START = """
from numba import cuda
import cuda.core as core
import numba.cuda.dispatcher as module
first, second = cuda.external_stream(one), cuda.external_stream(two)

@cuda.jit
def add(n):
    pass

@cuda.jit
def scale(n):
    pass
"""
PROGRAM = """
kernel_ns(30_000)
add[4, 32, first](7)
kernel_ns(31_000)
scale[(2, 3), (8, 8), second](7)
kernel_ns(32_000)
add.forall(64, tpb=16, stream=second)(7)
kernel_ns(33_000)
core.launch(first, core.LaunchConfig(grid=1, block=1), core.ObjectCode.from_cubin(b"any").get_kernel("other"))
try:
    add[4, 32, first](object())
except Exception as error:
    print(type(error).__name__)
add[(5,), (6,), second, 16](7)
"""
EXPECTED: list[tuple[str, dict[str, Any], int, int]] = [
    ("add", {"grid": "4x1x1", "block": "32x1x1"}, 1, 30_000),
    ("scale", {"grid": "2x3x1", "block": "8x8x1"}, 2, 31_000),
    ("add", {"grid": "4x1x1", "block": "16x1x1"}, 2, 32_000),
    ("other", {"grid": "1x1x1", "block": "1x1x1"}, 1, 33_000),
    ("add", {"grid": "5x1x1", "block": "6x1x1"}, 2, 33_000),
]


@pytest.mark.parametrize("twin", TWINS)
def test_each_launch_is_there_once(tmp_path: Path, twin: str) -> None:
    assert_same_and_launched(tmp_path, PRELUDE + START + PROGRAM + POSTLUDE, twin, EXPECTED)


def test_nothing_is_left_of_it(tmp_path: Path) -> None:
    program = """
import gputrace
def held():
    return [module.CUDADispatcher.call.__code__, module.launch]
before = held()
with gputrace.trace("inside.pftrace", device="cuda"):
    print([a is b for a, b in zip(before, held())])
    add[4, 32, first](7)
print([a is b for a, b in zip(before, held())])
"""
    assert plain(tmp_path, PRELUDE + START + program + POSTLUDE) == "[False, False]\n[True, True]\n"
    assert [each.name for each in launches(tmp_path / "inside.pftrace")] == ["add"]


@pytest.mark.parametrize("name", ["numba.launches", "cuda.core"])
def test_one_of_the_two_that_see_it_is_enough(tmp_path: Path, name: str) -> None:
    _, stderr, trace = record(tmp_path, PRELUDE + START + PROGRAM, "pure", "--no-instrument", name)
    assert "does not work" not in stderr
    names = [each.name for each in launches(trace)]
    mangled = ["_ZN6cudapy8add", "_ZN6cudapy8scale", "_ZN6cudapy8add", "other", "_ZN6cudapy8add"]
    assert names == (mangled if name == "numba.launches" else ["add", "scale", "add", "add"])


@pytest.mark.parametrize("twin", TWINS)
def test_a_fault_of_ours_ends_the_patch_and_not_the_program(tmp_path: Path, twin: str) -> None:
    program = PRELUDE + START + FAULT + PROGRAM + POSTLUDE
    stdout, stderr, _ = record(tmp_path, program, twin)
    assert stdout == plain(tmp_path, PRELUDE + START + PROGRAM)
    assert stderr.count("numba.launches does not work here and was switched off") == 1


def test_a_numba_that_launches_by_itself(tmp_path: Path) -> None:
    """Before it took cuda.core for it."""
    older = """
import types
import cuda.core as core, numba.cuda.dispatcher as module
theirs = module.launch
del module.launch
def launch_kernel(cufunc_handle, gx, gy, gz, bx, by, bz, sharedmem, hstream, args, cooperative=False):
    theirs(core.Stream.from_handle(hstream), core.LaunchConfig((gx, gy, gz), None, (bx, by, bz)), cufunc_handle, *args)
def launch(self, args, griddim, blockdim, stream=0, sharedmem=0):
    wide = lambda sizes: (*(sizes if isinstance(sizes, tuple) else (sizes,)), 1, 1)[:3]
    handle = stream.__cuda_stream__()[1]
    module.driver.launch_kernel(self.kernel, *wide(griddim), *wide(blockdim), sharedmem, handle, args)
module.driver = types.SimpleNamespace(launch_kernel=launch_kernel)
module._Kernel.launch = launch
"""
    inside = f"""
import gputrace
with gputrace.trace("inside.pftrace", device="cuda", instrument=["numba"]) as recording:
    exec({PROGRAM!r})
print(recording.summary.told)
"""
    stdout = plain(tmp_path, PRELUDE + older + START + inside + POSTLUDE)
    assert stdout == "TypeError\n[]\n"
    expected = [each for each in EXPECTED if each[0] != "other"]
    assert_launched(launches(tmp_path / "inside.pftrace"), expected)
