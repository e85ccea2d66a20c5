"""Two CUDA streams that copy and compute at once, with spans that follow both: cuda-python, 12.9 or 13.x.

    gputrace record -o streams.pftrace -- python examples/cuda_streams.py

A vector is worked on in chunks: each goes to the GPU, through one kernel compiled here by NVRTC (nvidia-cuda-nvrtc, no
GPU needed), and back. Odd and even chunks take turns on two streams, so that in the trace the copies of one lie beside
the kernel of the other.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from cuda.bindings import driver, nvrtc

import gputrace

CHUNKS = 8
CHUNK = 1 << 20  # floats
BYTES = 4 * CHUNK
BLOCK = 256  # threads
SCALE = 2.5

SOURCE = b"""
extern "C" __global__ void saxpy(float scale, const float *x, float *y, unsigned count) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) y[i] = scale * x[i] + y[i];
}
"""

Floats = np.ndarray[Any, np.dtype[np.float32]]


def check(result: tuple[Any, ...]) -> Any:
    """What a call returned beside its result code. Raises RuntimeError if that is not success."""
    code, *values = result
    if int(code):
        raise RuntimeError(repr(code))
    return values[0] if len(values) == 1 else values


def open_gpu() -> tuple[str, str]:
    """Make the first GPU's primary context current; its name, and its architecture as NVRTC wants it."""
    try:
        check(driver.cuInit(0))
    except RuntimeError as error:  # from the binding where there is no driver, from `check` where it sees no GPU
        raise SystemExit(f"needs an NVIDIA GPU and its driver: {error} (examples/train.py needs neither)") from None
    gpu = check(driver.cuDeviceGet(0))
    check(driver.cuCtxSetCurrent(check(driver.cuDevicePrimaryCtxRetain(gpu))))
    wanted = driver.CUdevice_attribute
    major = check(driver.cuDeviceGetAttribute(wanted.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, gpu))
    minor = check(driver.cuDeviceGetAttribute(wanted.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, gpu))
    name = check(driver.cuDeviceGetName(128, gpu)).partition(b"\0")[0].decode()
    return name, f"sm_{major}{minor}"


@gputrace.span("compile")
def compile_kernel(architecture: str) -> Any:
    """The kernel, as machine code: PTX of an NVRTC newer than the driver would be refused."""
    program = check(nvrtc.nvrtcCreateProgram(SOURCE, b"saxpy.cu", 0, [], []))
    check(nvrtc.nvrtcCompileProgram(program, 1, [f"--gpu-architecture={architecture}".encode()]))
    code = bytearray(check(nvrtc.nvrtcGetCUBINSize(program)))
    check(nvrtc.nvrtcGetCUBIN(program, code))
    check(nvrtc.nvrtcDestroyProgram(program))
    module = check(driver.cuModuleLoadData(bytes(code)))
    return check(driver.cuModuleGetFunction(module, b"saxpy"))


def pinned(count: int) -> Floats:
    """Floats in page-locked host memory: only from there is a copy asynchronous."""
    address = check(driver.cuMemAllocHost(4 * count))
    return np.ctypeslib.as_array(ctypes.cast(int(address), ctypes.POINTER(ctypes.c_float)), (count,))


class Lane:
    """A stream, with device memory for the chunk it works on and events around all its work."""

    def __init__(self) -> None:
        self.stream = check(driver.cuStreamCreate(driver.CUstream_flags.CU_STREAM_NON_BLOCKING.value))
        self.x, self.y = check(driver.cuMemAlloc(BYTES)), check(driver.cuMemAlloc(BYTES))
        self.start, self.end = check(driver.cuEventCreate(0)), check(driver.cuEventCreate(0))

    def enqueue(self, kernel: Any, x: Floats, y: Floats) -> None:
        """y = SCALE * x + y for one chunk, in three steps. Returns before any of them has begun."""
        # Spans inside take this stream, except where they name another.
        with gputrace.use_stream(self.stream):
            with gputrace.span("to device", bytes=2 * BYTES):
                check(driver.cuMemcpyHtoDAsync(self.x, x.ctypes.data, BYTES, self.stream))
                check(driver.cuMemcpyHtoDAsync(self.y, y.ctypes.data, BYTES, self.stream))
            with gputrace.span("saxpy", blocks=CHUNK // BLOCK):
                values = (SCALE, self.x, self.y, CHUNK)
                types = (ctypes.c_float, None, None, ctypes.c_uint)
                grid, block = (CHUNK // BLOCK, 1, 1), (BLOCK, 1, 1)
                check(driver.cuLaunchKernel(kernel, *grid, *block, 0, self.stream, (values, types), 0))
            with gputrace.span("to host", bytes=BYTES):
                check(driver.cuMemcpyDtoHAsync(y.ctypes.data, self.y, BYTES, self.stream))

    def close(self) -> None:
        for memory in (self.x, self.y):
            check(driver.cuMemFree(memory))
        for event in (self.start, self.end):
            check(driver.cuEventDestroy(event))
        check(driver.cuStreamDestroy(self.stream))


def run(kernel: Any, x: Floats, y: Floats) -> list[float]:
    """All chunks, on two streams; how long each stream was at it, in ms."""
    lanes = [Lane(), Lane()]
    for lane in lanes:
        check(driver.cuEventRecord(lane.start, lane.stream))
    for chunk in range(CHUNKS):
        lane, part = lanes[chunk % 2], slice(chunk * CHUNK, (chunk + 1) * CHUNK)
        with gputrace.span(f"chunk {chunk}", stream=lane.stream):
            lane.enqueue(kernel, x[part], y[part])
        gputrace.counter("enqueued", (chunk + 1) * 3 * BYTES, "bytes")
    for lane in lanes:
        check(driver.cuEventRecord(lane.end, lane.stream))
    gputrace.instant("all enqueued", chunks=CHUNKS)
    with gputrace.span("wait"):
        for lane in lanes:
            check(driver.cuEventSynchronize(lane.end))
    times = [check(driver.cuEventElapsedTime(lane.start, lane.end)) for lane in lanes]
    for lane in lanes:
        lane.close()
    return times


def main() -> None:
    name, architecture = open_gpu()
    kernel = compile_kernel(architecture)
    x, y = pinned(CHUNKS * CHUNK), pinned(CHUNKS * CHUNK)
    x[:], y[:] = np.arange(x.size) % 1000, 1
    before = y.copy()
    times = run(kernel, x, y)
    # A stand-in driver copies memory, but runs no kernel: then y comes back as it went.
    stand_in = name.startswith("Fake")
    expected = before if stand_in else np.float32(SCALE) * x + before
    if not np.allclose(y, expected):
        raise SystemExit(f"{name}: wrong result, by up to {np.abs(y - expected).max()}")
    print(f"{name}: {CHUNKS} chunks of {BYTES >> 20} MiB, streams busy for {times[0]:.2f} and {times[1]:.2f} ms")
    print(
        "checked: the copies alone, no kernel runs on this driver"
        if stand_in
        else "checked: y = a x + y, every element"
    )


if __name__ == "__main__":
    main()
