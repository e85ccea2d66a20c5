"""The simulated GPU behaves as the device protocol says, and its clock as it is set."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gputrace.devices import stream_handle
from gputrace.devices.base import AMBIENT_HANDLES
from gputrace.devices.simulated import DriftingClock, SimulatedBackend, SimulatedGPU
from gputrace.errors import DriverError
from gputrace.profiler import EventProfiler
from tests.virtual import VirtualHost, virtual_gpu

MS = 1_000_000


@settings(deadline=None)
@given(st.floats(-50, 50), st.floats(0, 10), st.floats(1, 60), st.sampled_from([1, 32, 1000]))
def test_the_clock_rises_at_the_rate_it_says(skew: float, wander: float, period_s: float, tick_ns: int) -> None:
    clock = DriftingClock(skew, wander, period_s, tick_ns, 0, 0)
    shown = [clock.device_ns(at) for at in range(0, 10**10, 10**8)]
    assert shown == sorted(shown)
    assert all(value % tick_ns == 0 for value in shown)
    at, step = 3 * 10**9, 10**6
    rate_ppm = ((clock.device_ns(at + step) - clock.device_ns(at)) / step - 1) * 1e6
    assert abs(rate_ppm - clock.rate_ppm(at)) <= 1 + 2e6 * tick_ns / step


def test_a_stream_is_in_order_and_streams_are_apart() -> None:
    host = VirtualHost()
    gpu = virtual_gpu(host)
    one, other = gpu.stream(), gpu.stream("other")
    assert other.name == "other"
    events = [gpu.event_create() for _ in range(3)]
    gpu.event_record(events[0], one)
    one.launch(5 * MS)
    gpu.event_record(events[1], one)
    gpu.event_record(events[2], other)
    assert events[1].true_host_ns - events[0].true_host_ns >= 5 * MS
    assert events[2].true_host_ns < events[1].true_host_ns
    assert not gpu.event_query(events[1])
    with pytest.raises(DriverError, match="not ready"):
        gpu.elapsed_ms(events[0], events[1])
    gpu.event_wait(events[1])
    assert gpu.event_query(events[1])
    assert gpu.elapsed_ms(events[0], events[1]) == pytest.approx(5, abs=0.1)
    assert gpu.elapsed_ms(events[1], events[0]) == -gpu.elapsed_ms(events[0], events[1])


def test_one_stream_waits_for_another() -> None:
    host = VirtualHost()
    gpu = virtual_gpu(host)
    one, other = gpu.stream(), gpu.stream()
    one.launch(5 * MS)
    done = gpu.event_create()
    gpu.event_record(done, one)
    other.wait_event(done)
    after = gpu.event_create()
    gpu.event_record(after, other)
    assert after.true_host_ns >= done.true_host_ns
    other.synchronize()
    assert host.at_ns >= done.true_host_ns


def test_a_captured_event_has_no_time() -> None:
    gpu = SimulatedGPU()
    stream = gpu.stream()
    event = gpu.event_create()
    stream.begin_capture()
    assert gpu.stream_capturing(stream)
    assert gpu.capturing_raw(stream)[1]
    gpu.event_record(event, stream)
    stream.launch(MS)
    assert stream.end_capture() == MS
    assert not gpu.stream_capturing(stream)
    with pytest.raises(DriverError, match="captured"):
        gpu.event_query(event)


def test_a_lost_device_answers_nothing() -> None:
    gpu = SimulatedGPU()
    stream, event = gpu.stream(), gpu.event_create()
    gpu.event_record(event, stream)
    gpu.fail_after = 0
    for call in (lambda: gpu.event_query(event), lambda: gpu.event_record(event, stream), gpu.event_create):
        with pytest.raises(DriverError):
            call()
    with pytest.raises(DriverError):
        gpu.elapsed_ms(event, event)


def test_foreign_streams_are_refused() -> None:
    gpu = SimulatedGPU()
    event = gpu.event_create()
    for stream in (SimulatedGPU().stream(), 0xDEAD, [], "stream"):
        with pytest.raises(DriverError, match="invalid handle"):
            gpu.event_record(event, stream)


@pytest.mark.parametrize("handle", AMBIENT_HANDLES)
def test_the_ambient_streams_are_the_default_one(handle: int) -> None:
    gpu = SimulatedGPU()
    assert SimulatedBackend([gpu]).stream(handle).device is gpu
    gpu.event_record(gpu.event_create(), handle)


def test_windows_on_any_of_the_handles() -> None:
    gpu = SimulatedGPU()
    profiler = EventProfiler(gpu)
    stream = gpu.stream()
    handle = stream_handle(stream)
    given_as = [
        stream,
        handle,
        SimpleNamespace(__cuda_stream__=lambda: (0, handle)),
        SimpleNamespace(cuda_stream=handle),
        SimpleNamespace(ptr=handle),
        SimpleNamespace(handle=ctypes.c_void_p(handle)),
        None,
    ]
    for one in given_as:
        token = profiler.start(one)
        other = None if one is None else handle  # the same stream under another name
        assert profiler.stop(other, token).result(10).error is None
