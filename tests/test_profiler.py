"""The profiler's contract, one clause a test, on a simulated GPU whose clock only moves when told."""

from __future__ import annotations

import gc
import logging

import pytest

from gputrace.devices.simulated import SimulatedGPU
from gputrace.errors import Capturing, DriverError, NotRegistered, UsageError, WindowFailed, WrongStream
from gputrace.measurement import UNREADABLE_NS, Placement, TimingMethod
from gputrace.profiler import EventProfiler, TimestampProfiler, Token
from tests.virtual import VirtualHost, run_for, virtual_gpu, virtual_profiler

MS = 1_000_000
SECOND = 1_000_000_000


def settled(profiler: EventProfiler) -> bool:
    """Nothing is held but the anchor's event."""
    return profiler.pool.live == (profiler.anchoring.event is not None)


def test_start_never_waits_and_takes_no_anchor() -> None:
    host, gpu, profiler = virtual_profiler()
    stream = gpu.stream()
    stream.launch(3600 * SECOND)
    before_ns = host.at_ns
    profiler.start(stream)
    assert host.at_ns - before_ns < MS
    assert gpu.live_streams == 1  # the program's; the anchor's comes later
    profiler.tick()
    assert gpu.live_streams == 2


def test_a_profiler_without_windows_asks_the_device_for_nothing() -> None:
    _, gpu, profiler = virtual_profiler()
    profiler.tick()
    assert (gpu.live_streams, gpu.live_events) == (0, 0)


def test_a_window_measures_its_own_work() -> None:
    host, gpu, profiler = virtual_profiler()
    stream = gpu.stream()
    token = profiler.start(stream)
    opened_ns = stream.idle_at_ns
    stream.launch(5 * MS)
    measurement = profiler.stop(stream, token)
    closed_ns = stream.idle_at_ns
    assert not measurement.done()
    host.advance(6 * MS)
    reading = measurement.result()
    true_ns = gpu.clock.device_ns(closed_ns) - gpu.clock.device_ns(opened_ns)
    assert abs(reading.duration_ns - true_ns) <= reading.duration_uncertainty_ns < 100
    assert reading.start_ns is not None
    assert reading.end_ns is not None
    assert reading.uncertainty_ns is not None
    assert abs(reading.start_ns - opened_ns) <= reading.uncertainty_ns
    assert abs(reading.end_ns - closed_ns) <= reading.uncertainty_ns
    assert reading.timing is TimingMethod.DEVICE
    assert settled(profiler)


def test_an_outer_window_does_not_grow_with_the_inner_ones() -> None:
    """The draining profiler's does: each inner one lets the queue run empty twice."""
    grown: dict[type, int] = {}
    for kind in (EventProfiler, TimestampProfiler):
        outer_ns = []
        for inner in (0, 4):
            host = VirtualHost()
            gpu = virtual_gpu(host, submit_delay_ns=100_000)
            profiler = EventProfiler(gpu, host.now_ns) if kind is EventProfiler else TimestampProfiler(gpu, host.now_ns)
            stream = gpu.stream()
            outer = profiler.start(stream)
            for _ in range(4):
                token = profiler.start(stream) if inner else None
                stream.launch(MS)
                if token is not None:
                    profiler.stop(stream, token)
            measurement = profiler.stop(stream, outer)
            host.advance(10 * MS)
            outer_ns.append(measurement.result().duration_ns)
        grown[kind] = outer_ns[1] - outer_ns[0]
    assert grown[EventProfiler] < 100_000 < 4 * 100_000 <= grown[TimestampProfiler]


@pytest.mark.parametrize("kind", [EventProfiler, TimestampProfiler])
class TestBoth:
    """What holds for the draining profiler too."""

    def make(self, kind: type) -> tuple[VirtualHost, SimulatedGPU, EventProfiler]:
        host = VirtualHost()
        gpu = virtual_gpu(host)
        return host, gpu, kind(gpu, host.now_ns)

    def test_a_token_is_used_once(self, kind: type) -> None:
        _, gpu, profiler = self.make(kind)
        stream = gpu.stream()
        token = profiler.start(stream)
        profiler.stop(stream, token)
        with pytest.raises(NotRegistered, match="used"):
            profiler.stop(stream, token)

    def test_a_token_never_issued(self, kind: type) -> None:
        _, gpu, profiler = self.make(kind)
        other = kind(gpu)
        stream = gpu.stream()
        token = profiler.start(stream)
        theirs = other.start(stream)
        for unknown in (Token(0), theirs, None, 0, []):
            with pytest.raises(NotRegistered):
                profiler.stop(stream, unknown)  # type: ignore[arg-type]
        profiler.stop(stream, token)
        other.stop(stream, theirs)

    def test_the_wrong_stream_uses_the_token_up(self, kind: type) -> None:
        _, gpu, profiler = self.make(kind)
        stream = gpu.stream()
        token = profiler.start(stream)
        with pytest.raises(WrongStream, match="stop it where it started"):
            profiler.stop(gpu.stream(), token)
        with pytest.raises(NotRegistered):
            profiler.stop(stream, token)
        assert profiler.pool.live == 0

    def test_no_stream_at_all_uses_the_token_up(self, kind: type) -> None:
        _, gpu, profiler = self.make(kind)
        stream = gpu.stream()
        with pytest.raises(UsageError):
            profiler.start("nonsense")
        token = profiler.start(stream)
        with pytest.raises(UsageError):
            profiler.stop("nonsense", token)
        with pytest.raises(NotRegistered):
            profiler.stop(stream, token)
        assert profiler.pool.live == 0

    def test_abandon_is_silent_and_idempotent(self, kind: type) -> None:
        _, gpu, profiler = self.make(kind)
        stream = gpu.stream()
        token = profiler.start(stream)
        profiler.abandon(token)
        profiler.abandon(token)
        profiler.abandon(Token(99))
        with pytest.raises(NotRegistered):
            profiler.stop(stream, token)
        assert profiler.pool.live == 0

    def test_failure_poisons_what_is_open_and_nothing_else(self, kind: type) -> None:
        host, gpu, profiler = self.make(kind)
        stream = gpu.stream()
        before = profiler.stop(stream, profiler.start(stream))
        open_ = [profiler.start(stream) for _ in range(2)]
        error = RuntimeError("kernel failed")
        profiler.failure(error)
        after = profiler.start(stream)
        for token in open_:
            with pytest.raises(RuntimeError) as raised:
                profiler.stop(stream, token)
            assert raised.value is error
        good = profiler.stop(stream, after)
        host.advance(MS)
        assert before.result().error is None
        assert good.result().error is None

    def test_failure_on_one_stream(self, kind: type) -> None:
        _, gpu, profiler = self.make(kind)
        first, second = gpu.stream(), gpu.stream()
        mine, other = profiler.start(first), profiler.start(second)
        profiler.failure("boom", first)
        with pytest.raises(WindowFailed, match="boom"):
            profiler.stop(first, mine)
        profiler.stop(second, other)

    def test_the_first_failure_stays(self, kind: type) -> None:
        _, gpu, profiler = self.make(kind)
        stream = gpu.stream()
        token = profiler.start(stream)
        profiler.failure("first")
        profiler.failure("second")
        with pytest.raises(WindowFailed, match="first"):
            profiler.stop(stream, token)

    def test_failure_with_nothing_open_does_nothing(self, kind: type) -> None:
        _, gpu, profiler = self.make(kind)
        profiler.failure("boom", "not even a stream")
        stream = gpu.stream()
        profiler.stop(stream, profiler.start(stream))

    def test_a_poisoned_window_can_be_abandoned(self, kind: type) -> None:
        _, gpu, profiler = self.make(kind)
        token = profiler.start(gpu.stream())
        profiler.failure("boom")
        profiler.abandon(token)
        assert profiler.pool.live == 0

    def test_no_window_opens_during_a_capture(self, kind: type) -> None:
        _, gpu, profiler = self.make(kind)
        stream = gpu.stream()
        stream.begin_capture()
        with pytest.raises(Capturing):
            profiler.start(stream)
        assert profiler.pool.live == 0
        stream.end_capture()
        profiler.stop(stream, profiler.start(stream))

    def test_a_window_in_which_a_capture_began_is_abandoned(self, kind: type) -> None:
        _, gpu, profiler = self.make(kind)
        stream = gpu.stream()
        token = profiler.start(stream)
        stream.begin_capture()
        with pytest.raises(Capturing, match="abandoned"):
            profiler.stop(stream, token)
        stream.end_capture()
        with pytest.raises(NotRegistered):
            profiler.stop(stream, token)
        assert profiler.pool.live == 0

    def test_a_graph_replay_is_one_window(self, kind: type) -> None:
        host, gpu, profiler = self.make(kind)
        stream = gpu.stream()
        stream.begin_capture()
        stream.launch(MS)
        stream.launch(2 * MS)
        graph_ns = stream.end_capture()
        token = profiler.start(stream)
        stream.launch(graph_ns)
        measurement = profiler.stop(stream, token)
        host.advance(4 * MS)
        assert measurement.result().duration_ns >= 3 * MS - 1000

    def test_closing_gives_everything_back(self, kind: type) -> None:
        host, gpu, profiler = self.make(kind)
        stream = gpu.stream()
        with profiler:
            profiler.start(stream)
            measurement = profiler.stop(stream, profiler.start(stream))
            host.advance(MS)
            measurement.result()
        assert (gpu.live_events, gpu.live_streams) == (0, 1)


def test_a_device_that_refuses_opens_no_window() -> None:
    _, gpu, profiler = virtual_profiler()
    gpu.fail_after = 0
    with pytest.raises(DriverError):
        profiler.start(gpu._default)
    assert profiler.pool.live == 0
    assert len(profiler._windows) == 0


def test_a_device_that_refuses_to_close_one_leaves_nothing() -> None:
    _, gpu, profiler = virtual_profiler()
    stream = gpu.stream()
    token = profiler.start(stream)
    gpu.fail_after = 1
    with pytest.raises(DriverError):
        profiler.stop(stream, token)
    with pytest.raises(NotRegistered):
        profiler.stop(stream, token)
    assert profiler.pool.live == 0


def test_an_unreadable_window_reports_an_hour_and_says_why(caplog: pytest.LogCaptureFixture) -> None:
    host, gpu, profiler = virtual_profiler()
    stream = gpu.stream()
    measurement = profiler.stop(stream, profiler.start(stream))
    gpu.fail_after = 0
    host.advance(MS)
    with caplog.at_level(logging.ERROR, "gputrace"):
        reading = measurement.result()
    assert reading.duration_ns == UNREADABLE_NS
    assert reading.placement is Placement.NONE
    assert (reading.start_ns, reading.end_ns, reading.uncertainty_ns) == (None, None, None)
    assert "device lost" in str(reading.error)
    assert "device lost" in caplog.text
    assert settled(profiler)


def test_windows_that_were_read_survive_the_device() -> None:
    host, gpu, profiler = virtual_profiler()
    stream = gpu.stream()
    measurement = profiler.stop(stream, profiler.start(stream))
    host.advance(MS)
    profiler.tick()
    host.advance(100 * MS)
    gpu.fail_after = 0
    assert measurement.result().duration_ns < UNREADABLE_NS


def test_closing_answers_for_windows_unread() -> None:
    _, gpu, profiler = virtual_profiler()
    stream = gpu.stream()
    stream.launch(SECOND)
    measurement = profiler.stop(stream, profiler.start(stream))
    profiler.close()
    assert "closed before" in str(measurement.result().error)
    assert (gpu.live_events, gpu.live_streams) == (0, 1)
    with pytest.raises(UsageError, match="closed"):
        profiler.start(stream)
    profiler.close()


def test_a_dropped_profiler_gives_its_stream_back() -> None:
    host, gpu, profiler = virtual_profiler()
    stream = gpu.stream()
    measurement = profiler.stop(stream, profiler.start(stream))
    host.advance(MS)
    measurement.result()
    del profiler, measurement
    gc.collect()
    assert (gpu.live_events, gpu.live_streams) == (0, 1)


def test_without_an_anchor_a_window_still_has_its_duration() -> None:
    host, gpu, profiler = virtual_profiler()
    stream = gpu.stream()
    gpu.stream_create = lambda: (_ for _ in ()).throw(DriverError("cuStreamCreate", 2))  # type: ignore[method-assign]
    token = profiler.start(stream)
    stream.launch(MS)
    asked, patient = profiler.stop(stream, token), profiler.stop(stream, profiler.start(stream))
    host.advance(2 * MS)
    reading = asked.result()
    assert reading.duration_ns >= MS - 1000
    assert reading.placement is Placement.NONE
    assert reading.error is None
    assert not patient.resolved
    run_for(host, profiler, 2 * SECOND)
    assert patient.resolved
    assert settled(profiler)


def test_ticks_read_and_place_without_anybody_asking() -> None:
    host, gpu, profiler = virtual_profiler()
    stream = gpu.stream()
    run_for(host, profiler, 100 * MS)
    measurement = profiler.stop(stream, profiler.start(stream))
    profiler.tick()
    measurement = profiler.stop(stream, profiler.start(stream))
    run_for(host, profiler, 400 * MS)
    assert measurement.resolved
    assert measurement.result().placement is Placement.EXACT
    assert settled(profiler)


def test_a_window_waits_a_second_for_its_anchor() -> None:
    host, gpu, profiler = virtual_profiler()
    stream = gpu.stream()
    hold = profiler.start(stream)
    run_for(host, profiler, SECOND)
    measurement = profiler.stop(stream, profiler.start(stream))
    profiler.anchoring.refresh = lambda *_, **__: False  # type: ignore[method-assign]
    run_for(host, profiler, 900 * MS)
    assert not measurement.resolved
    run_for(host, profiler, 300 * MS)
    assert measurement.resolved
    assert measurement.result().placement is Placement.APPROXIMATE
    profiler.abandon(hold)


def test_one_slow_stream_does_not_hold_up_another() -> None:
    host, gpu, profiler = virtual_profiler()
    slow, quick = gpu.stream(), gpu.stream()
    slow.launch(3600 * SECOND)
    late = profiler.stop(slow, profiler.start(slow))
    soon = profiler.stop(quick, profiler.start(quick))
    host.advance(MS)
    assert soon.done()
    assert not late.done()


@pytest.mark.parametrize("seconds", [3, 20, 600])
def test_a_long_window_is_as_good_as_the_chain(seconds: int) -> None:
    host, gpu, profiler = virtual_profiler()
    stream = gpu.stream()
    token = profiler.start(stream)
    opened_ns = stream.idle_at_ns
    run_for(host, profiler, seconds * SECOND, 250 * MS)
    measurement = profiler.stop(stream, token)
    closed_ns = stream.idle_at_ns
    host.advance(MS)
    reading = measurement.result()
    true_ns = gpu.clock.device_ns(closed_ns) - gpu.clock.device_ns(opened_ns)
    assert abs(reading.duration_ns - true_ns) <= reading.duration_uncertainty_ns
    assert reading.start_ns is not None
    assert reading.end_ns is not None
    assert reading.uncertainty_ns is not None
    assert abs(reading.start_ns - opened_ns) <= reading.uncertainty_ns < 20_000
    assert abs(reading.end_ns - closed_ns) <= reading.uncertainty_ns


def test_a_long_window_nobody_watched_is_still_within_its_error() -> None:
    host, gpu, profiler = virtual_profiler()
    stream = gpu.stream()
    token = profiler.start(stream)
    opened_ns = stream.idle_at_ns
    host.advance(3600 * SECOND)
    measurement = profiler.stop(stream, token)
    closed_ns = stream.idle_at_ns
    host.advance(MS)
    reading = measurement.result()
    true_ns = gpu.clock.device_ns(closed_ns) - gpu.clock.device_ns(opened_ns)
    assert abs(reading.duration_ns - true_ns) <= reading.duration_uncertainty_ns
    assert reading.start_ns is not None
    assert reading.uncertainty_ns is not None
    assert abs(reading.start_ns - opened_ns) <= reading.uncertainty_ns


def test_asking_right_after_the_work_takes_few_tries() -> None:
    host, gpu, profiler = virtual_profiler()
    stream = gpu.stream()
    tries = 0
    real = profiler.anchoring._bracket

    def counted() -> object:
        nonlocal tries
        tries += 1
        return real()

    profiler.anchoring._bracket = counted  # type: ignore[method-assign, assignment]
    for _ in range(100):
        token = profiler.start(stream)
        stream.launch(100_000)
        measurement = profiler.stop(stream, token)
        host.advance(150_000)
        measurement.result()
    assert tries <= 8 + 100 // 20


def test_memory_is_flat() -> None:
    host, gpu, profiler = virtual_profiler()
    stream = gpu.stream()
    for _ in range(2000):
        measurement = profiler.stop(stream, profiler.start(stream))
        host.advance(20 * MS)
        measurement.result()
    assert profiler.pool.created < 10
    assert not profiler._unread
    assert not profiler._unplaced
    assert len(profiler.anchoring.map.pieces) <= 2 * 2048
