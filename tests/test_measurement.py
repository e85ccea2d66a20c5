"""Waiting for a measurement: blocking, with a timeout, awaited, asked; the same answer every time."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from gputrace.devices.simulated import SimulatedGPU, SimulatedStream
from gputrace.measurement import Measurement, Placement, TimingMethod
from gputrace.profiler import EventProfiler


def window(duration_ns: int) -> tuple[EventProfiler, Measurement]:
    gpu = SimulatedGPU()
    profiler = EventProfiler(gpu)
    stream: SimulatedStream = gpu.stream()
    token = profiler.start(stream)
    stream.launch(duration_ns)
    return profiler, profiler.stop(stream, token)


def test_result_waits_for_the_work() -> None:
    _, measurement = window(20_000_000)
    assert not measurement.done()
    reading = measurement.result()
    assert reading.duration_ns >= 20_000_000 - reading.duration_uncertainty_ns
    assert reading.timing is TimingMethod.DEVICE
    assert reading.placement is not Placement.NONE
    assert reading.error is None


def test_every_answer_is_the_same() -> None:
    _, measurement = window(1000)
    assert measurement.result() is measurement.result()
    assert measurement.done()
    assert "pending" not in repr(measurement)


def test_a_timeout_leaves_the_measurement_as_it_was() -> None:
    _, measurement = window(50_000_000)
    with pytest.raises(TimeoutError, match="had not finished"):
        measurement.result(timeout=0)
    with pytest.raises(TimeoutError):
        measurement.result(timeout=0.001)
    assert measurement.result(timeout=30).error is None


def test_awaiting_does_not_block_the_loop() -> None:
    _, measurement = window(30_000_000)

    async def program() -> int:
        turns = 0
        waiting = asyncio.ensure_future(measurement._wait())
        while not waiting.done():
            turns += 1
            await asyncio.sleep(0)
        return turns

    assert asyncio.run(program()) > 3
    assert measurement.resolved


def test_many_tasks_may_await_one_measurement() -> None:
    _, measurement = window(5_000_000)

    async def wait() -> object:
        return await measurement

    async def program() -> list[object]:
        return await asyncio.gather(*(wait() for _ in range(20)))

    assert len({id(reading) for reading in asyncio.run(program())}) == 1


def test_a_cancelled_await_can_be_taken_up_again() -> None:
    _, measurement = window(50_000_000)

    async def program() -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(measurement._wait(), 0.001)
        assert (await measurement).error is None

    asyncio.run(program())


def test_many_threads_get_one_answer() -> None:
    _, measurement = window(10_000_000)
    readings: list[int] = []
    threads = [threading.Thread(target=lambda: readings.append(id(measurement.result()))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(readings) == 8
    assert len(set(readings)) == 1


def test_asking_keeps_the_anchor_fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a tracer nobody else does."""
    monkeypatch.setattr("gputrace.anchoring.REFRESH_NS", 5_000_000)
    profiler, measurement = window(60_000_000)
    measurement.result()
    assert profiler.anchoring.map.pieces_made >= 2


def test_other_windows_are_read_along() -> None:
    gpu = SimulatedGPU()
    profiler = EventProfiler(gpu)
    stream = gpu.stream()
    measurements = [profiler.stop(stream, profiler.start(stream)) for _ in range(50)]
    measurements[-1].result()
    assert all(measurement.resolved for measurement in measurements)
    assert profiler.pool.live == 1  # the anchor's


def test_a_dropped_measurement_keeps_nothing() -> None:
    gpu = SimulatedGPU()
    profiler = EventProfiler(gpu)
    stream = gpu.stream()
    for _ in range(10):
        profiler.stop(stream, profiler.start(stream))
        time.sleep(0.0001)
    profiler.stop(stream, profiler.start(stream)).result()
    assert profiler.pool.live == 1
