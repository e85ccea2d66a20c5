"""Random programs of windows: each is measured once, in its own bounds, inside its parent, and no event is lost."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gputrace.devices.simulated import SimulatedEvent, SimulatedGPU
from gputrace.errors import Capturing, DriverError, NotRegistered, WindowFailed
from gputrace.measurement import UNREADABLE_NS, Measurement, Placement, Reading
from gputrace.profiler import EventProfiler, Token
from tests.virtual import VirtualHost, virtual_gpu

STREAMS = 3

#: Steps by how often they come.
COMMON = {"start": 6, "stop": 6, "launch": 3, "advance": 3, "tick": 2, "ask": 2, "abandon": 1, "failure": 0.5}
COMMON["capture"] = 1


def random_program(seed: int, length: int) -> list[tuple[Any, ...]]:
    """A program of windows. By a seed: left to draw each step, hypothesis makes programs that hardly do anything."""
    rng = random.Random(seed)
    names = rng.choices(list(COMMON), list(COMMON.values()), k=length)
    return [(name, *_arguments(name, rng)) for name in names]


def _arguments(name: str, rng: random.Random) -> tuple[int, ...]:
    stream = rng.randrange(STREAMS)
    match name:
        case "start" | "capture":
            return (stream,)
        case "launch":
            return stream, rng.choice([0, rng.randrange(100_000), rng.randrange(30_000_000), 1_500_000_000])
        case "advance":
            return (rng.choice([rng.randrange(100_000), rng.randrange(50_000_000), rng.randrange(600_000_000)]),)
        case "failure":
            return (rng.choice([-1, stream]),)
        case "tick":
            return ()
    return (rng.randrange(10),)


steps = st.builds(random_program, st.integers(0, 2**32), st.integers(1, 150))
hosts = st.builds(
    VirtualHost,
    seed=st.integers(0, 1000),
    stall_ns=st.sampled_from([0, 0, 5_000_000, 30_000_000]),
    stall_share=st.floats(0, 0.1),
)
clocks = st.fixed_dictionaries(
    {
        "skew_ppm": st.floats(-50, 50),
        "wander_ppm": st.floats(0, 10),
        "wander_period_s": st.floats(2, 60),
        "tick_ns": st.sampled_from([1, 32, 500]),
        "offset_ns": st.integers(0, 10**15),
        "submit_delay_ns": st.integers(0, 20_000),
    }
)


@dataclass(eq=False)
class Window:
    stream: int
    start: int  # true host time, ns
    token: Token
    parents: list[Window]
    poisoned: bool = False
    end: int = 0
    measurement: Measurement | None = None
    answers: list[Reading] = field(default_factory=list)


class Program:
    """Runs steps and keeps its own account of what ought to come of them."""

    def __init__(self, host: VirtualHost, clock: dict[str, Any], fail_after: int | None = None) -> None:
        self.host = host
        self.gpu: SimulatedGPU = virtual_gpu(host, **clock)
        self.profiler = EventProfiler(self.gpu, host.now_ns)
        self.streams = [self.gpu.stream() for _ in range(STREAMS)]
        self.gpu.fail_after = fail_after
        self.open: list[Window] = []
        self.stopped: list[Window] = []
        self.last: SimulatedEvent | None = None
        record = self.gpu.event_record

        def witness(event: SimulatedEvent, stream: Any) -> None:
            record(event, stream)
            self.last = event

        self.gpu.event_record = witness  # type: ignore[method-assign]

    def run(self, program: list[tuple[Any, ...]]) -> None:
        for what, *arguments in program:
            getattr(self, what)(*arguments)
            self.check_events()

    def start(self, index: int) -> None:
        stream = self.streams[index]
        capturing = stream.capturing
        try:
            token = self.profiler.start(stream)
        except Capturing:
            assert capturing
            return
        except DriverError:
            assert self.gpu._lost
            return
        assert not capturing
        assert self.last is not None
        parents = [window for window in self.open if window.stream == index]
        self.open.append(Window(index, self.last.true_host_ns, token, parents))

    def stop(self, which: int) -> None:
        if not self.open:
            return
        window = self.open.pop(which % len(self.open))
        stream = self.streams[window.stream]
        try:
            window.measurement = self.profiler.stop(stream, window.token)
        except WindowFailed:
            assert window.poisoned
        except Capturing:
            assert stream.capturing
        except DriverError:
            assert self.gpu._lost
        else:
            assert not window.poisoned
            assert self.last is not None
            window.end = self.last.true_host_ns
            self.stopped.append(window)
        self.used_up(window)

    def used_up(self, window: Window) -> None:
        try:
            self.profiler.stop(self.streams[window.stream], window.token)
        except NotRegistered:
            return
        raise AssertionError("a token was good twice")

    def launch(self, index: int, ns: int) -> None:
        self.streams[index].launch(ns)

    def advance(self, ns: int) -> None:
        self.host.advance(ns)

    def tick(self) -> None:
        self.profiler.tick()

    def ask(self, which: int) -> None:
        if self.stopped:
            window = self.stopped[which % len(self.stopped)]
            assert window.measurement is not None
            if window.measurement.done():
                window.answers.append(window.measurement.result())

    def abandon(self, which: int) -> None:
        if self.open:
            window = self.open.pop(which % len(self.open))
            self.profiler.abandon(window.token)
            self.used_up(window)

    def failure(self, index: int) -> None:
        self.profiler.failure("boom", None if index < 0 else self.streams[index])
        for window in self.open:
            window.poisoned |= index in (-1, window.stream)

    def capture(self, index: int) -> None:
        stream = self.streams[index]
        if stream.capturing:
            stream.launch(stream.end_capture())
        else:
            stream.begin_capture()

    def check_events(self) -> None:
        """What is live is what open and unread windows need, an anchor, and one that the anchor stream still owes."""
        pool, profiler = self.profiler.pool, self.profiler
        assert pool.created == pool.pooled + pool.live == self.gpu.live_events
        unread = [*profiler._stopped, *(c for queue in profiler._unread.values() for c in queue), *profiler._unplaced]
        held = len(self.open) + 2 * sum(closed.end is not None for closed in unread)
        anchors = (profiler.anchoring.event is not None) + (profiler.anchoring._stuck is not None)
        assert pool.live == held + anchors

    def finish(self) -> None:
        """Let the device end its work, and ask everything."""
        for stream in self.streams:
            if stream.capturing:
                stream.end_capture()
        self.host.advance(max(0, *(stream.idle_at_ns - self.host.at_ns for stream in self.streams)) + 1_000_000)
        for window in self.stopped:
            assert window.measurement is not None
            assert window.measurement.done()
            window.answers.append(window.measurement.result())
            assert len({id(answer) for answer in window.answers}) == 1
        self.check_events()

    def check_reading(self, window: Window) -> None:
        reading = window.answers[-1]
        true_ns = self.gpu.clock.device_ns(window.end) - self.gpu.clock.device_ns(window.start)
        assert abs(reading.duration_ns - true_ns) <= reading.duration_uncertainty_ns
        if reading.placement is Placement.NONE:
            return
        assert reading.start_ns is not None
        assert reading.end_ns is not None
        assert reading.uncertainty_ns is not None
        assert abs(reading.start_ns - window.start) <= reading.uncertainty_ns
        assert abs(reading.end_ns - window.end) <= reading.uncertainty_ns
        assert reading.start_ns <= reading.end_ns


@settings(max_examples=150, deadline=None)
@given(hosts, clocks, steps)
def test_every_window_is_measured_once_within_its_bounds(
    host: VirtualHost, clock: dict[str, Any], program: list[tuple[Any, ...]]
) -> None:
    run = Program(host, clock)
    run.run(program)
    run.finish()
    for window in run.stopped:
        assert window.answers[-1].error is None
        assert window.answers[-1].placement is not Placement.NONE
        run.check_reading(window)


@settings(max_examples=100, deadline=None)
@given(hosts, clocks, steps)
def test_an_inner_window_lies_inside_the_outer_one(
    host: VirtualHost, clock: dict[str, Any], program: list[tuple[Any, ...]]
) -> None:
    run = Program(host, clock)
    run.run(program)
    run.finish()
    measured = set(run.stopped)
    for window in run.stopped:
        inner = window.answers[-1]
        for parent in window.parents:
            if parent not in measured or parent.end < window.end:
                continue
            outer = parent.answers[-1]
            assert inner.start_ns is not None
            assert inner.end_ns is not None
            assert outer.start_ns is not None
            assert outer.end_ns is not None
            # Two readings of one instant, against anchors some way off, may differ by what f32 loses over that way.
            slack_ns = 4 * (1 + (int(run.host.at_ns - 10**12) >> 24))
            assert outer.start_ns - slack_ns <= inner.start_ns
            assert inner.end_ns <= outer.end_ns + slack_ns
            assert inner.duration_ns <= outer.duration_ns + (
                inner.duration_uncertainty_ns + outer.duration_uncertainty_ns
            )


@settings(max_examples=100, deadline=None)
@given(hosts, clocks, steps, st.integers(0, 60))
def test_a_lost_device_makes_windows_slow_never_fast(
    host: VirtualHost, clock: dict[str, Any], program: list[tuple[Any, ...]], fail_after: int
) -> None:
    run = Program(host, clock, fail_after)
    run.run(program)
    run.finish()
    for window in run.stopped:
        if window.answers[-1].error is None:
            run.check_reading(window)
        else:
            assert run.gpu._lost
            assert window.answers[-1].duration_ns == UNREADABLE_NS


@settings(max_examples=50, deadline=None)
@given(hosts, clocks, steps)
def test_closing_at_any_time_gives_everything_back(
    host: VirtualHost, clock: dict[str, Any], program: list[tuple[Any, ...]]
) -> None:
    run = Program(host, clock)
    run.run(program)
    run.profiler.close()
    assert run.gpu.live_events == 0
    assert run.gpu.live_streams == STREAMS
    for window in run.stopped:
        assert window.measurement is not None
        assert window.measurement.resolved
