"""A real GPU and one kernel that takes as long as it is told, through cuda-python.

With ``GPUTRACE_TEST_FAKE=1`` and the fake driver loaded (see `run.py`) the same code runs without a GPU. What cannot be
told there: whether a kernel runs, what a record or a query costs a real driver, how a real GPU's clock drifts and is
read, whether a real capture minds. Such a run shows that the tests work, not that the product does.
"""

from __future__ import annotations

import ctypes
import functools
import os
from typing import Any

FAKE_VARIABLE = "GPUTRACE_TEST_FAKE"

# Waits on the GPU's own clock of nanoseconds, so that it lasts as long on every GPU.
_SOURCE = b"""
extern "C" __global__ void spin(unsigned long long ns) {
    unsigned long long start, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
    do asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now)); while (now - start < ns);
}
"""


class NoGPU(Exception):
    """There is none to be used here, and why."""


def check(result: tuple[Any, ...]) -> Any:
    """What a call returned beside its result code. Raises RuntimeError if that is not success."""
    code, *values = result
    if int(code):
        raise RuntimeError(repr(code))
    return values[0] if len(values) == 1 else values


def fake_is_wanted() -> bool:
    return os.environ.get(FAKE_VARIABLE) == "1"


class GPU:
    """The first GPU, its primary context current on this thread, and what the program of a test does with it."""

    def __init__(self) -> None:
        from cuda.bindings import driver

        self.driver: Any = driver
        check(driver.cuInit(0))
        number = check(driver.cuDeviceGet(0))
        self.name: str = check(driver.cuDeviceGetName(128, number)).partition(b"\0")[0].decode()
        self.is_fake = self.name.startswith("Fake")
        self.context = check(driver.cuDevicePrimaryCtxRetain(number))
        self.make_current()
        self.cubin = self._compile(number)
        self._spin = check(driver.cuModuleGetFunction(check(driver.cuModuleLoadData(self.cubin)), b"spin"))

    def make_current(self) -> None:
        """On the calling thread."""
        check(self.driver.cuCtxSetCurrent(self.context))

    def stream(self) -> int:
        """A new non-blocking stream's handle."""
        return int(check(self.driver.cuStreamCreate(1)))

    def launch(self, stream: int, ns: int) -> None:
        """Enqueue a kernel of one thread that lasts so long."""
        self.next_kernels_last(ns)
        values, types = (ns,), (ctypes.c_uint64,)
        check(self.driver.cuLaunchKernel(self._spin, 1, 1, 1, 1, 1, 1, 0, stream, (values, types), 0))

    def next_kernels_last(self, ns: int) -> None:
        """Tell the fake driver, which cannot read it off a kernel's argument as a GPU does."""
        if self.is_fake:
            from tests.fake_driver import control

            control.set(kernel_ns=ns)

    def allocate(self, size: int) -> int:
        """Bytes on the device."""
        return int(check(self.driver.cuMemAlloc(size)))

    def wait_for(self, stream: int) -> None:
        check(self.driver.cuStreamSynchronize(stream))

    def _compile(self, number: Any) -> bytes:
        from cuda.bindings import nvrtc

        wanted = self.driver.CUdevice_attribute
        major = check(self.driver.cuDeviceGetAttribute(wanted.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, number))
        minor = check(self.driver.cuDeviceGetAttribute(wanted.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, number))
        program = check(nvrtc.nvrtcCreateProgram(_SOURCE, b"spin.cu", 0, [], []))
        check(nvrtc.nvrtcCompileProgram(program, 1, [f"--gpu-architecture=sm_{major}{minor}".encode()]))
        code = bytearray(check(nvrtc.nvrtcGetCUBINSize(program)))
        check(nvrtc.nvrtcGetCUBIN(program, code))
        check(nvrtc.nvrtcDestroyProgram(program))
        return bytes(code)


@functools.cache
def _opened() -> GPU | str:
    from gputrace.devices import probe_cuda

    found = probe_cuda()
    if not found.found:
        return found.reason
    try:
        gpu = GPU()
    except Exception as error:  # half a driver, no NVRTC, a GPU that is out of memory: none of them our failure
        return f"the GPU cannot be used: {type(error).__name__}: {error}"
    if gpu.is_fake and not fake_is_wanted():
        return f"the driver found is the fake one: set {FAKE_VARIABLE}=1 to run on it"
    return gpu


def open_gpu() -> GPU:
    """The one GPU of this process. Raises `NoGPU`."""
    opened = _opened()
    if isinstance(opened, str):
        raise NoGPU(opened)
    opened.make_current()
    return opened
