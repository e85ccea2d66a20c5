"""Where a recorded trace draws GPU slices, against the true host time of their stamps.

The whole way: a program on a driver that knows the truth, with 50 ppm skew, 10 ppm wander and a busy Python thread, is
recorded; Perfetto's engine reads the trace; each slice's begin and end is compared with its stamp. `placement` measures
the profiler alone, beside how others place.

Run as a program inside the fake driver's environment it records, and prints what it did as one JSON object.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import threading
import time
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tests.benchmarks.figures import Row, in_child

CLOCK = {"skew_ppm": 50, "wander_ppm": 10, "wander_period_s": 7, "tick_ns": 32, "truth": 200_000}
BUDGET_NS = 5_000
SYNCHRONISES = ("cuStreamSynchronize", "cuCtxSynchronize", "cuEventSynchronize")


class Window(NamedTuple):
    """What the program did: ``number`` is unique, ``parent`` the number of the window around it, -1 for none."""

    number: int
    name: str
    stream: int
    parent: int
    begin_ns: int  # true host times
    end_ns: int


class Edge(NamedTuple):
    """A begin or end as drawn: how far off it is, and how far off the trace says it may be."""

    error_ns: int
    stated_ns: int


class Outcome:
    """A recording beside the truth. ``outside`` names the windows that stick out of their parents."""

    def __init__(self, edges: list[Edge], outside: list[str], summary: dict[str, Any], calls: dict[str, int]) -> None:
        self.edges = edges
        self.errors_ns = sorted(edge.error_ns for edge in edges)
        self.outside = outside
        self.summary = summary
        self.calls = calls

    @property
    def p99_ns(self) -> int:
        return self.errors_ns[len(self.errors_ns) * 99 // 100]

    @property
    def beyond(self) -> list[Edge]:
        """Edges further off than the trace says."""
        return [edge for edge in self.edges if edge.error_ns > edge.stated_ns]

    @property
    def synchronised(self) -> int:
        """Calls that wait for a stream; the program itself makes none."""
        return sum(count for name, count in self.calls.items() if name in SYNCHRONISES)


def measure(quick: bool = False) -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        found = record(Path(folder), 2.0 if quick else 6.0)
    errors, windows = found.errors_ns, len(found.edges) // 2
    stated = statistics.median(edge.stated_ns for edge in found.edges)
    return [
        Row(
            "a trace's slices against the truth, p99",
            found.p99_ns / 1e3,
            BUDGET_NS / 1e3,
            "µs",
            aside=f"worst {errors[-1] / 1e3:.1f}",
        ),
        Row("what the trace states at their places, median", stated / 1e3, unit="µs"),
        Row("edges within the bound that the trace states", _share(found.edges, found.beyond), 100, "%", True),
        Row("windows inside their parents", 100 - 100 * len(found.outside) / windows, 100, "%", True),
        Row("calls that wait for a stream, in all", found.synchronised, 0, ""),
    ]


def _share(all_of: list[Any], without: list[Any]) -> float:
    return 100 * (1 - len(without) / len(all_of))


#: What a run takes at least, however slow the machine.
STEPS = 150


def record(folder: Path, seconds: float, busy_threads: int = 1) -> Outcome:
    """Record a program for some seconds, in a process of its own, and compare its trace with the truth."""
    path = folder / "truth.pftrace"
    did = in_child("truth", str(path), str(seconds), str(busy_threads), **CLOCK)
    return compare(path, did)


# --- reading back -----------------------------------------------------------------------------------------------------


def compare(path: Path, did: dict[str, Any]) -> Outcome:
    from tests.engine import Engine, assert_clean, counters, slices

    engine = Engine(path)
    assert_clean(engine)
    windows = {window.number: window for window in (Window(*fields) for fields in did["windows"])}
    drawn = {s.args["n"]: s for s in slices(engine) if "n" in s.args and any(t.startswith("GPU ") for t in s.track)}
    assert drawn.keys() == windows.keys(), f"{len(windows)} windows, {len(drawn)} drawn"
    (uncertainty,) = [found for track, found in counters(engine).items() if track[-1] == "clock uncertainty"]
    offset_ns = did["offset_ns"]
    edges: list[Edge] = []
    outside: list[str] = []
    for number, window in windows.items():
        slice = drawn[number]
        assert slice.name == window.name
        assert slice.dur >= 0
        for ts, true_ns in ((slice.ts, window.begin_ns), (slice.ts + slice.dur, window.end_ns)):
            edges.append(Edge(abs(ts - offset_ns - true_ns), int(_at(uncertainty, ts))))
        around = drawn.get(window.parent)
        if around is not None and not (
            around.ts <= slice.ts
            and slice.ts + slice.dur <= around.ts + around.dur
            and slice.track_id == around.track_id
            and slice.depth == around.depth + 1
        ):
            outside.append(f"{window.name} {number} {slice} in {around}")
    return Outcome(edges, outside, did["summary"], did["calls"])


def _at(samples: list[tuple[int, float]], ts: int) -> float:
    """A counter's value at a time."""
    return samples[max(bisect_right(samples, (ts, float("inf"))) - 1, 0)][1]


# --- the program ------------------------------------------------------------------------------------------------------


class Program:
    """Nested spans on two streams, each of which records its two events in the order that is noted here."""

    def __init__(self, streams: list[int]) -> None:
        self.streams = streams
        self.opened: list[tuple[int, str, int, int]] = []  # number, name, stream, parent
        self.edges: dict[int, list[tuple[int, bool]]] = defaultdict(list)  # by stream: number, is it the end

    def span(self, name: str, stream: int, parent: int = -1) -> _Noted:
        return _Noted(self, name, stream, parent)

    def step(self, number: int) -> None:
        """Windows three deep on one stream and two on the other, overlapping."""
        from tests.fake_driver import control

        first, second = self.streams
        with self.span("outer", first) as outer, self.span("aside", second) as aside:
            control.enqueue(second, 20_000 + number % 7 * 40_000)
            for _ in range(2):
                with self.span("inner", first, outer) as inner:
                    control.enqueue(first, 5_000 + number % 5 * 30_000)
                    with self.span("innermost", first, inner):
                        pass
            with self.span("empty", second, aside):
                pass

    def windows(self, stamps: dict[int, list[int]]) -> Iterator[Window]:
        """Each window with the truth about it; ``stamps`` are a stream's true host times, in order."""
        begins: dict[int, int] = {}
        ends: dict[int, int] = {}
        for stream, edges in self.edges.items():
            assert len(edges) == len(stamps[stream]), "an event was not recorded, or more were"
            for (number, is_end), host_ns in zip(edges, stamps[stream], strict=True):
                (ends if is_end else begins)[number] = host_ns
        for number, name, stream, parent in self.opened:
            yield Window(number, name, stream, parent, begins[number], ends[number])


class _Noted:
    def __init__(self, program: Program, name: str, stream: int, parent: int) -> None:
        import gputrace

        self.number = len(program.opened)
        program.opened.append((self.number, name, stream, parent))
        self.edges = program.edges[stream]
        self.span = gputrace.span(name, stream=stream, n=self.number)

    def __enter__(self) -> int:
        self.span.__enter__()
        self.edges.append((self.number, False))
        return self.number

    def __exit__(self, *error: Any) -> None:
        self.span.__exit__(*error)
        self.edges.append((self.number, True))


def run(path: str, seconds: float, busy_threads: int) -> dict[str, Any]:
    """Record the program; in a process with the fake driver."""
    import gputrace
    from gputrace import tracer
    from tests.benchmarks.program import check, open_gpu
    from tests.fake_driver import control

    driver = open_gpu()
    streams = [int(check(driver.cuStreamCreate(1))) for _ in range(2)]
    program = Program(streams)
    over = threading.Event()

    def busy() -> None:
        number = 0
        while not over.is_set():
            for _ in range(1000):
                number = (number * 31 + 7) % 1_000_003

    threads = [threading.Thread(target=busy) for _ in range(busy_threads)]
    running = gputrace.trace(path, device="cuda").start()
    current = tracer.current()
    assert current is not None
    offset_ns = current.folder.recording.boottime_offset_ns
    for thread in threads:
        thread.start()
    try:
        end = time.monotonic() + seconds
        number = 0
        while time.monotonic() < end or number < STEPS:  # a loaded machine takes longer, and shows as much
            program.step(number)
            number += 1
            time.sleep(0.002)
    finally:
        over.set()
        for thread in threads:
            thread.join()
    summary = running.stop()
    stamps: dict[int, list[int]] = defaultdict(list)
    for stamp in control.truth():
        stamps[stamp.stream].append(stamp.host_ns)
    assert not control.truth_dropped()
    return {
        "windows": list(program.windows(stamps)),
        "offset_ns": offset_ns,
        "summary": {**summary.counts(), "worst_uncertainty_ns": summary.worst_uncertainty_ns, "told": summary.told},
        "calls": control.all_calls(),
    }


if __name__ == "__main__":
    print(json.dumps(run(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]))))
