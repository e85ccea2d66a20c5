"""The stand-in's program with the real Triton: its compiler, its launcher, its hooks, and a driver that keeps time.

The driver's part in C needs more of libcuda than the fake one has, so that alone is ours here.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hot.twin import TWINS
from tests.instrument.launching import FAULT, POSTLUDE, PRELUDE, assert_launched, launches, plain, record
from tests.instrument.test_triton import PROGRAM, expected

REAL = """
import os
os.environ["TRITON_CACHE_DIR"] = "cache"
from types import SimpleNamespace
import triton
from triton.backends.nvidia.driver import CudaDriver
import triton.language as tl

def launch(x, y, z, stream, function, cooperative, pdl, packed, metadata, enter, leave, scratch, profile, *rest):
    enter(metadata)
    control.enqueue(stream, rest[-1][0])
    leave(metadata)

class Driver(CudaDriver):
    def __init__(self):
        properties = {"max_shared_mem": 1 << 17, "warpSize": 32}
        self.utils = SimpleNamespace(
            launch=launch,
            build_signature_metadata=lambda signature: bytes(len(signature)),
            load_binary=lambda *args: (1, 2, 0, 0, 1024),
            unload_module=lambda module: None,
            get_device_properties=lambda device: properties,
        )
        self.launcher_cls = CudaLauncher

    get_device_capability = lambda self, device: (9, 0)
    get_current_stream = lambda self, device: one
    get_current_device = lambda self: 0
    allocate_default_profile_scratch = lambda self, *args: None

module = CudaDriver.__init__.__globals__
module.update(PyKernelArg=SimpleNamespace, ARG_CONSTEXPR=0, ARG_KERNEL=1, ARG_TUPLE=2)
CudaLauncher = module["CudaLauncher"]
triton.runtime.driver.set_active(Driver())

@triton.jit
def add(ns):
    tl.device_assert(ns > 0)
"""


@pytest.mark.parametrize("twin", TWINS)
def test_each_launch_is_there_and_the_programs_hooks_see_what_they_saw(tmp_path: Path, twin: str) -> None:
    program = PRELUDE + REAL + PROGRAM + POSTLUDE
    stdout, stderr, trace = record(tmp_path, program, twin, real=True)
    assert stdout == plain(tmp_path, program, real=True)
    assert "does not work" not in stderr
    assert_launched(launches(trace), expected())


def test_a_fault_of_ours_ends_the_patch_and_not_the_program(tmp_path: Path) -> None:
    program = PRELUDE + REAL + FAULT + PROGRAM + POSTLUDE
    stdout, stderr, _ = record(tmp_path, program, "pure", real=True)
    assert stdout == plain(tmp_path, PRELUDE + REAL + PROGRAM, real=True)
    assert stderr.count("triton.launches does not work here and was switched off") == 1
