"""What a busy Python thread loses to spans, at 50,000 and 200,000 a second: its share of work, and its longest stall.

Always compared with the same threads at the same pace with a baseline in place of each span, since the pace is Python
too: what is left is what tracing adds, on the thread that opens the spans and on the collector's.

Whoever calls the driver gives the GIL away, bare records no less than spans, and a busy thread that takes it keeps it
for a switch interval (5 ms). Where it is quick to do so, another thread opens hardly a thousand host+GPU spans a
second, whatever the tracer. Hence three ways:

- host-only spans on another thread, against an empty ``with`` block;
- host+GPU spans on the busy thread itself, between its work, against bare records: nobody waits for the GIL;
- host+GPU spans on another thread, against bare records, at the pace that is left.

The pace that was reached stands beside each loss.
"""

from __future__ import annotations

import contextlib
import statistics
import sys
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from tests.benchmarks.figures import Row, by_twin, in_child, print_rows, rows_of

PACES = (50_000, 200_000)
BURST = 100
OWN_BURST = 10  # between two units of the busy thread's own work: shorter than one of them
STALL_BUDGET_MS = 5.0
SETTLE_S = 0.4  # the last edges are written
KEPT = 0.9  # of the pace: a machine that keeps less can miss a budget, but not show that it is met

Burst = Callable[[], object]


def measure(quick: bool = False) -> list[Row]:
    rounds, seconds = (3, 0.5) if quick else (7, 1.0)
    return rows_of(in_child("busy_thread", str(rounds), str(seconds), null=1))


class Busy(threading.Thread):
    """Counts units of work of some 20 us; ``longest_ns`` is the longest time between two of them.

    With a ``burst`` it runs that too, ``per_s`` times OWN_BURST a second, and counts the spans in ``opened``.
    """

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.over = False
        self.units = 0
        self.opened = 0
        self.longest_ns = 0
        self.burst: Burst | None = None
        self.per_s = 0

    def run(self) -> None:
        clock = time.perf_counter_ns
        last = due = clock()
        number = 0
        while not self.over:
            for _ in range(400):
                number = (number * 31 + 7) % 1_000_003
            self.units += 1
            burst = self.burst
            if burst is None:
                due = clock()
            elif due <= clock():
                burst()
                self.opened += OWN_BURST
                due += OWN_BURST * 1_000_000_000 // self.per_s
            now = clock()
            if now - last > self.longest_ns:
                self.longest_ns = now - last
            last = now


class Turn(NamedTuple):
    """Some time of the busy thread: its units a second, its longest stall, the spans' pace."""

    units_per_s: float
    longest_ms: float
    per_s: float


def beside(busy: Busy, burst: Burst, pace: int, seconds: float) -> Turn:
    """Bursts on this thread."""
    units = busy.units
    busy.longest_ns = 0
    start = due = time.perf_counter()
    opened = 0
    while (now := time.perf_counter()) - start < seconds:
        burst()
        opened += BURST
        due += BURST / pace
        if due > now:
            time.sleep(due - now)
    passed = time.perf_counter() - start
    return Turn((busy.units - units) / passed, busy.longest_ns / 1e6, opened / passed)


def itself(busy: Busy, burst: Burst, pace: int, seconds: float) -> Turn:
    """Bursts on the busy thread."""
    units, opened, start = busy.units, busy.opened, time.perf_counter()
    busy.longest_ns = 0
    busy.per_s, busy.burst = pace, burst
    time.sleep(seconds)
    busy.burst = None
    passed = time.perf_counter() - start
    return Turn((busy.units - units) / passed, busy.longest_ns / 1e6, (busy.opened - opened) / passed)


def compare(turn: Callable[[Burst], Turn], subject: Burst, baseline: Burst, rounds: int) -> tuple[float, Turn, Turn]:
    """The share of its work in percent that the busy thread loses, and the medians of the subject's turns and of the
    baseline's. Each turn of the subject is between two of the baseline.
    """
    turn(subject)
    before = turn(baseline)
    lost: list[float] = []
    subjects: list[Turn] = []
    baselines: list[Turn] = []
    for _ in range(rounds):
        during = turn(subject)
        time.sleep(SETTLE_S)
        after = turn(baseline)
        lost.append(100 * (1 - 2 * during.units_per_s / (before.units_per_s + after.units_per_s)))
        subjects.append(during)
        baselines.append(after)
        before = after

    def medians(turns: list[Turn]) -> Turn:
        return Turn(*(statistics.median(values) for values in zip(*turns, strict=True)))

    return statistics.median(lost), medians(subjects), medians(baselines)


def run(rounds: int, seconds: float) -> list[Row]:
    from tests.benchmarks.program import bare_records, check, open_gpu, recorded, spans

    driver = open_gpu()
    stream = check(driver.cuStreamCreate(1))
    nothing = contextlib.nullcontext()

    def empty() -> None:
        for _ in range(BURST):
            with nothing:
                pass

    ways = [
        ("host-only spans/s on another thread", beside, spans(BURST), empty, PACES),
        (
            "host+GPU spans/s on itself",
            itself,
            spans(OWN_BURST, int(stream)),
            bare_records(driver, stream, OWN_BURST),
            PACES,
        ),
        (
            "host+GPU spans/s on another thread",
            beside,
            spans(BURST, int(stream)),
            bare_records(driver, stream, BURST),
            PACES[:1],
        ),
    ]
    busy = Busy()
    rows: list[Row] = []
    with recorded() as running:
        busy.start()
        for spans_named, way, subject, baseline, paces in ways:
            for pace in paces:
                loss, during, bare = compare(
                    lambda burst, way=way, pace=pace: way(busy, burst, pace, seconds),  # type: ignore[misc]
                    subject,
                    baseline,
                    rounds,
                )
                rows += told(f"{pace // 1000} k {spans_named}", loss, during, bare, pace)
        busy.over = True
        busy.join()
    summary = running.summary
    assert summary is not None
    if summary.dropped:
        rows.append(Row("spans that found no room there", summary.dropped, unit="", note="and so cost less"))
    return rows


def told(what: str, loss: float, during: Turn, bare: Turn, pace: int) -> list[Row]:
    budget = by_twin(15.0, 3.0)
    assert budget is not None
    kept, stall_ms = during.per_s > KEPT * pace, during.longest_ms
    loss_budget = budget if kept or loss > budget else None
    stall_budget = STALL_BUDGET_MS if kept or stall_ms > STALL_BUDGET_MS else None
    return [
        Row(f"work lost, {what}", loss, loss_budget, "%", aside=f"at {during.per_s / 1e3:.0f} k/s"),
        Row(f"longest stall, {what}", stall_ms, stall_budget, "ms", aside=f"else {bare.longest_ms:.1f}"),
    ]


if __name__ == "__main__":
    print_rows(run(int(sys.argv[1]), float(sys.argv[2])))
