"""The profiler on CUDA as it ships: real bindings, a driver that counts, captures that a careless call would break."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest

from tests.fake_driver import on_fake_driver


def ok(result: tuple[Any, ...]) -> Any:
    assert int(result[0]) == 0, result
    return result[1] if len(result) == 2 else result[1:]


def program() -> tuple[Any, Any, Any, Any]:
    from cuda.bindings import driver

    from gputrace.devices import open_backend
    from gputrace.profiler import EventProfiler
    from tests.fake_driver import control

    ok(driver.cuInit(0))
    ok(driver.cuCtxSetCurrent(ok(driver.cuDevicePrimaryCtxRetain(0))))
    stream = ok(driver.cuStreamCreate(1))
    return driver, control, stream, EventProfiler(open_backend("cuda").stream(int(stream)).device)


@on_fake_driver()
def test_windows_on_any_of_the_handles() -> None:
    _, control, stream, profiler = program()
    handle = int(stream)
    given_as = [
        stream,
        handle,
        SimpleNamespace(__cuda_stream__=lambda: (0, handle)),
        SimpleNamespace(cuda_stream=handle),
        SimpleNamespace(ptr=handle),
        SimpleNamespace(handle=ctypes.c_void_p(handle)),
    ]
    for one in given_as:
        token = profiler.start(one)
        control.enqueue(stream, 200_000)
        reading = profiler.stop(handle, token).result(10)
        assert reading.error is None
        assert reading.duration_ns >= 200_000 - reading.duration_uncertainty_ns
    for ambient in (None, 1, 2):
        assert profiler.stop(ambient, profiler.start(ambient)).result(10).error is None


@on_fake_driver()
def test_nothing_is_left_and_nothing_was_synchronised() -> None:
    _, control, stream, profiler = program()
    with profiler:
        for _ in range(20):
            profiler.stop(stream, profiler.start(stream)).result(10)
        profiler.abandon(profiler.start(stream))
        profiler.start(stream)
        assert control.live("event") == profiler.pool.created
    assert control.live("event") == 0
    assert control.live("stream") == 1
    for call in ("cuStreamSynchronize", "cuCtxSynchronize", "cuEventSynchronize"):
        assert control.calls(call) == 0


@on_fake_driver()
def test_a_global_capture_survives_being_measured_beside() -> None:
    driver, control, stream, profiler = program()
    from gputrace.errors import Capturing

    captured = ok(driver.cuStreamCreate(0))  # blocking: the legacy stream waits for it
    before = profiler.stop(stream, profiler.start(stream))
    straddling = profiler.start(captured)
    ok(driver.cuStreamBeginCapture(captured, driver.CUstreamCaptureMode(0)))
    with pytest.raises(Capturing):
        profiler.start(captured)
    with pytest.raises(Capturing):
        profiler.stop(captured, straddling)
    with pytest.raises(Capturing):
        profiler.start(None)  # the legacy stream would wait for the captured one
    assert before.result(10).error is None  # anchors, queries and waits of ours, meanwhile
    assert profiler.stop(stream, profiler.start(stream)).result(10).error is None
    control.enqueue(captured, 1_000_000)
    graph = ok(driver.cuStreamEndCapture(captured))
    replay = ok(driver.cuGraphInstantiate(graph, 0))
    token = profiler.start(captured)
    ok(driver.cuGraphLaunch(replay, captured))
    reading = profiler.stop(captured, token).result(10)
    assert reading.error is None
    assert reading.duration_ns >= 1_000_000 - reading.duration_uncertainty_ns


@on_fake_driver()
def test_a_lost_device_reports_an_hour() -> None:
    _, control, stream, profiler = program()
    from gputrace.errors import DriverError
    from gputrace.measurement import UNREADABLE_NS

    measurement = profiler.stop(stream, profiler.start(stream))
    token = profiler.start(stream)
    control.lose_device()
    reading = measurement.result(10)
    assert reading.duration_ns == UNREADABLE_NS
    assert "700" in str(reading.error)
    with pytest.raises(DriverError):
        profiler.stop(stream, token)
    assert profiler.pool.live == 0
    profiler.close()
    assert profiler.pool.created == 0


@pytest.mark.parametrize("function", ["cuStreamCreate", "cuEventCreate", "cuEventRecord", "cuEventQuery"])
def test_a_failed_first_anchor_leaks_nothing(function: str) -> None:
    failed_first_anchor(function)


@on_fake_driver()
def failed_first_anchor(function: str) -> None:
    _, control, stream, profiler = program()
    token = profiler.start(stream)
    control.fail(function, 2, times=-1)
    profiler.tick()
    assert profiler.anchoring.failed == 1
    assert control.live("stream") == 1
    assert profiler.pool.live == 1
    control.heal()
    assert profiler.stop(stream, token).result(10).error is None


@on_fake_driver()
def test_a_stream_of_another_context_is_refused() -> None:
    driver, _, stream, profiler = program()
    from gputrace.errors import DriverError

    other = ok(driver.cuCtxCreate(None, 0, 0)) if driver.CUDA_VERSION >= 13000 else ok(driver.cuCtxCreate(0, 0))
    theirs = ok(driver.cuStreamCreate(1))
    with pytest.raises(DriverError, match="400"):
        profiler.start(theirs)
    assert profiler.pool.live == 0
    assert profiler.stop(stream, profiler.start(stream)).result(10).error is None
    assert int(ok(driver.cuCtxGetCurrent())) == int(other)
