"""How far off windows are placed on the host's timeline, against a driver that knows the truth.

50 ppm skew, 10 ppm wander, one busy Python thread; windows nested on two streams. Beside it, in the same run and at the
same places of the program, the way most profilers anchor a device clock: record, wait, read the host clock afterwards,
refresh once a second when a window opens, and add the elapsed time.

Run as a program inside the fake driver's environment it prints one JSON object; `measure` does so for a caller.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from tests.benchmarks.figures import Row

ROOT = Path(__file__).parents[2]
SECONDS = 5.0
CLOCK = {"skew_ppm": 50, "wander_ppm": 10, "wander_period_s": 7, "tick_ns": 32}


def measure(seconds: float = SECONDS, busy_threads: int = 1) -> dict[str, Any]:
    """Run it in a process of its own.

    Errors are in ns. Keys: ``windows``; ``stream_syncs``, how often a stream or the context was waited for; ``ours``
    and ``afterwards`` with ``p50_ns``, ``p99_ns``, ``max_ns`` of both edges' errors; for ours also ``within`` (share of
    windows within the uncertainty they state), ``contained`` (share of inner windows inside their parent),
    ``stated_p50_ns``, ``stated_max_ns``, ``exact`` (share), ``anchors``, ``bracket_p50_ns`` and ``bracket_max_ns``.
    """
    from tests.fake_driver import environment

    command = [sys.executable, "-m", "tests.benchmarks.placement", str(seconds), str(busy_threads)]
    done = subprocess.run(command, env=environment(**CLOCK), cwd=ROOT, stdout=subprocess.PIPE, check=True)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def measure_rows(quick: bool = False) -> list[Row]:
    found = measure(2.0 if quick else SECONDS)
    ours, theirs = found["ours"], found["afterwards"]
    return [
        Row(
            "the profiler's windows against the truth, p99",
            ours["p99_ns"] / 1e3,
            5,
            "µs",
            aside=f"worst {ours['max_ns'] / 1e3:.1f}",
        ),
        Row("what they state, median", ours["stated_p50_ns"] / 1e3, unit="µs"),
        Row("windows within the bound they state", 100 * ours["within"], 100, "%", True),
        Row("the usual way, read the clock after a wait, p99", theirs["p99_ns"] / 1e3, unit="µs", note="same program"),
    ]


class Afterwards:
    """The usual way, for comparison: the host clock is read after the wait, one offset serves for a second."""

    def __init__(self, device: Any) -> None:
        self.device = device
        self.stream = device.stream_create()
        self.anchor: tuple[Any, int] | None = None
        self.opened: list[tuple[Any, Any, int]] = []

    def open(self, stream: Any) -> Any:
        if self.anchor is None or time.monotonic_ns() - self.anchor[1] > 1_000_000_000:
            event = self.device.event_create()
            self.device.event_record(event, self.stream)
            self.device.event_wait(event)
            self.anchor = event, time.monotonic_ns()
        event = self.device.event_create()
        self.device.event_record(event, stream)
        self.opened.append((event, *self.anchor))
        return event

    def placed_ns(self) -> list[int]:
        return [at_ns + round(self.device.elapsed_ms(anchor, event) * 1e6) for event, anchor, at_ns in self.opened]


class Window:
    """A window with the truth about it."""

    def __init__(self, parent: Window | None, token: Any, start_ns: int) -> None:
        self.parent = parent
        self.token = token
        self.start_ns = start_ns
        self.end_ns = 0
        self.measurement: Any = None


class Program:
    """Nested windows on two streams, each with the true host times of its stamps."""

    def __init__(self, device: Any, profiler: Any) -> None:
        from tests.fake_driver import control

        self.control = control
        self.profiler = profiler
        self.afterwards = Afterwards(device)
        self.afterwards_truth_ns: list[int] = []
        self.windows: list[Window] = []
        self._here = threading.local()
        self._record = device.event_record
        device.event_record = self._witness

    def _witness(self, event: Any, stream: Any) -> None:
        self._record(event, stream)
        self._here.event = event

    def _stamped_ns(self) -> int:
        """The true host time of what this thread recorded last."""
        return int(self.control.event(self._here.event).host_ns)

    def open(self, stream: Any, parent: Window | None = None) -> Window:
        token = self.profiler.start(stream)
        window = Window(parent, token, self._stamped_ns())
        self.windows.append(window)
        self.afterwards_truth_ns.append(int(self.control.event(self.afterwards.open(stream)).host_ns))
        return window

    def close(self, stream: Any, window: Window) -> None:
        window.measurement = self.profiler.stop(stream, window.token)
        window.end_ns = self._stamped_ns()

    def step(self, number: int, streams: list[Any]) -> None:
        """Windows three deep on one stream and two on the other, overlapping."""
        first, second = streams
        outer = self.open(first)
        aside = self.open(second)
        self.control.enqueue(second, 20_000 + number % 7 * 40_000)
        for _ in range(2):
            inner = self.open(first, outer)
            self.control.enqueue(first, 5_000 + number % 5 * 30_000)
            innermost = self.open(first, inner)
            self.close(first, innermost)
            self.close(first, inner)
        self.close(second, self.open(second, aside))
        self.close(first, outer)
        self.close(second, aside)


def run(seconds: float, busy_threads: int) -> dict[str, Any]:
    """The measurement itself, in a process with the fake driver."""
    from cuda.bindings import driver

    from gputrace.devices import open_backend
    from gputrace.profiler import EventProfiler

    driver.cuInit(0)
    driver.cuCtxSetCurrent(driver.cuDevicePrimaryCtxRetain(0)[1])
    streams = [driver.cuStreamCreate(1)[1] for _ in range(2)]
    device = open_backend("cuda").stream(int(streams[0])).device
    profiler = EventProfiler(device)
    program = Program(device, profiler)
    over = threading.Event()
    brackets: list[int] = []

    def busy() -> None:
        number = 0
        while not over.is_set():
            for _ in range(1000):
                number = (number * 31 + 7) % 1_000_003

    def collect() -> None:
        while not over.wait(0.05):
            made = profiler.anchoring.map.pieces_made
            profiler.tick()
            if profiler.anchoring.map.pieces_made != made:
                brackets.append(profiler.anchoring.last_width_ns)

    threads = [threading.Thread(target=collect), *(threading.Thread(target=busy) for _ in range(busy_threads))]
    for thread in threads:
        thread.start()
    try:
        end = time.monotonic() + seconds
        number = 0
        while time.monotonic() < end:
            program.step(number, streams)
            number += 1
            time.sleep(0.002)
    finally:
        over.set()
        for thread in threads:
            thread.join()
    readings = [window.measurement.result() for window in program.windows]
    return summary(program, readings, brackets)


def summary(program: Program, readings: list[Any], brackets: list[int]) -> dict[str, Any]:
    errors: list[int] = []
    within = contained = inner = 0
    by_window = dict(zip(program.windows, readings, strict=True))
    for window, reading in by_window.items():
        edges = [abs(reading.start_ns - window.start_ns), abs(reading.end_ns - window.end_ns)]
        errors += edges
        within += max(edges) <= reading.uncertainty_ns
        if window.parent is not None:
            outer = by_window[window.parent]
            inner += 1
            contained += outer.start_ns <= reading.start_ns <= reading.end_ns <= outer.end_ns
    stated = [reading.uncertainty_ns for reading in readings]
    placed = program.afterwards.placed_ns()
    theirs = [abs(got - true) for got, true in zip(placed, program.afterwards_truth_ns, strict=True)]
    exact = sum(reading.placement.value == "exact" for reading in readings)
    return {
        "windows": len(readings),
        "stream_syncs": sum(program.control.calls(name) for name in ("cuStreamSynchronize", "cuCtxSynchronize")),
        "ours": {
            **_spread(errors),
            "within": within / len(readings),
            "contained": contained / inner,
            "stated_p50_ns": _spread(stated)["p50_ns"],
            "stated_max_ns": max(stated),
            "exact": exact / len(readings),
            "anchors": len(brackets),
            "bracket_p50_ns": _spread(brackets)["p50_ns"],
            "bracket_max_ns": max(brackets),
        },
        "afterwards": _spread(theirs),
    }


def _spread(values: list[int]) -> dict[str, int]:
    ordered = sorted(values)
    return {
        "p50_ns": ordered[len(ordered) // 2],
        "p99_ns": ordered[len(ordered) * 99 // 100],
        "max_ns": ordered[-1],
    }


if __name__ == "__main__":
    print(json.dumps(run(float(sys.argv[1]), int(sys.argv[2]))))
