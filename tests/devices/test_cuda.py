"""`devices/cuda.py` as it ships: with the real bindings, on a driver that counts every call."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from gputrace.devices import open_backend
from gputrace.errors import DriverError, NoDriver
from tests.fake_driver import environment, on_fake_driver, require

RELAXED, THREAD_LOCAL, GLOBAL = 2, 1, 0

#: What may never be called in a program that is traced.
MAKES_A_CONTEXT = ("cuCtxCreate", "cuDevicePrimaryCtxRetain", "cuInit")
SYNCHRONISES = ("cuStreamSynchronize", "cuCtxSynchronize")


def ok(result: tuple[Any, ...]) -> Any:
    assert int(result[0]) == 0, result
    return result[1] if len(result) == 2 else result[1:]


def program() -> tuple[Any, Any]:
    """The bindings in a program that has one context current on this thread."""
    from cuda.bindings import driver

    ok(driver.cuInit(0))
    context = ok(driver.cuDevicePrimaryCtxRetain(0))
    ok(driver.cuCtxSetCurrent(context))
    return driver, context


def on_thread(work: Callable[[], Any]) -> Any:
    """What a call returns or raises on a thread of its own, where no context is current."""
    results: list[Any] = []

    def run() -> None:
        try:
            results.append(work())
        except Exception as error:
            results.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return results[0]


def thread_state(driver: Any) -> tuple[int, int]:
    """The current context and the capture mode of this thread."""
    mode = ok(driver.cuThreadExchangeStreamCaptureMode(driver.CUstreamCaptureMode(GLOBAL)))
    ok(driver.cuThreadExchangeStreamCaptureMode(mode))
    return int(ok(driver.cuCtxGetCurrent())), int(mode)


@on_fake_driver(truth=100)
def test_a_window_measures_what_the_device_did() -> None:
    driver, context = program()
    from tests.fake_driver import control

    stream = open_backend("cuda").stream(int(ok(driver.cuStreamCreate(1))))
    device = stream.device
    assert device.context == int(context)
    with device.active():
        first, last = device.event_create(), device.event_create()
        device.event_record(first, stream.native)
        control.enqueue(stream.handle, 3_000_000)
        device.event_record(last, stream.native)
        device.event_wait(last)
        assert device.event_query(last) is True
        truth = control.truth()
        assert device.elapsed_ms(first, last) * 1e6 == pytest.approx(truth[1].device_ns - truth[0].device_ns, abs=1)
        assert device.elapsed_ms(last, first) < 0
        device.event_destroy(first)
        device.event_destroy(last)
    assert control.live("event") == 0


@on_fake_driver()
def test_a_query_does_not_wait() -> None:
    driver, _ = program()
    from tests.fake_driver import control

    stream = open_backend("cuda").stream(int(ok(driver.cuStreamCreate(1))))
    event = stream.device.event_create()
    control.enqueue(stream.handle, 3_600_000_000_000)
    stream.device.event_record(event, stream.native)
    assert stream.device.event_query(event) is False
    with pytest.raises(DriverError, match="NOT_READY"):
        stream.device.elapsed_ms(event, event)


@on_fake_driver()
def test_the_raw_calls_are_the_drivers_own() -> None:
    driver, _ = program()
    stream = open_backend("cuda").stream(int(ok(driver.cuStreamCreate(1))))
    device = stream.device
    first, last = device.event_create(), device.event_create()
    (code,) = device.record_raw(first, stream.native)
    assert not code
    assert not device.record_raw(last, stream.native)[0]
    assert not any(device.capturing_raw(stream.native))
    device.event_wait(last)
    code, milliseconds = device.elapsed_raw(first, last)
    assert not code
    assert type(milliseconds) is float


@on_fake_driver(devices=2)
def test_no_context_is_ever_made_and_no_stream_of_the_program_waited_for() -> None:
    driver, _ = program()
    from tests.fake_driver import control

    handle = ok(driver.cuStreamCreate(1))
    control.reset_calls()
    made = control.made("context")
    backend = open_backend("cuda")
    stream = backend.stream(int(handle))
    backend.stream(0)
    with stream.device.active():
        event = stream.device.event_create()
        own = stream.device.stream_create()
        stream.device.event_record(event, own)
        stream.device.event_wait(event)
        stream.device.stream_capturing(stream.native)
        stream.device.stream_destroy(own)
        stream.device.event_destroy(event)
    assert control.made("context") == made
    assert {name: control.calls(name) for name in MAKES_A_CONTEXT + SYNCHRONISES} == dict.fromkeys(
        MAKES_A_CONTEXT + SYNCHRONISES, 0
    )
    assert control.stream_syncs(handle) == 0
    assert control.live("stream") == 1


@on_fake_driver()
def test_a_program_without_cuda_stays_without_it() -> None:
    backend = open_backend("cuda")
    from tests.fake_driver import control

    for handle in (0, 1, 2, 0x5000):
        with pytest.raises(DriverError, match="not initialised CUDA"):
            backend.stream(handle)
    assert control.calls("cuInit") == 0
    assert control.made("context") == 0


@on_fake_driver()
def test_the_ambient_streams_are_those_of_the_current_context() -> None:
    driver, context = program()
    backend = open_backend("cuda")
    legacy, same, own = (backend.stream(handle) for handle in (0, 1, 2))
    assert [s.device.context for s in (legacy, same, own)] == [int(context)] * 3
    assert legacy.id == same.id != own.id
    assert legacy.name == same.name == "default stream"
    assert own.name.startswith("per-thread default stream")
    second = ok(driver.cuCtxCreate(None, 0, 0)) if driver.CUDA_VERSION >= 13000 else ok(driver.cuCtxCreate(0, 0))
    assert backend.stream(0).device.context == int(second)
    error = on_thread(lambda: backend.stream(0))
    assert isinstance(error, DriverError)
    assert (error.call, error.code) == ("cuCtxGetCurrent", 201)


@on_fake_driver(devices=2)
def test_a_stream_is_found_in_its_own_context_whatever_is_current() -> None:
    driver, context = program()
    backend = open_backend("cuda")
    here = int(ok(driver.cuStreamCreate(1)))
    ok(driver.cuCtxSetCurrent(ok(driver.cuDevicePrimaryCtxRetain(1))))
    there = int(ok(driver.cuStreamCreate(1)))
    before = thread_state(driver)
    streams = [backend.stream(handle) for handle in (here, there)]
    assert thread_state(driver) == before
    assert [stream.device.ordinal for stream in streams] == [0, 1]
    assert [stream.device.name for stream in streams] == ["Fake GPU 0", "Fake GPU 1"]
    assert streams[0].device.context == int(context)
    assert streams[0].device.labels["uuid"] != streams[1].device.labels["uuid"]
    elsewhere = on_thread(lambda: backend.stream(here))
    assert elsewhere.device is streams[0].device
    assert elsewhere.id == streams[0].id


@on_fake_driver()
def test_two_contexts_of_one_gpu_are_two_devices() -> None:
    driver, _ = program()
    backend = open_backend("cuda")
    first = backend.stream(0).device
    create = (None, 0, 0) if driver.CUDA_VERSION >= 13000 else (0, 0)
    ok(driver.cuCtxCreate(*create))
    stream = backend.stream(0)
    assert stream.device is not first
    assert stream.device.ordinal == first.ordinal == 0
    with first.active():
        foreign = first.event_create()
    with pytest.raises(DriverError, match="another context") as caught:
        stream.device.event_record(foreign, stream.native)
    assert caught.value.code == 400


@on_fake_driver(reuse_handles=1)
def test_a_new_context_at_a_destroyed_ones_address_is_a_new_device() -> None:
    driver, _ = program()
    backend = open_backend("cuda")
    create = (None, 0, 0) if driver.CUDA_VERSION >= 13000 else (0, 0)
    first = ok(driver.cuCtxCreate(*create))
    before = backend.stream(0).device
    ok(driver.cuCtxDestroy(first))
    second = ok(driver.cuCtxCreate(*create))
    assert int(first) == int(second)
    after = backend.stream(0).device
    assert after is not before
    assert backend.stream(0).device is after


@on_fake_driver()
def test_active_puts_the_thread_back_whatever_happens_inside() -> None:
    driver, context = program()
    device = open_backend("cuda").stream(0).device
    ok(driver.cuThreadExchangeStreamCaptureMode(driver.CUstreamCaptureMode(THREAD_LOCAL)))

    def fail_inside() -> None:
        with device.active(), device.active():
            assert thread_state(driver) == (int(context), RELAXED)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_inside()
    assert thread_state(driver) == (int(context), THREAD_LOCAL)

    def bare() -> tuple[int, int]:
        with device.active():
            assert thread_state(driver) == (int(context), RELAXED)
        return thread_state(driver)

    assert on_thread(bare) == (0, GLOBAL)


@on_fake_driver()
def test_a_context_destroyed_while_in_use() -> None:
    driver, context = program()
    create = (None, 0, 0) if driver.CUDA_VERSION >= 13000 else (0, 0)
    doomed = ok(driver.cuCtxCreate(*create))
    device = open_backend("cuda").stream(0).device
    ok(driver.cuCtxPopCurrent())
    before = thread_state(driver)
    assert before[0] == int(context)
    with device.active():
        event = device.event_create()
        on_thread(lambda: ok(driver.cuCtxDestroy(doomed)))
        with pytest.raises(DriverError, match="destroyed the context") as caught:
            device.event_query(event)
        assert caught.value.code == 709
    assert thread_state(driver) == before
    with pytest.raises(DriverError), device.active():
        pytest.fail("entered a context that is gone")
    assert thread_state(driver) == before
    with pytest.raises(DriverError):
        device.event_destroy(event)


@on_fake_driver()
def test_a_context_destroyed_by_the_thread_that_uses_it() -> None:
    driver, context = program()
    create = (None, 0, 0) if driver.CUDA_VERSION >= 13000 else (0, 0)
    doomed = ok(driver.cuCtxCreate(*create))
    device = open_backend("cuda").stream(0).device
    ok(driver.cuCtxPopCurrent())
    with device.active():
        ok(driver.cuCtxDestroy(doomed))
    assert thread_state(driver) == (int(context), GLOBAL)


@on_fake_driver()
def test_a_thread_whose_mode_cannot_be_relaxed_is_left_as_it_was() -> None:
    driver, context = program()
    device = open_backend("cuda").stream(0).device
    from tests.fake_driver import control

    ok(driver.cuCtxSetCurrent(0))
    control.fail("cuThreadExchangeStreamCaptureMode", 999)
    with pytest.raises(DriverError, match="999"), device.active():
        pytest.fail("entered without the mode relaxed")
    assert thread_state(driver) == (0, GLOBAL)
    assert int(context) == device.context


@on_fake_driver()
def test_a_query_from_another_thread_leaves_the_programs_capture_whole() -> None:
    driver, _ = program()
    stream = open_backend("cuda").stream(int(ok(driver.cuStreamCreate(1))))
    device = stream.device
    event = device.event_create()
    device.event_record(event, stream.native)
    ok(driver.cuStreamBeginCapture(stream.native, driver.CUstreamCaptureMode(GLOBAL)))

    def collect() -> bool:
        with device.active():
            device.event_wait(event)
            device.event_destroy(device.event_create())
            device.stream_destroy(device.stream_create())
            return device.event_query(event)

    assert on_thread(collect) is True
    assert ok(driver.cuStreamIsCapturing(stream.native)) == 1
    assert int(ok(driver.cuStreamEndCapture(stream.native)))


@on_fake_driver()
def test_capture_is_seen_on_the_stream_and_on_the_legacy_one() -> None:
    driver, _ = program()
    backend = open_backend("cuda")
    blocking = backend.stream(int(ok(driver.cuStreamCreate(0))))
    legacy = backend.stream(0)
    device = legacy.device
    assert not device.stream_capturing(legacy.native)
    ok(driver.cuStreamBeginCapture(blocking.native, driver.CUstreamCaptureMode(GLOBAL)))
    with device.active():
        assert device.stream_capturing(blocking.native)
        assert device.stream_capturing(legacy.native)
    assert any(device.capturing_raw(legacy.native))
    graph = ok(driver.cuStreamEndCapture(blocking.native))
    assert ok(driver.cuGraphGetNodes(graph, 0))[1] == 0
    assert not device.stream_capturing(legacy.native)


@on_fake_driver()
def test_an_event_of_a_capture_has_no_time() -> None:
    driver, _ = program()
    stream = open_backend("cuda").stream(int(ok(driver.cuStreamCreate(1))))
    event = stream.device.event_create()
    ok(driver.cuStreamBeginCapture(stream.native, driver.CUstreamCaptureMode(GLOBAL)))
    stream.device.event_record(event, stream.native)
    with stream.device.active(), pytest.raises(DriverError) as caught:
        stream.device.event_query(event)
    assert caught.value.code == 907


@on_fake_driver()
def test_codes_the_bindings_do_not_know_are_driver_errors() -> None:
    driver, _ = program()
    stream = open_backend("cuda").stream(int(ok(driver.cuStreamCreate(1))))
    device = stream.device
    event = device.event_create()
    from tests.fake_driver import control

    calls: dict[str, Callable[[], Any]] = {
        "cuEventCreate": device.event_create,
        "cuEventRecord": lambda: device.event_record(event, stream.native),
        "cuEventQuery": lambda: device.event_query(event),
        "cuEventSynchronize": lambda: device.event_wait(event),
        "cuEventElapsedTime": lambda: device.elapsed_ms(event, event),
        "cuStreamIsCapturing": lambda: device.stream_capturing(stream.native),
        "cuStreamCreate": device.stream_create,
        "cuCtxPushCurrent": lambda: device.active().__enter__(),
    }
    for name, work in calls.items():
        for code, expected in ((12345, -1), (719, 719)):
            control.fail(name, code)
            with pytest.raises(DriverError) as caught:
                work()
            assert (caught.value.call, caught.value.code) == (name, expected)
            assert str(code) in str(caught.value)
    assert thread_state(driver)[1] == GLOBAL


@on_fake_driver()
def test_a_lost_device_fails_every_call_and_still_lets_go_of_the_thread() -> None:
    driver, context = program()
    stream = open_backend("cuda").stream(int(ok(driver.cuStreamCreate(1))))
    device = stream.device
    event = device.event_create()
    from tests.fake_driver import control

    control.lose_device(700)
    with pytest.raises(DriverError, match="700"), device.active():
        device.event_query(event)
    assert thread_state(driver) == (int(context), GLOBAL)


@on_fake_driver()
def test_a_driver_call_that_blocks_does_not_hold_the_gil() -> None:
    driver, _ = program()
    stream = open_backend("cuda").stream(int(ok(driver.cuStreamCreate(1))))
    event = stream.device.event_create()
    from tests.fake_driver import control

    blocked_s = 30
    control.delay("cuEventRecord", blocked_s * 1_000_000_000)
    started_s = time.monotonic()
    threading.Thread(target=stream.device.record_raw, args=(event, stream.native), daemon=True).start()
    while not control.calls("cuEventRecord"):
        time.sleep(0)
    # With the GIL held this thread would not get here before the call returned.
    assert time.monotonic() - started_s < blocked_s


@on_fake_driver(driver_version=12000)
def test_the_oldest_driver_will_do() -> None:
    driver, _ = program()
    backend = open_backend("cuda")
    stream = backend.stream(int(ok(driver.cuStreamCreate(1))))
    assert stream.name == f"stream {stream.id}"
    assert stream.device.labels["driver"] == "12.0"


@on_fake_driver(driver_version=11080)
def test_an_older_driver_is_refused() -> None:
    with pytest.raises(NoDriver, match=r"CUDA 11\.8.*525"):
        open_backend("cuda")


@on_fake_driver()
def test_a_made_up_handle_is_a_driver_error() -> None:
    program()
    with pytest.raises(DriverError, match="destroyed, or belongs") as caught:
        open_backend("cuda").stream(0x123456)
    assert caught.value.call == "cuStreamGetCtx"


@on_fake_driver(devices=2)
def test_describe_tells_what_is_here_and_makes_no_context() -> None:
    from cuda import bindings

    from tests.fake_driver import control

    described = open_backend("cuda").describe()
    assert described["driver"] == "13.0"
    assert described["bindings"] == bindings.__version__
    assert described["devices"][1] == {
        "ordinal": 1,
        "name": "Fake GPU 1",
        "compute_capability": "9.0",
        "memory_bytes": 8 << 30,
        "uuid": "GPU-fafafafa-fafa-fafa-fafa-fafafafafa01",
    }
    assert control.made("context") == 0


@on_fake_driver(devices=0)
def test_describe_without_a_gpu() -> None:
    with pytest.raises(NoDriver, match="sees no GPU"):
        open_backend("cuda").describe()


@on_fake_driver()
def test_nothing_is_kept_of_a_stream_that_was_asked_about() -> None:
    driver, _ = program()
    backend = open_backend("cuda")
    handle = int(ok(driver.cuStreamCreate(1)))
    backend.stream(handle)
    gc.collect()
    ok(driver.cuStreamDestroy(handle))
    with pytest.raises(DriverError):
        backend.stream(handle)


def test_without_a_driver() -> None:
    program = """
from gputrace.devices import open_backend
from gputrace.errors import NoDriver
try:
    open_backend("cuda")
except NoDriver as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    if not done.stdout:
        pytest.skip("this machine has a driver")
    assert "no NVIDIA driver here" in done.stdout


def test_importing_the_module_imports_no_bindings() -> None:
    require()
    program = "import sys, gputrace.devices.cuda; print([m for m in sys.modules if 'cuda.bindings' in m])"
    done = subprocess.run([sys.executable, "-c", program], env=environment(), capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr
