"""What a window on a real device measures: nothing, a kernel, and work that inner windows do not slow."""

from __future__ import annotations

import statistics
from typing import Any

import pytest

import gputrace
from gputrace import EventProfiler, TimestampProfiler, TimingMethod
from gputrace.errors import Capturing
from tests.gpu.device import GPU, check

KERNEL_NS = 100_000
ROUNDS = 15


def test_an_empty_window_is_short(gpu: GPU) -> None:
    stream = gpu.stream()
    with EventProfiler(gputrace.device("cuda", stream)) as profiler:
        readings = [profiler.stop(stream, profiler.start(stream)).result(10) for _ in range(21)]
    assert {reading.error for reading in readings} == {None}
    assert {reading.timing for reading in readings} == {TimingMethod.DEVICE}
    durations_ns = sorted(reading.duration_ns for reading in readings)
    assert durations_ns[0] >= 0
    # On an idle stream the host's own way from start to stop is inside, and a busy machine may interrupt that.
    assert statistics.median(durations_ns) < 1_000_000


def test_a_kernel_takes_time(gpu: GPU) -> None:
    stream = gpu.stream()
    with EventProfiler(gputrace.device("cuda", stream)) as profiler:
        for _ in range(20):
            token = profiler.start(stream)
            gpu.launch(stream, KERNEL_NS)
            reading = profiler.stop(stream, token).result(10)
            assert reading.error is None
            # The kernel lasts that long by the GPU's own clock; the events stand outside it.
            assert reading.duration_ns > 0.95 * KERNEL_NS


def test_inner_windows_do_not_stretch_the_outer_one(gpu: GPU) -> None:
    stream = gpu.stream()
    device = gputrace.device("cuda", stream)
    with EventProfiler(device) as events, TimestampProfiler(device) as draining:
        _outer_ns(gpu, events, stream, True)
        _outer_ns(gpu, draining, stream, True)
        grown = {
            name: statistics.median(
                _outer_ns(gpu, profiler, stream, True) - _outer_ns(gpu, profiler, stream, False) for _ in range(ROUNDS)
            )
            for name, profiler in (("events", events), ("draining", draining))
        }
    assert grown["events"] < 0.1 * 4 * KERNEL_NS, grown
    assert grown["events"] < grown["draining"] / 2, grown


def _outer_ns(gpu: GPU, profiler: Any, stream: int, nested: bool) -> int:
    """How long a window around four kernels is, each in a window of its own or not.

    A kernel goes first, so that all that follows is enqueued before the device gets there.
    """
    gpu.launch(stream, 5 * KERNEL_NS)
    outer = profiler.start(stream)
    inner = []
    for _ in range(4):
        token = profiler.start(stream) if nested else None
        gpu.launch(stream, KERNEL_NS)
        if nested:
            inner.append(profiler.stop(stream, token))
    reading = profiler.stop(stream, outer).result(10)
    for measurement in inner:
        assert measurement.result(10).duration_ns > 0.95 * KERNEL_NS
    duration_ns: int = reading.duration_ns
    return duration_ns


def test_every_event_and_stream_is_given_back(gpu: GPU) -> None:
    stream = gpu.stream()
    with EventProfiler(gputrace.device("cuda", stream)) as profiler:
        kept = [profiler.stop(stream, profiler.start(stream)) for _ in range(50)]
        profiler.abandon(profiler.start(stream))
        token = profiler.start(stream)
        profiler.failure("a candidate failed", stream)
        with pytest.raises(Exception, match="a candidate failed"):
            profiler.stop(stream, token)
        for measurement in kept:
            assert measurement.result(10).error is None
        pool = profiler.pool
        assert pool.live <= 1  # the anchor's
        assert pool.created == pool.pooled + pool.live
    assert pool.created == 0
    if gpu.is_fake:
        from tests.fake_driver import control

        assert control.live("event") == 0


def test_a_stream_under_capture_opens_no_window(gpu: GPU) -> None:
    stream = gpu.stream()
    driver = gpu.driver
    with EventProfiler(gputrace.device("cuda", stream)) as profiler:
        check(driver.cuStreamBeginCapture(stream, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL))
        with pytest.raises(Capturing):
            profiler.start(stream)
        check(driver.cuGraphDestroy(check(driver.cuStreamEndCapture(stream))))
        assert profiler.stop(stream, profiler.start(stream)).result(10).error is None


def test_a_capture_that_begins_inside_a_window_is_not_broken(gpu: GPU) -> None:
    stream = gpu.stream()
    driver = gpu.driver
    with EventProfiler(gputrace.device("cuda", stream)) as profiler:
        token = profiler.start(stream)
        check(driver.cuStreamBeginCapture(stream, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL))
        gpu.launch(stream, KERNEL_NS)
        with pytest.raises(Capturing):
            profiler.stop(stream, token)
        profiler.tick()
        graph = check(driver.cuStreamEndCapture(stream))
        check(driver.cuGraphDestroy(graph))
        assert profiler.stop(stream, profiler.start(stream)).result(10).error is None
