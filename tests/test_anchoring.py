"""Anchors: narrow brackets that hold the truth, retried soon, and nothing leaked where one cannot be taken."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gputrace import anchoring as module
from gputrace.anchoring import MAX_AGE_NS, REFRESH_NS, RETRY_NS, TRIES, Anchoring
from gputrace.devices.simulated import SimulatedGPU
from gputrace.errors import DriverError
from gputrace.events import EventPool
from tests.virtual import VirtualHost, virtual_gpu


class Watched(Anchoring):
    """Counts its tries."""

    tries = 0

    def _bracket(self) -> Any:
        self.tries += 1
        return super()._bracket()


def anchoring(host: VirtualHost | None = None, gpu: SimulatedGPU | None = None) -> Watched:
    host = host or VirtualHost()
    gpu = gpu or virtual_gpu(host)
    return Watched(gpu, EventPool(gpu), host.now_ns)


def failing(gpu: SimulatedGPU, call: str, after: int = 0) -> None:
    """Have a call of the device raise once it was made so often."""
    real, made = getattr(gpu, call), [0]

    def instead(*arguments: Any) -> Any:
        made[0] += 1
        if made[0] > after:
            raise DriverError(call, 700)
        return real(*arguments)

    setattr(gpu, call, instead)


def healed(gpu: SimulatedGPU, call: str) -> None:
    delattr(gpu, call)


@settings(deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 20_000_000))
def test_a_bracket_holds_the_truth(seed: int, stall_ns: int) -> None:
    host = VirtualHost(seed, stall_ns, stall_share=0.2)
    taking = anchoring(host)
    for _ in range(4):
        if taking.refresh():
            last = taking.map.last
            assert last is not None
            assert last.low_ns <= taking.event.true_host_ns <= last.high_ns
        assert taking._stuck is None
        assert taking.pool.live == (taking.event is not None)
        host.advance(REFRESH_NS)


def test_the_narrowest_of_many_is_taken_where_the_gil_is_lost() -> None:
    """A bracket reads the clock some forty times here: with one loss in fifty reads, most are milliseconds wide."""
    host = VirtualHost(1, stall_ns=5_000_000, stall_share=0.02)
    taking = anchoring(host)
    for _ in range(20):
        assert taking.refresh()
        assert taking.last_width_ns < 20_000
        host.advance(REFRESH_NS)


def test_tries_end_at_one_about_as_narrow_as_they_get() -> None:
    host = VirtualHost()
    taking = anchoring(host)
    taking.refresh()
    assert taking.tries == TRIES  # nothing to compare with yet
    for _ in range(10):
        taking.tries = 0
        host.advance(REFRESH_NS)
        taking.refresh()
        assert taking.tries < 5


def test_hurry_and_a_number_end_the_tries() -> None:
    taking = anchoring()
    taking.refresh(hurry=lambda: True)
    assert taking.tries == 1
    taking = anchoring()
    taking.refresh(tries=3)
    assert taking.tries == 3


def test_due_every_quarter_second_and_sooner_after_a_failure() -> None:
    host = VirtualHost()
    gpu = virtual_gpu(host)
    taking = anchoring(host, gpu)
    assert taking.due(host.now_ns())
    taking.refresh()
    assert not taking.due(taking.taken_ns + REFRESH_NS - 1)
    assert taking.due(taking.taken_ns + REFRESH_NS)
    host.advance(REFRESH_NS)
    failing(gpu, "event_record")
    assert not taking.refresh()
    assert not taking.due(taking.tried_ns + RETRY_NS - 1)
    assert taking.due(taking.tried_ns + RETRY_NS)


@pytest.mark.parametrize("call", ["stream_create", "event_create", "event_record", "event_query"])
@pytest.mark.parametrize("after", [0, 1])
def test_a_first_anchor_that_fails_leaks_nothing(call: str, after: int) -> None:
    host = VirtualHost()
    gpu = virtual_gpu(host)
    taking = anchoring(host, gpu)
    failing(gpu, call, after)
    if taking.refresh():  # one try was enough
        return
    assert taking.failed == 1
    assert taking.event is None
    assert gpu.live_streams == 0
    assert taking.pool.live == 0
    healed(gpu, call)
    assert taking.refresh()
    assert (gpu.live_streams, taking.pool.live) == (1, 1)


@pytest.mark.parametrize("call", ["event_record", "event_query", "elapsed_ms"])
def test_a_failed_refresh_keeps_the_last_anchor(call: str) -> None:
    host = VirtualHost()
    gpu = virtual_gpu(host)
    taking = anchoring(host, gpu)
    taking.refresh()
    event, last = taking.event, taking.map.last
    host.advance(REFRESH_NS)
    failing(gpu, call)
    assert not taking.refresh()
    assert (taking.event, taking.map.last) == (event, last)
    assert taking.pool.live == 1
    healed(gpu, call)
    assert taking.refresh()


def test_a_poor_bracket_is_refused_until_the_last_anchor_is_old() -> None:
    host = VirtualHost()
    taking = anchoring(host)
    taking.refresh()
    host._stall_ns, host._stall_share = 4_000_000, 1.0
    host.advance(REFRESH_NS)
    assert not taking.refresh()
    assert taking.pool.live == 1
    host.advance(MAX_AGE_NS)
    assert taking.refresh()
    assert taking.last_width_ns > 100_000  # poor, and the map says so
    assert taking.map.pieces[-1].error1 > 50_000


def test_a_stuck_stream_is_asked_once_until_it_answers() -> None:
    host = VirtualHost()
    gpu = virtual_gpu(host)
    taking = anchoring(host, gpu)
    taking.refresh()
    host.advance(REFRESH_NS)
    taking._stream.launch(3_000_000_000)
    taking.tries = 0
    assert not taking.refresh()
    assert taking.tries == 1  # the others would only spin as long
    for _ in range(5):
        host.advance(RETRY_NS)
        before_ns = host.at_ns
        assert not taking.refresh()
        assert host.at_ns - before_ns < 10_000  # no spinning
    assert taking.tries == 1
    assert taking.pool.live == 2  # the last anchor's, and the one the stream has not come to
    host.advance(3_000_000_000)
    assert taking.refresh()
    assert taking.pool.live == 1


def test_an_interrupt_between_tries_loses_no_event() -> None:
    taking = anchoring()

    def interrupt() -> bool:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        taking.refresh(interrupt)
    assert taking.pool.live == 0


def test_a_clock_that_stands_still_gives_no_anchor() -> None:
    host = VirtualHost()
    gpu = virtual_gpu(host, tick_ns=10_000_000_000)
    taking = anchoring(host, gpu)
    assert taking.refresh()
    host.advance(REFRESH_NS)
    assert not taking.refresh()
    assert taking.pool.live == 1


def test_closing_gives_all_back_and_ends_it() -> None:
    host = VirtualHost()
    gpu = virtual_gpu(host)
    taking = anchoring(host, gpu)
    taking.refresh()
    taking.close()
    taking.pool.close()
    assert (gpu.live_events, gpu.live_streams) == (0, 0)
    assert not taking.refresh()
    assert (gpu.live_events, gpu.live_streams) == (0, 0)


def test_a_stamp_chains_across_anchors() -> None:
    """An event long past reads the same against any later anchor, within what the stamps say."""
    host = VirtualHost()
    gpu = virtual_gpu(host)
    taking = anchoring(host, gpu)
    stream = gpu.stream()
    taking.refresh()
    event = taking.pool.acquire()
    gpu.event_record(event, stream)
    host.advance(10_000)
    first = taking.stamp(event)
    for _ in range(40):
        host.advance(REFRESH_NS)
        assert taking.refresh()
    later = taking.stamp(event)
    assert abs(first.device_ns - later.device_ns) <= later.error_ns
    assert later.chained_ns > first.chained_ns


def test_measure_says_how_good_the_clock_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REFRESH_NS", 20_000_000)
    gpu = SimulatedGPU()
    quality = module.measure(gpu, 0.1)
    assert quality.skew_ppm is not None
    assert abs(quality.skew_ppm - gpu.clock.skew_ppm) <= quality.skew_error_ppm
    assert (gpu.live_events, gpu.live_streams) == (0, 0)


def test_measure_on_a_device_that_does_not_answer() -> None:
    gpu = SimulatedGPU()
    gpu.fail_after = 0
    gpu._recorded = 1
    with pytest.raises(DriverError, match="did not answer"):
        module.measure(gpu, 0.0)
