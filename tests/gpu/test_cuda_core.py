"""What a program enqueues through cuda.core on a real device has windows as long as the work."""

from __future__ import annotations

import ctypes
from pathlib import Path

import gputrace
from tests.gpu.device import GPU
from tests.gpu.test_trace import on_gpu

KERNEL_NS = 2_000_000


def test_launches_and_copies_have_windows(gpu: GPU, tmp_path: Path) -> None:
    from cuda import core

    path = tmp_path / "core.pftrace"
    core.Device().set_current()
    stream = core.Stream.from_handle(gpu.stream())
    kernel = core.ObjectCode.from_cubin(gpu.cubin).get_kernel("spin")
    config = core.LaunchConfig(grid=1, block=1)
    source, target = (core.Buffer.from_handle(gpu.allocate(1 << 20), 1 << 20) for _ in range(2))
    gpu.next_kernels_last(KERNEL_NS)
    with gputrace.trace(path, device="cuda") as running:
        for _ in range(3):
            core.launch(stream, config, kernel, ctypes.c_uint64(KERNEL_NS))
        source.copy_to(target, stream=stream)
        stream.sync()
    assert running.summary is not None
    assert running.summary.told == []
    windows = on_gpu(path)
    assert [window.name for window in windows] == ["spin", "spin", "spin", "Buffer.copy_to"]
    assert all(window.dur > 0.95 * KERNEL_NS for window in windows[:3])
