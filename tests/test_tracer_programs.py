"""Random programs of windows, drawn and compared: each window once, with its own begin and end, where it belongs.

Hypothesis writes a program: several threads and streams, scoped spans and explicit windows closed in any order by any
thread, failures, captures, refused events. A lockstep of real threads runs it, one step at a time, and notes what it
meant; the simulated GPU knows when each event truly was.
"""

from __future__ import annotations

import queue
import threading
import time
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import gputrace
from gputrace import hot
from gputrace.devices.simulated import SimulatedStream
from tests.engine import Slice
from tests.recorded import Run, recording

THREADS = 3
STREAMS = 4  # the last of them on a second GPU


@dataclass
class Meant:
    """One span or window as the program meant it."""

    name: str
    thread: int
    tid: int
    stream: SimulatedStream | None
    scoped: bool
    host_depth: int = 0
    gpu_depth: int = 0
    opened: tuple[int, int] = (0, 0)  # the host clock before and after
    closed: tuple[int, int] = (0, 0)
    begin_ns: int | None = None  # true host time of the opening event; None: there was none
    end_ns: int | None = None
    captured: bool = False
    straddled: bool = False
    refused: bool = False
    abandoned: bool = False
    failures: list[str] = field(default_factory=list)  # on the device
    error: str | None = None  # on the host
    handle: Any = None


class Lockstep:
    """Threads that run one step at a time, so that the order of everything is the program's."""

    def __init__(self, count: int) -> None:
        self._asked: list[queue.SimpleQueue[Callable[[], Any] | None]] = [queue.SimpleQueue() for _ in range(count)]
        self._done: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._threads = [threading.Thread(target=self._run, args=(asked,), name="worker") for asked in self._asked]
        for thread in self._threads:
            thread.start()

    def _run(self, asked: queue.SimpleQueue[Callable[[], Any] | None]) -> None:
        while (step := asked.get()) is not None:
            try:
                self._done.put(step())
            except BaseException as error:
                self._done.put(error)

    def on(self, thread: int, step: Callable[[], Any]) -> Any:
        self._asked[thread].put(step)
        result = self._done.get()
        if isinstance(result, BaseException):
            raise result
        return result

    def close(self) -> None:
        for asked in self._asked:
            asked.put(None)
        for thread in self._threads:
            thread.join()


class Program:
    """Runs steps and keeps what they meant."""

    def __init__(self, run: Run, threads: Lockstep) -> None:
        self.run = run
        self.threads = threads
        self.streams = [run.stream(f"s{i}", gpu=int(i == STREAMS - 1)) for i in range(STREAMS)]
        self.meant: list[Meant] = []
        self.stacks: list[list[Meant]] = [[] for _ in range(THREADS)]
        self.windows: list[Meant] = []
        self.settled = 0

    def step(self, kind: str, a: int, b: int, c: int) -> None:
        getattr(self, kind)(a, b, c)

    # Steps: each takes three numbers and makes of them what it can.

    def enter(self, a: int, b: int, c: int) -> None:
        thread = a % THREADS
        if len(self.stacks[thread]) < 6:
            meant = self._opened(thread, b, scoped=True)
            self.stacks[thread].append(meant)

    def leave(self, a: int, b: int, c: int) -> None:
        thread = a % THREADS
        if self.stacks[thread]:
            self._close(self.stacks[thread].pop(), thread, LookupError() if c % 4 == 0 else None)

    def window(self, a: int, b: int, c: int) -> None:
        self.windows.append(self._opened(a % THREADS, b, scoped=False))

    def close_window(self, a: int, b: int, c: int) -> None:
        if self.windows:
            self._close(self.windows.pop(b % len(self.windows)), a % THREADS, ValueError("bad") if c % 4 == 0 else None)

    def abandon(self, a: int, b: int, c: int) -> None:
        if self.windows:
            meant = self.windows.pop(b % len(self.windows))
            meant.abandoned = True
            before = time.monotonic_ns()
            self.threads.on(a % THREADS, meant.handle.abandon)
            meant.closed = (before, time.monotonic_ns())

    def failure(self, a: int, b: int, c: int) -> None:
        stream = None if b % (STREAMS + 1) == STREAMS else self.streams[b % (STREAMS + 1)]
        text = f"failure {a}"
        self.threads.on(a % THREADS, lambda: gputrace.failure(text, stream))
        for meant in (*(m for stack in self.stacks for m in stack), *self.windows):
            if meant.begin_ns is not None and (stream is None or meant.stream is stream):
                meant.failures.append(text)

    def launch(self, a: int, b: int, c: int) -> None:
        self.streams[b % STREAMS].launch(c * 1000)

    def wait(self, a: int, b: int, c: int) -> None:
        self.streams[a % STREAMS].launch(0)

    def capture(self, a: int, b: int, c: int) -> None:
        stream = self.streams[b % STREAMS]
        if stream.capturing:
            stream.end_capture()
        else:
            stream.begin_capture()

    def refuse(self, a: int, b: int, c: int) -> None:
        for gpu in self.run.gpus:
            gpu.refuse_next = 1 + c % 2

    def settle(self, a: int, b: int, c: int) -> None:
        """Let the collector take what there is, so that windows straddle its cycles."""
        if self.settled < 2:
            self.settled += 1
            deadline = time.monotonic() + 5
            while not hot.idle() and time.monotonic() < deadline:
                time.sleep(0.001)

    def finish(self, order: list[int]) -> None:
        for gpu in self.run.gpus:
            gpu.refuse_next = 0
        for index in order:
            self.close_window(index, index, 1)
        while self.windows:
            self.close_window(0, 0, 1)
        for thread in range(THREADS):
            while self.stacks[thread]:
                self.leave(thread, 0, 1)

    # How.

    def _opened(self, thread: int, b: int, *, scoped: bool) -> Meant:
        stream = None if b % (STREAMS + 1) == STREAMS else self.streams[b % (STREAMS + 1)]
        meant = Meant(f"w{len(self.meant)}", thread, 0, stream, scoped)
        self.meant.append(meant)
        stack = self.stacks[thread]
        meant.host_depth = len(stack) if scoped else 0
        if scoped:
            meant.gpu_depth = sum(1 for m in stack if m.stream is stream and m.begin_ns is not None)
        meant.captured = stream is not None and stream.capturing

        def go() -> None:
            stamps = [] if stream is None else stream.gpu.mine()  # type: ignore[attr-defined]
            count = len(stamps)
            before = time.monotonic_ns()
            if scoped:
                meant.handle = gputrace.span(meant.name, stream, number=len(self.meant))
                meant.handle.__enter__()
            else:
                meant.handle = gputrace.window(meant.name, stream, number=len(self.meant))
            meant.opened = (before, time.monotonic_ns())
            meant.tid = threading.get_native_id()
            if len(stamps) > count:
                assert not meant.captured
                meant.begin_ns = stamps[-1].host_ns

        self.threads.on(thread, go)
        return meant

    def _close(self, meant: Meant, thread: int, error: Exception | None) -> None:
        meant.straddled = meant.begin_ns is not None and meant.stream is not None and meant.stream.capturing

        def go() -> None:
            stamps = [] if meant.stream is None else meant.stream.gpu.mine()  # type: ignore[attr-defined]
            count = len(stamps)
            before = time.monotonic_ns()
            if meant.scoped:
                meant.handle.__exit__(type(error) if error else None, error, None)
                meant.error = type(error).__name__ if error else None
            else:
                if error is not None:
                    meant.handle.failure(error)
                    meant.error = f"ValueError: {error}"
                meant.handle.close()
            meant.closed = (before, time.monotonic_ns())
            meant.handle = None
            if len(stamps) > count:
                meant.end_ns = stamps[-1].host_ns

        self.threads.on(thread, go)


# --- the comparison -----------------------------------------------------------------------------------------------


class Bounds:
    """What the trace itself says of how far off its GPU slices may be, by device and time."""

    def __init__(self, run: Run) -> None:
        self._samples = {
            path[1]: samples for path, samples in run.counters.items() if path[-1].startswith("clock uncertainty")
        }

    def at(self, slice: Slice, ts: int) -> float:
        samples = self._samples[slice.track[1]]
        place = bisect_right([at for at, _ in samples], ts)
        return max(value for _, value in samples[max(place - 2, 0) : place + 1])


def compare(program: Program, run: Run) -> None:
    host = {s.name: s for s in run.host}
    device = {s.name: s for s in run.device}
    assert len(host) == len(run.host) == len(program.meant)
    assert len(device) == len(run.device)
    bounds = Bounds(run)
    for meant in program.meant:
        compare_host(meant, host[meant.name])
        drawn = device.pop(meant.name, None)
        if meant.begin_ns is None:
            assert drawn is None, "a window that was not recorded is drawn"
            continue
        if meant.abandoned and drawn is None:
            continue
        assert drawn is not None, f"{meant} is missing"
        compare_device(meant, drawn, bounds)
        first, second = sorted((host[meant.name], drawn), key=lambda s: (s.ts, s.id))
        assert second.id in first.flows_to or first.id in second.flows_to
    assert not device
    compare_order(program, run)
    compare_counts(program, run)


def compare_host(meant: Meant, drawn: Slice) -> None:
    assert meant.opened[0] <= drawn.ts <= meant.opened[1]
    assert drawn.dur >= 0, f"{meant} was never ended"
    assert meant.closed[0] <= drawn.ts + drawn.dur <= meant.closed[1]
    assert drawn.depth == meant.host_depth
    assert any(step.endswith(f" {meant.tid}") for step in drawn.track)
    assert (drawn.track[-1] == f"worker {meant.tid}") == meant.scoped
    assert drawn.args["number"] == int(meant.name[1:]) + 1
    if meant.error is not None:
        assert drawn.args["error"] == meant.error
    elif not meant.failures:
        assert "error" not in drawn.args
    if meant.abandoned:
        pass  # that it was abandoned may stand in place of why it had no window
    elif meant.captured:
        assert drawn.args["gpu"] == "not recorded: the stream is being captured"
    elif meant.stream is not None and meant.begin_ns is None:
        assert "refused" in drawn.args["gpu"]


def compare_device(meant: Meant, drawn: Slice, bounds: Bounds) -> None:
    assert meant.begin_ns is not None
    assert meant.stream is not None
    assert drawn.track[-1] == meant.stream.name
    assert drawn.depth == meant.gpu_depth, meant
    assert drawn.args["number"] == int(meant.name[1:]) + 1
    assert abs(drawn.ts - meant.begin_ns) <= bounds.at(drawn, drawn.ts)
    assert drawn.dur >= 0, f"{meant} was never ended"
    end_ns = drawn.ts + drawn.dur
    if meant.end_ns is not None:
        assert abs(end_ns - meant.end_ns) <= bounds.at(drawn, end_ns)
        assert "ended" not in drawn.args
    else:
        assert drawn.args["ended"]
    if meant.failures or (meant.error and meant.end_ns is not None):
        assert drawn.args["error"] in (*meant.failures, meant.error)
    else:
        assert "error" not in drawn.args or meant.error


def compare_order(program: Program, run: Run) -> None:
    """On one stream what was earlier is drawn no later."""
    drawn = {s.name: s for s in run.device}
    for stream in program.streams:
        edges = []
        for meant in program.meant:
            if meant.stream is stream and meant.name in drawn and meant.begin_ns is not None:
                s = drawn[meant.name]
                edges.append((meant.begin_ns, s.ts))
                if meant.end_ns is not None:
                    edges.append((meant.end_ns, s.ts + s.dur))
        edges.sort()
        assert [ts for _, ts in edges] == sorted(ts for _, ts in edges)


def compare_counts(program: Program, run: Run) -> None:
    report = run.report
    assert report["slices"] == len(program.meant) + len(run.device)
    assert report["windows"] == len(run.device)
    assert report["dropped"] == report["unfinished"] == report["out_of_order"] == 0
    assert report["capture_skipped"] == sum(m.captured or m.straddled for m in program.meant)
    assert report["told"] == []


STEPS = (
    *["enter"] * 4,
    *["leave"] * 3,
    *["window"] * 3,
    *["close_window"] * 3,
    "abandon",
    "failure",
    *["launch"] * 2,
    "capture",
    "refuse",
    "settle",
)
step = st.tuples(st.sampled_from(STEPS), st.integers(0, 11), st.integers(0, 19), st.integers(0, 300))


def run_program(path: Path, steps: list[tuple[str, int, int, int]], order: list[int], suffix: str = ".pftrace") -> Run:
    threads = Lockstep(THREADS)
    try:
        with recording(path, gpus=2, suffix=suffix) as run:
            program = Program(run, threads)
            for each in steps:
                program.step(*each)
            program.finish(order)
            for stream in program.streams:
                stream.end_capture()
    finally:
        threads.close()
    compare(program, run)
    return run


@pytest.mark.slow
@settings(
    max_examples=50,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.generate],  # shrinking takes minutes: each step is a whole recording
)
@given(steps=st.lists(step, min_size=10, max_size=150), order=st.lists(st.integers(0, 19), max_size=12))
def test_any_program(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int, int, int]], order: list[int]
) -> None:
    run_program(tmp_path_factory.mktemp("program"), steps, order)
