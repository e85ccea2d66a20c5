"""Small traced programs as lists of steps, run under a twin in a process of their own, on a clock that only steps move.

    outcome = run("compiled", [("open", 1, 2, 3), ("cycle", 0, 0, 0), ...], ".pftrace")

A step is an operation and three numbers, which choose among threads, names, streams, arguments and open spans; any list
of steps is a program. The collector has no thread: a cycle is a step. So two twins that do the same write the same. But
for one thing: a span left open and dropped ends when it is freed, in the pure twin not before its begin was collected.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import functools
import os
import queue
import random
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np

import gputrace
from gputrace import collector, devices, devicetrace, hostclock, hot, instrument, purehost, tracer
from gputrace.anchoring import Anchoring
from gputrace.devices.simulated import DriftingClock, SimulatedBackend, SimulatedGPU, SimulatedStream
from gputrace.model import FLOW, Flow, Recording
from gputrace.shards import ShardFolder
from tests.fake_driver.isolated import receive, send
from tests.hot import called, callees
from tests.hot.twin import ROOT, environment
from tests.recorded import EXPORTERS

#: A name and three ints; of "calls", a tree of `tests.hot.called`, too.
Step = tuple[Any, ...]
ORIGIN_NS = 1_000_000_000_000
#: What every program takes for its own.
PID = 3_999_999
THREADS = 3
LIMIT_S = 60


class Outcome(NamedTuple):
    """What came of a program: the shard's bytes, what was counted, and whatever went wrong."""

    shard: bytes
    report: dict[str, Any]
    error: str


class Text(str):
    """A str of the program's own."""


class Colour(enum.IntEnum):
    RED = 7


class Ratio(float):
    pass


class Speechless:
    def __str__(self) -> str:
        raise RuntimeError("it does not say")


class OnDevice:
    is_cuda = True


class Refused(Exception):
    """The program's own exception."""


NAMES: list[Any] = [
    "a",
    "b",
    "forward",
    "",
    "ünï \U0001f600",
    "half \udc80 a character",
    "ends half \ud800",
    "n\0ul\0",
    "\0",
    "x" * 1024,
    "y" * 1025,
    "é" * 3000,
    "z" * 70_000,
    'slash \\ quote " newline \n tab \t',
    Text("of a subclass"),
    17,
    None,
    Speechless(),
    b"bytes",
    ("t" * 150, "u" * 150),
    "error",
    "ended",
    "placement",
]
KEYS = ["k", "n", "error", "ended", "placement", "gpu", "clock", "", "half \udc80", "n\0ul", "w" * 1100, "name", "self"]
VALUES: list[Any] = [
    0,
    1,
    -1,
    127,
    128,
    2**31,
    2**63 - 1,
    -(2**63),
    2**63,
    2**64 - 1,
    2**64,
    -(2**63) - 1,
    10**30,
    -(10**30),
    0.0,
    -0.0,
    1.5,
    float("nan"),
    float("inf"),
    -float("inf"),
    5e-324,
    True,
    False,
    None,
    "",
    "text",
    "half \udc80",
    "n\0ul",
    "ü" * 300,
    "l" * 4096,
    "m" * 4097,
    "ü" * 5000,
    Text("sub"),
    Colour.RED,
    Ratio(2.5),
    np.float32(1.25),
    np.float64(0.1),
    np.int64(-5),
    np.bool_(True),
    np.uint64(2**64 - 1),
    np.arange(3),
    [1, 2],
    {"a": 1},
    b"bytes",
    Speechless(),
    OnDevice(),
    "q" * 70_000,
]
COUNTED: list[Any] = [0, 1, -5, 2.5, 2**63, -(2**70), 10**400, float("inf"), True, "no number", None]
COUNTED += [np.float32(0.5), OnDevice(), "3"]
UNITS = ["", "bytes", "ns", "percent", "half \udc80", 5]
ERRORS = [ValueError, Refused, KeyboardInterrupt, GeneratorExit, StopIteration]


class Clock:
    """The host's clock: stands still but for steps, and for a little at each read on behalf of a span."""

    def __init__(self) -> None:
        self.at_ns = ORIGIN_NS
        self._span_ns = 0

    def now_ns(self) -> int:
        return self.at_ns

    def moving_ns(self) -> int:
        """For anchors, whose brackets have a width."""
        self.at_ns += 40
        return self.at_ns

    def advance(self, ns: int) -> None:
        """Let time pass; a span opened now is so at that very time, the next one ns after it."""
        self.at_ns += ns
        self._span_ns = self.at_ns - 1
        if hot.TWIN == "compiled":
            from gputrace.hot import _hot

            _hot.set_clock(self._span_ns, 1)

    def span_ns(self) -> int:
        self._span_ns += 1
        return self._span_ns

    def last_span_ns(self) -> int:
        return self._span_ns

    def sleep(self, seconds: float) -> None:
        self.at_ns += int(seconds * 1e9) + 1


class GPU(SimulatedGPU):
    """One whose calls fail on demand: (code, None for what a binding raises), for so many calls."""

    def __init__(self, clock: Clock, ordinal: int) -> None:
        drift = DriftingClock(50 + ordinal, 10, 7, 32, 5_000_000_000, ORIGIN_NS)
        super().__init__(ordinal, drift, 0, clock.now_ns, clock.sleep)
        self.failing: dict[str, list[int | None]] = {"record": [], "capturing": [], "elapsed": []}
        for kind in self.failing:
            setattr(self, f"{kind}_raw", functools.partial(self._call, kind, getattr(self, f"{kind}_raw")))

    def _call(self, kind: str, plain: Callable[..., Any], *args: Any) -> Any:
        if self.failing[kind]:
            code = self.failing[kind].pop()
            if code is None:
                raise ValueError(f"1234 is not a valid CUresult of {kind}")
            return (code, 0)
        return plain(*args)


class Workers:
    """The program's threads, of which one runs at a time."""

    def __init__(self) -> None:
        self._asked: dict[int, queue.SimpleQueue[Callable[[], None] | None]] = {}
        self._threads: dict[int, threading.Thread] = {}
        self._done: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        self._started = 0

    def do(self, number: int, work: Callable[[], None]) -> None:
        if not number:
            work()
            return
        if number not in self._threads:
            self._asked[number] = queue.SimpleQueue()
            self._started += 1
            self._threads[number] = threading.Thread(
                target=self._serve, args=(self._asked[number],), name=f"worker {self._started}"
            )
            self._threads[number].start()
        self._asked[number].put(work)
        error = self._done.get(timeout=LIMIT_S)
        if error is not None:
            raise error

    def _serve(self, asked: queue.SimpleQueue[Callable[[], None] | None]) -> None:
        while (work := asked.get()) is not None:
            try:
                work()
            except BaseException as error:
                self._done.put(error)
            else:
                self._done.put(None)
            del work

    def end(self, number: int) -> None:
        if number in self._threads:
            self._asked.pop(number).put(None)
            self._threads.pop(number).join()


class Acts(called.Acts):
    def __init__(self, program: Program) -> None:
        self.program = program

    def pass_us(self, us: int) -> None:
        if us:
            self.program.clock.advance(us * 1000)

    def span(self, inside: Callable[[], Any]) -> None:
        with gputrace.span("span"):
            inside()

    def instant(self) -> None:
        gputrace.instant("instant")

    def counter(self) -> None:
        gputrace.counter("counter", 1)

    def cycle(self) -> None:
        self.program.recorder.cycle()


class Program:
    """Runs steps. What it keeps: spans and windows that are open, by thread; objects used again and again."""

    def __init__(self, recorder: tracer.Tracer, clock: Clock, gpus: list[GPU]) -> None:
        self.recorder = recorder
        self.clock = clock
        self.gpus = gpus
        self.workers = Workers()
        self.thread = 0
        self.stacks: dict[int, list[Any]] = {n: [] for n in range(THREADS)}
        self.used: dict[int, list[Any]] = {n: [] for n in range(THREADS)}
        self.windows: list[Any] = []
        self.shared = gputrace.span("shared", None, k=1)
        self.generators: dict[int, list[Iterator[int]]] = {n: [] for n in range(THREADS)}
        streams = [gpu.stream(f"{gpu.ordinal}.{n}") for gpu in gpus for n in range(2)]
        self.streams: list[SimulatedStream] = streams
        self.handles: list[Any] = [None, None, streams[0], streams[1].handle, streams[2], streams[3], 0, "no stream"]

    def do(self, step: Step) -> None:
        what, a, b, c, *more = step
        self.clock.advance(1 + a * b * c % 40_000 + (c % 7 == 6) * 3_000_000)
        thread = a % THREADS
        if thread != self.thread:
            self.recorder.cycle()  # so that spans are met in the program's order
            self.thread = thread
        self.workers.do(thread, lambda: getattr(self, f"do_{what}")(thread, b, c, *more))

    def _args(self, b: int, c: int) -> dict[str, Any]:
        chosen = random.Random(b * 1009 + c)
        args = {chosen.choice(KEYS): chosen.choice(VALUES) for _ in range(chosen.choice((0, 0, 1, 2, 5, 20)))}
        return {**args, FLOW: Flow((1 << 43) + b)} if chosen.random() < 0.2 else args

    def _span(self, b: int, c: int) -> Any:
        return gputrace.span(NAMES[b % len(NAMES)], self.handles[c % len(self.handles)], **self._args(b, c))

    # Steps.

    def do_open(self, thread: int, b: int, c: int) -> None:
        span = self._span(b, c)
        span.__enter__()
        self.stacks[thread].append(span)

    def do_leaf(self, thread: int, b: int, c: int) -> None:
        with self._span(b, c):
            self.clock.advance(c * 31 % 20_000)

    def do_close(self, thread: int, b: int, c: int) -> None:
        stack = self.stacks[thread]
        if stack:
            # Mostly the innermost, as programs do; sometimes any.
            span = stack.pop(b % len(stack) if c % 5 == 4 else -1)
            error = ERRORS[b % len(ERRORS)] if c % 3 == 2 else None
            span.__exit__(error, None if error is None else error("said"), None)

    def do_hand_over(self, thread: int, b: int, c: int) -> None:
        """Another thread closes it."""
        other = self.stacks[b % THREADS]
        if other:
            other.pop().__exit__(None, None, None)

    def do_window(self, thread: int, b: int, c: int) -> None:
        name, stream = NAMES[b % len(NAMES)], self.handles[c % len(self.handles)]
        self.windows.append(gputrace.window(name, stream, **self._args(b, c)))

    def do_end_window(self, thread: int, b: int, c: int) -> None:
        if self.windows:
            window = self.windows[b % len(self.windows)]
            if c % 4 == 0:
                window.failure(ERRORS[c % 2]("of a window") if c % 8 else NAMES[b % 15])
            if c % 5 == 0:
                window.abandon()
            elif c % 5 == 1:
                window.__exit__(Refused, Refused("x"), None)
            elif c % 5 != 4:
                window.close()
            if c % 3 and c % 5 != 4:  # else it is closed again, later
                self.windows.remove(window)

    def do_instant(self, thread: int, b: int, c: int) -> None:
        gputrace.instant(NAMES[b % len(NAMES)], **self._args(b, c))

    def do_counter(self, thread: int, b: int, c: int) -> None:
        value: Any = COUNTED[c % len(COUNTED)]
        unit: Any = UNITS[b * c % len(UNITS)]
        gputrace.counter(NAMES[b % len(NAMES)], value, unit)

    def do_failure(self, thread: int, b: int, c: int) -> None:
        error: Any = [Refused("device work"), "words", Speechless(), KeyError("k")][b % 4]
        gputrace.failure(error, self.handles[c % len(self.handles)])

    def do_use_stream(self, thread: int, b: int, c: int) -> None:
        with gputrace.use_stream(self.handles[b % len(self.handles)]), gputrace.span("current"):
            with gputrace.use_stream(self.handles[c % len(self.handles)]):
                self.clock.advance(500)
                with gputrace.span("inner", **self._args(b, c)):
                    pass
            with contextlib.suppress(Refused), gputrace.span("raises"):
                raise Refused

    def do_shared(self, thread: int, b: int, c: int) -> None:
        """One object, entered again, nested in itself, and by several threads."""
        if c % 3 == 0 or not self.used[thread]:
            self.shared.__enter__()
            self.used[thread].append(self.shared)
        elif c % 3 == 1:
            self.used[thread].pop().__exit__(None, None, None)
        else:
            with self.shared, self.shared:
                pass

    def do_again(self, thread: int, b: int, c: int) -> None:
        span = self._span(b, c)
        with span:
            with span:
                self.clock.advance(100)
            span.__exit__(None, None, None)
            span.__exit__(None, None, None)
        with span:
            pass

    def do_call(self, thread: int, b: int, c: int) -> None:
        @self._span(b, c)  # type: ignore[untyped-decorator]
        def work(depth: int) -> int:
            self.clock.advance(50)
            return work(depth - 1) if depth else 3  # type: ignore[no-any-return]

        assert work(b % 3) == 3

    def do_calls(self, thread: int, b: int, c: int, tree: Any) -> None:
        Acts(self).walk(tree)

    def do_generator(self, thread: int, b: int, c: int) -> None:
        mine = self.generators[thread]
        if c % 4 == 0 or not mine:

            def items() -> Iterator[int]:
                with self._span(b, c):
                    yield 1
                    with gputrace.span("in a generator"):
                        yield 2

            mine.append(items())
        elif c % 4 == 3:
            mine.pop(b % len(mine)).close()  # type: ignore[attr-defined]
        else:
            next(mine[b % len(mine)], None)

    def do_tasks(self, thread: int, b: int, c: int) -> None:
        async def work(number: int) -> None:
            with self._span(b + number, c):
                await asyncio.sleep(0)
                self.clock.advance(700)
                with gputrace.span(f"task {number}", self.handles[(b + number) % len(self.handles)]):
                    await asyncio.sleep(0)

        async def main() -> None:
            with gputrace.span("main"):
                await asyncio.gather(*(work(number) for number in range(1 + c % 4)))

        asyncio.run(main())

    def do_launch(self, thread: int, b: int, c: int) -> None:
        self.streams[b % len(self.streams)].launch(c * 997 % 200_000)

    def do_capture(self, thread: int, b: int, c: int) -> None:
        stream = self.streams[b % len(self.streams)]
        if stream.capturing:
            stream.end_capture()
        else:
            stream.begin_capture()

    def do_fail(self, thread: int, b: int, c: int) -> None:
        gpu = self.gpus[b % len(self.gpus)]
        kind = ("record", "capturing")[c % 2]
        code = [1, 400, 700, 906, 999, None][b % 6]
        gpu.failing[kind] += [code] * (1 + c % 3)

    def do_misread(self, thread: int, b: int, c: int) -> None:
        """An event that cannot be read back; with any other code the whole device is taken for lost."""
        self.gpus[b % len(self.gpus)].failing["elapsed"] += [400]

    def do_lose(self, thread: int, b: int, c: int) -> None:
        if c % 16 == 0:
            self.gpus[b % len(self.gpus)].failing["elapsed"] += [[700, None][b % 2]]

    def do_end_thread(self, thread: int, b: int, c: int) -> None:
        """Some thread but this one ends, and with it what it kept of generators."""
        number = 1 + b % (THREADS - 1)
        if number != thread:
            self.generators[number].clear()
            self.workers.end(number)

    def do_wait(self, thread: int, b: int, c: int) -> None:
        self.clock.advance(b * 1_000_000 + c * 100_000_000)

    def do_cycle(self, thread: int, b: int, c: int) -> None:
        self.recorder.cycle()

    def do_names(self, thread: int, b: int, c: int) -> None:
        """Many names, once or twice each."""
        for n in range(40):
            with gputrace.span(f"name {b} {n % 30}"):
                self.clock.advance(10)

    def do_drop(self, thread: int, b: int, c: int) -> None:
        gputrace.span("dropped", self.streams[0]).__enter__()

    def do_flood(self, thread: int, b: int, c: int) -> None:
        """More names than a sequence keeps, and than a process does: for programs written by hand."""
        for n in range(c):
            with gputrace.span(f"flood {b} {n}", self.handles[b % len(self.handles)], **{f"key {n % 5000}": n}):
                pass
            if n % 500 == 499:
                self.recorder.cycle()

    def finish(self) -> None:
        for gpu in self.gpus:
            for codes in gpu.failing.values():
                codes.clear()
        for n in range(THREADS):
            self.generators[n].clear()
            for span in reversed(self.stacks[n]):
                self.clock.advance(10)
                span.__exit__(None, None, None)
            for span in self.used[n]:
                self.workers.do(n, functools.partial(span.__exit__, None, None, None))
            self.recorder.cycle()
        for window in self.windows:
            self.clock.advance(10)
            window.close()
        for n in range(1, THREADS):
            self.workers.end(n)


def perform(steps: list[Step], suffix: str) -> Outcome:
    """Run the steps in this process, which should then end."""
    clock = Clock()
    gpus = [GPU(clock, ordinal) for ordinal in range(2)]
    with tempfile.TemporaryDirectory() as place, contextlib.ExitStack() as patches:
        for target, name, value in (
            (hostclock, "now_ns", clock.now_ns),
            (devicetrace, "now_ns", clock.now_ns),
            (devicetrace, "Anchoring", functools.partial(Anchoring, now_ns=clock.moving_ns)),
            (tracer, "sleep", clock.sleep),
            (tracer, "CHUNK", 1 << 30),
            (tracer, "_process_name", lambda: "program"),
            (os, "getpid", lambda: PID),
            (collector.Collector, "start", lambda self: False),
            (devices, "open_backend", lambda kind: SimulatedBackend(list(gpus))),
        ):
            patches.enter_context(mock.patch.object(target, name, value))
        if hot.TWIN == "pure":
            from gputrace.hot import pure

            patches.enter_context(mock.patch.object(pure, "now_ns", clock.span_ns))
            patches.enter_context(mock.patch.object(purehost, "now_ns", clock.last_span_ns))
        folder = ShardFolder.create(place, Recording("5" * 32, ORIGIN_NS, 123), suffix, EXPORTERS[suffix], "simulated")
        recorder = tracer.Tracer(folder, "simulated")
        recorder.start()
        if any(step[0] == "calls" for step in steps):
            shown = {"python_include": callees.__name__, "python_min_ns": called.LEAST_NS}
            instrument.start(["python.calls"], recorder.tell, shown)
        program = Program(recorder, clock, gpus)
        clock.advance(1)
        for step in steps:
            program.do(step)
        program.finish()
        recorder.stop()
        return Outcome(Path(folder.shard_path(0)).read_bytes(), recorder.report(), "")


class Runner:
    """A process that has a twin, and forks for each program."""

    def __init__(self, twin: str) -> None:
        self.twin = twin
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.hot.programs"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**environment(twin), "PYTHONHASHSEED": "0"},
            cwd=ROOT,
        )

    def run(self, steps: list[Step], suffix: str) -> Outcome:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        send(self._process.stdin, (self.twin, steps, suffix))
        return Outcome(*receive(self._process.stdout))


@functools.cache
def runner(twin: str) -> Runner:
    return Runner(twin)


def run(twin: str, steps: list[Step], suffix: str = ".pftrace") -> Outcome:
    """Run a program under a twin."""
    return runner(twin).run(steps, suffix)


def _in_child(twin: str, steps: list[Step], suffix: str) -> Outcome:
    assert twin == hot.TWIN, hot.WHY
    reader, writer = (os.fdopen(end, mode) for end, mode in zip(os.pipe(), ("rb", "wb"), strict=True))
    child = os.fork()
    if not child:
        import faulthandler
        import traceback

        faulthandler.dump_traceback_later(LIMIT_S, exit=True)
        try:
            outcome = perform(steps, suffix)
        except BaseException:
            outcome = Outcome(b"", {}, traceback.format_exc())
        send(writer, tuple(outcome))
        os._exit(0)
    writer.close()
    with reader:
        try:
            outcome = Outcome(*receive(reader))
        except EOFError:
            outcome = Outcome(b"", {}, "the process died")
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    return outcome if code == 0 else outcome._replace(error=f"{outcome.error} (exit code {code})")


def main() -> None:
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    with contextlib.suppress(EOFError):
        while True:
            send(answers, tuple(_in_child(*receive(sys.stdin.buffer))))


if __name__ == "__main__":
    main()
