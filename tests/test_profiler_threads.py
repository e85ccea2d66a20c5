"""Many threads, a ticking collector beside them, a profiler closed under their hands: nothing lost, nothing stuck."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from gputrace.devices.base import PER_THREAD
from gputrace.devices.simulated import SimulatedGPU
from gputrace.errors import UsageError, WindowError, WrongStream
from gputrace.measurement import Measurement
from gputrace.profiler import EventProfiler


@pytest.fixture(autouse=True)
def _often_interrupted() -> Iterator[None]:
    """Threads take turns every few instructions."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


def together(*works: Callable[[], None]) -> None:
    failed: list[BaseException] = []

    def run(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert not failed, failed


def test_windows_of_many_threads() -> None:
    gpu = SimulatedGPU()
    profiler = EventProfiler(gpu)
    shared = gpu.stream()
    measured: list[Measurement] = []
    over = threading.Event()

    def program() -> None:
        own = gpu.stream()
        for number in range(60):
            stream = shared if number % 3 else own
            outer = profiler.start(stream)
            inner = profiler.start(stream)
            stream.launch(2_000)
            if number % 7 == 0:
                profiler.abandon(inner)
            else:
                measured.append(profiler.stop(stream, inner))
            if number % 11 == 0:
                profiler.failure("boom", own)
            with contextlib.suppress(WindowError):
                measured.append(profiler.stop(stream, outer))
            if number % 10 == 5:
                measured[-1].result(60)

    def collect() -> None:
        while not over.is_set():
            profiler.tick()

    def programs() -> None:
        try:
            together(*[program] * 4)
        finally:
            over.set()

    together(collect, programs)
    for measurement in measured:
        assert measurement.result(60).error is None
    assert profiler.pool.live == 1
    assert profiler.pool.created == gpu.live_events
    profiler.close()
    assert gpu.live_events == 0


def test_a_token_that_many_threads_stop_is_good_for_one() -> None:
    gpu = SimulatedGPU()
    profiler = EventProfiler(gpu)
    stream = gpu.stream()
    for _ in range(30):
        token = profiler.start(stream)
        stopped: list[Measurement] = []

        def stop(token=token, stopped=stopped) -> None:  # type: ignore[no-untyped-def]
            with contextlib.suppress(WindowError):
                stopped.append(profiler.stop(stream, token))

        together(*[stop] * 4)
        assert len(stopped) == 1


def test_closed_under_their_hands() -> None:
    for _ in range(10):
        gpu = SimulatedGPU()
        profiler = EventProfiler(gpu)
        measured: list[Measurement] = []

        def program(gpu=gpu, profiler=profiler, measured=measured) -> None:  # type: ignore[no-untyped-def]
            stream = gpu.stream()
            with contextlib.suppress(UsageError, WindowError):
                while True:
                    measured.append(profiler.stop(stream, profiler.start(stream)))
                    profiler.tick()

        together(program, program, profiler.close)
        for measurement in measured:
            measurement.result(60)
        profiler.close()
        assert gpu.live_events == 0
        assert gpu.live_streams == 2  # the programs' own


def test_the_per_thread_stream_is_another_one_on_another_thread() -> None:
    profiler = EventProfiler(SimulatedGPU())
    token = profiler.start(PER_THREAD)
    caught: list[BaseException] = []

    def stop() -> None:
        try:
            profiler.stop(PER_THREAD, token)
        except WrongStream as error:
            caught.append(error)

    together(stop)
    assert "another's" in str(caught[0])
    assert profiler.pool.live == 0
