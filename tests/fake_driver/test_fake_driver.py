"""The fake driver does what a driver does, and knows what it did."""

from __future__ import annotations

import itertools
import os
import threading
from typing import Any

import pytest

from tests.fake_driver import on_fake_driver

GLOBAL, THREAD_LOCAL, RELAXED = 0, 1, 2

HOUR_NS = 3_600_000_000_000  # work that is never waited for


def ok(result: tuple[Any, ...]) -> Any:
    """What a binding call returned, once its code says success."""
    assert int(result[0]) == 0, result
    return result[1] if len(result) == 2 else result[1:]


def start() -> Any:
    from cuda.bindings import driver

    ok(driver.cuInit(0))
    ok(driver.cuCtxSetCurrent(ok(driver.cuDevicePrimaryCtxRetain(ok(driver.cuDeviceGet(0))))))
    return driver


def in_thread(work: Any) -> Any:
    """The result of a call made on a thread of its own."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(work()))
    thread.start()
    thread.join()
    return results[0]


@on_fake_driver(truth=10, tick_ns=1, skew_ppm=40)
def test_events_take_the_time_between_them() -> None:
    driver = start()
    from tests.fake_driver import control

    stream = ok(driver.cuStreamCreate(1))
    first, last = ok(driver.cuEventCreate(0)), ok(driver.cuEventCreate(0))
    ok(driver.cuEventRecord(first, stream))
    control.enqueue(stream, 5_000_000)
    ok(driver.cuEventRecord(last, stream))
    ok(driver.cuEventSynchronize(last))
    ok(driver.cuEventQuery(last))
    truth = control.truth()
    assert [stamp.event for stamp in truth] == [int(first), int(last)]
    assert truth[0].call_ns <= truth[0].host_ns <= truth[1].host_ns - 5_000_000
    elapsed_ms = ok(driver.cuEventElapsedTime(first, last))
    assert elapsed_ms == pytest.approx((truth[1].device_ns - truth[0].device_ns) / 1e6, rel=1e-6)
    assert ok(driver.cuEventElapsedTime(last, first)) == -elapsed_ms
    host_ns = truth[1].host_ns - truth[0].host_ns
    assert truth[1].device_ns - truth[0].device_ns == pytest.approx(host_ns * (1 + 40e-6), abs=2)


@on_fake_driver()
def test_an_event_is_not_ready_before_its_stream_gets_there() -> None:
    driver = start()
    from tests.fake_driver import control

    stream = ok(driver.cuStreamCreate(1))
    before, after, unused = (ok(driver.cuEventCreate(0)) for _ in range(3))
    ok(driver.cuEventRecord(before, stream))
    control.enqueue(stream, HOUR_NS)
    ok(driver.cuEventRecord(after, stream))
    ok(driver.cuEventSynchronize(before))
    assert driver.cuEventQuery(after)[0] == 600
    assert driver.cuStreamQuery(stream)[0] == 600
    assert driver.cuEventElapsedTime(before, after)[0] == 600
    assert driver.cuEventQuery(unused)[0] == 0
    assert driver.cuEventElapsedTime(before, unused)[0] == 400


@on_fake_driver(wander_ppm=10, wander_period_s=2)
def test_the_clock_is_one_continuous_increasing_function() -> None:
    start()
    import time

    from tests.fake_driver import control

    now = time.monotonic_ns()
    times = [now + step * 100_000_000 for step in range(100)]
    shown = [control.device_time_ns(at) for at in times]
    rates = [(b - a) / 100_000_000 - 1 for a, b in itertools.pairwise(shown)]
    assert max(rates) == pytest.approx(10e-6, rel=0.05)
    assert min(rates) == pytest.approx(-10e-6, rel=0.05)
    before = control.device_time_ns(now)
    control.set(skew_ppm=50)
    later = time.monotonic_ns()
    assert control.device_time_ns(now) == before
    assert control.device_time_ns(later) - before == pytest.approx(later - now, rel=1e-4, abs=10)


@on_fake_driver()
def test_the_legacy_stream_waits_for_blocking_streams_and_they_for_it() -> None:
    driver = start()
    from tests.fake_driver import control

    blocking, free = ok(driver.cuStreamCreate(0)), ok(driver.cuStreamCreate(1))
    events = [ok(driver.cuEventCreate(0)) for _ in range(3)]
    control.enqueue(blocking, HOUR_NS)
    ok(driver.cuEventRecord(events[0], 0))
    ok(driver.cuEventRecord(events[1], free))
    control.enqueue(0, HOUR_NS)
    ok(driver.cuEventRecord(events[2], blocking))
    stamps = [control.event(event).host_ns for event in events]
    assert stamps[1] < stamps[0] <= stamps[2] - HOUR_NS


@on_fake_driver(devices=2)
def test_contexts_keep_their_own() -> None:
    driver = start()
    from tests.fake_driver import control

    stream, event = ok(driver.cuStreamCreate(1)), ok(driver.cuEventCreate(0))
    other = ok(driver.cuDevicePrimaryCtxRetain(1))
    ok(driver.cuCtxPushCurrent(other))
    foreign = ok(driver.cuEventCreate(0))
    assert driver.cuEventRecord(foreign, stream)[0] == 400
    ok(driver.cuEventRecord(event, stream))
    ok(driver.cuDevicePrimaryCtxRelease(1))
    assert control.live("event") == 1
    assert driver.cuEventCreate(0)[0] == 709
    ok(driver.cuCtxPopCurrent())
    assert in_thread(lambda: driver.cuEventCreate(0))[0] == 201


@on_fake_driver()
def test_a_destroyed_or_invented_handle_is_found_out() -> None:
    driver = start()
    stream, event = ok(driver.cuStreamCreate(1)), ok(driver.cuEventCreate(0))
    ok(driver.cuEventDestroy(event))
    ok(driver.cuStreamDestroy(stream))
    assert driver.cuEventQuery(event)[0] == 400
    assert driver.cuStreamSynchronize(stream)[0] == 400
    assert int(ok(driver.cuEventCreate(0))) != int(event)
    assert driver.cuStreamQuery(driver.CUstream(0xDEADBEEF))[0] == 400


@on_fake_driver()
def test_calls_fail_when_told_to() -> None:
    driver = start()
    from tests.fake_driver import control

    control.fail("cuEventCreate", 2, nth=2)
    assert [int(driver.cuEventCreate(0)[0]) for _ in range(3)] == [0, 2, 0]
    control.fail("cuStreamCreate", 700, lose_device=True)
    assert driver.cuStreamCreate(0)[0] == 700
    assert driver.cuCtxSynchronize()[0] == 700
    control.heal()
    assert driver.cuCtxSynchronize()[0] == 0
    with pytest.raises(KeyError):
        control.fail("cuNothing", 1)


def test_the_environment_says_the_same_to_a_program_that_knows_no_fake(tmp_path: Any) -> None:
    import subprocess
    import sys

    from tests.fake_driver import environment, require

    require()
    program = """
from cuda.bindings import driver
driver.cuInit(0)
driver.cuCtxSetCurrent(driver.cuDevicePrimaryCtxRetain(0)[1])
print([int(driver.cuEventCreate(0)[0]) for _ in range(2)])
driver.cuEventRecord(driver.cuEventCreate(0)[1], 0)
"""
    env = environment(
        fail="cuEventCreate:1:2", truth_file=tmp_path / "truth.%p.csv", counts_file=tmp_path / "counts.csv"
    )
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True)
    assert done.stdout == "[2, 0]\n", done.stderr
    header, line = next(iter(tmp_path.glob("truth.*.csv"))).read_text().splitlines()
    assert dict(zip(header.split(","), line.split(","), strict=True))["stream"] == "1"
    counts = (tmp_path / "counts.csv").read_text().splitlines()
    assert {"call,cuEventRecord,1", "live,event,2", "made,context,1"} <= {*counts}


@on_fake_driver()
def test_capture_makes_a_graph_whose_launch_takes_the_sum() -> None:
    driver = start()
    from tests.fake_driver import control

    side, main = ok(driver.cuStreamCreate(1)), ok(driver.cuStreamCreate(1))
    fork, join, plain, external = (ok(driver.cuEventCreate(0)) for _ in range(4))
    ok(driver.cuStreamBeginCapture(main, driver.CUstreamCaptureMode(GLOBAL)))
    control.enqueue(main, 2_000_000)
    ok(driver.cuEventRecord(fork, main))
    ok(driver.cuStreamWaitEvent(side, fork, 0))
    assert ok(driver.cuStreamIsCapturing(side)) == 1
    control.enqueue(side, 3_000_000)
    ok(driver.cuEventRecordWithFlags(external, side, 1))
    ok(driver.cuEventRecord(join, side))
    ok(driver.cuStreamWaitEvent(main, join, 0))
    graph = ok(driver.cuStreamEndCapture(main))
    assert ok(driver.cuStreamIsCapturing(side)) == 0
    executable = ok(driver.cuGraphInstantiate(graph, 0))
    ok(driver.cuEventRecord(plain, main))
    ok(driver.cuGraphLaunch(executable, main))
    assert control.event(external).host_ns - control.event(plain).host_ns >= 5_000_000
    assert driver.cuEventQuery(join)[0] == 907
    ok(driver.cuStreamSynchronize(main))
    assert control.stream_syncs(main) == 1
    assert control.stream_syncs(side) == 0


@on_fake_driver()
def test_an_unjoined_stream_spoils_its_capture() -> None:
    driver = start()
    side, main = ok(driver.cuStreamCreate(1)), ok(driver.cuStreamCreate(1))
    event = ok(driver.cuEventCreate(0))
    ok(driver.cuStreamBeginCapture(main, driver.CUstreamCaptureMode(GLOBAL)))
    ok(driver.cuEventRecord(event, main))
    ok(driver.cuStreamWaitEvent(side, event, 0))
    assert driver.cuStreamEndCapture(main)[0] == 904


@pytest.mark.parametrize(
    ("capture", "asker", "elsewhere", "broken"),
    [
        (GLOBAL, GLOBAL, True, True),
        (GLOBAL, GLOBAL, False, True),
        (GLOBAL, THREAD_LOCAL, True, False),
        (GLOBAL, THREAD_LOCAL, False, True),
        (GLOBAL, RELAXED, True, False),
        (GLOBAL, RELAXED, False, False),
        (THREAD_LOCAL, GLOBAL, True, False),
        (THREAD_LOCAL, GLOBAL, False, True),
        (RELAXED, GLOBAL, True, False),
        (RELAXED, GLOBAL, False, False),
    ],
)
@on_fake_driver()
def test_who_may_query_an_event_during_a_capture(capture: int, asker: int, elsewhere: bool, broken: bool) -> None:
    driver = start()
    context = ok(driver.cuCtxGetCurrent())
    stream, event = ok(driver.cuStreamCreate(1)), ok(driver.cuEventCreate(0))
    ok(driver.cuStreamBeginCapture(stream, driver.CUstreamCaptureMode(capture)))

    def query() -> int:
        ok(driver.cuCtxSetCurrent(context))
        ok(driver.cuThreadExchangeStreamCaptureMode(driver.CUstreamCaptureMode(asker)))
        return int(driver.cuEventQuery(event)[0])

    assert (in_thread(query) if elsewhere else query()) == (900 if broken else 0)
    assert driver.cuStreamEndCapture(stream)[0] == (901 if broken else 0)


@on_fake_driver()
def test_the_legacy_stream_beside_a_capturing_one() -> None:
    driver = start()
    event = ok(driver.cuEventCreate(0))
    free, blocking = ok(driver.cuStreamCreate(1)), ok(driver.cuStreamCreate(0))
    mode = driver.CUstreamCaptureMode(RELAXED)
    ok(driver.cuStreamBeginCapture(free, mode))
    assert ok(driver.cuStreamIsCapturing(0)) == 0
    ok(driver.cuStreamBeginCapture(blocking, mode))
    assert driver.cuStreamIsCapturing(0)[0] == 906
    assert ok(driver.cuStreamIsCapturing(blocking)) == 1  # asking is not an offence
    assert driver.cuEventRecord(event, 0)[0] == 906
    assert ok(driver.cuStreamIsCapturing(blocking)) == 2
    assert driver.cuStreamEndCapture(blocking)[0] == 901
    ok(driver.cuStreamEndCapture(free))


@on_fake_driver(driver_version=12000)
def test_an_older_driver_lacks_newer_functions() -> None:
    driver = start()
    stream = ok(driver.cuStreamCreate(1))
    ok(driver.cuStreamGetCtx(stream))
    with pytest.raises(RuntimeError):
        driver.cuStreamGetDevice(stream)


@on_fake_driver()
def test_a_forked_child_cannot_use_its_parents_driver() -> None:
    driver = start()
    child = os.fork()
    if child == 0:
        os._exit(int(driver.cuCtxSynchronize()[0]))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3


@on_fake_driver()
def test_copies_are_real_and_take_time() -> None:
    driver = start()
    from tests.fake_driver import control

    stream = ok(driver.cuStreamCreate(1))
    control.set(copy_ns=1_000_000, copy_gbps=1)
    source, back = b"gputrace" * 100, bytearray(800)
    memory = ok(driver.cuMemAlloc(800))
    before, after = ok(driver.cuEventCreate(0)), ok(driver.cuEventCreate(0))
    ok(driver.cuEventRecord(before, stream))
    ok(driver.cuMemcpyHtoDAsync(memory, source, 800, stream))
    ok(driver.cuMemcpyDtoHAsync(back, memory, 800, stream))
    ok(driver.cuEventRecord(after, stream))
    ok(driver.cuStreamSynchronize(stream))
    assert back == source
    assert ok(driver.cuEventElapsedTime(before, after)) >= 2.0015  # at 1 ms each and a byte a nanosecond
    ok(driver.cuMemFree(memory))
    assert driver.cuMemFree(memory)[0] == 1


@on_fake_driver(null=1)
def test_the_null_driver_records_nothing() -> None:
    driver = start()
    stream, event = ok(driver.cuStreamCreate(1)), ok(driver.cuEventCreate(0))
    ok(driver.cuEventRecord(event, stream))
    ok(driver.cuEventQuery(event))
    assert ok(driver.cuEventElapsedTime(event, event)) == 0
    from tests.fake_driver import control

    assert control.calls("cuEventRecord") == 0
