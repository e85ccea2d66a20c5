"""Where windows lie on the host's timeline, against a host that waited for the stream on both sides.

Before the window the stream is idle, and afterwards it is waited for: the window must lie between the two readings of
the host's clock, to within what it states. That bounds the error from both sides by how quick the device answers.
"""

from __future__ import annotations

import time

import gputrace
from gputrace import EventProfiler, Placement
from tests.gpu.device import GPU

WINDOWS = 300
KERNEL_NS = 20_000


def test_windows_lie_where_the_host_saw_them(gpu: GPU) -> None:
    stream = gpu.stream()
    seen = []
    with EventProfiler(gputrace.device("cuda", stream)) as profiler:
        for _ in range(WINDOWS):
            gpu.wait_for(stream)
            before_ns = time.monotonic_ns()
            token = profiler.start(stream)
            gpu.launch(stream, KERNEL_NS)
            measurement = profiler.stop(stream, token)
            gpu.wait_for(stream)
            seen.append((before_ns, time.monotonic_ns(), measurement))
            profiler.tick()
            time.sleep(0.005)
        outside = []
        for before_ns, after_ns, measurement in seen:
            reading = measurement.result(10)
            assert reading.placement is not Placement.NONE
            assert reading.start_ns is not None
            assert reading.end_ns is not None
            assert reading.uncertainty_ns is not None
            early_ns, late_ns = before_ns - reading.start_ns, reading.end_ns - after_ns
            if max(early_ns, late_ns) > reading.uncertainty_ns:
                outside.append((early_ns, late_ns, reading))
    assert outside == []
