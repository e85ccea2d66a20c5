"""CPU time of every thread of the process a span, in units of two bare `cuEventRecord`.

Loops take turns, each paced to 50,000 a second: nothing, two bare records, a span; each is followed by time for the
collector to finish. What a span costs beyond its own two records is measured on a driver that stamps them, since a
tracer that reads unstamped events does other work; the unit, and so the two records in a span, on one that does not.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

from tests.benchmarks.figures import Row, by_twin, in_child, print_rows, rows_of

PER_S = 50_000
BURST = 100
SETTLE_S = 0.6  # an anchor's period and two of the collector's


def measure(quick: bool = False) -> list[Row]:
    rounds, seconds = (3, 0.6) if quick else (7, 1.2)
    return rows_of(in_child("cpu_time", str(rounds), str(seconds)))


def run(rounds: int, seconds: float) -> list[Row]:
    from tests.benchmarks.program import bare_records, check, open_gpu, recorded, spans
    from tests.fake_driver import control

    driver = open_gpu()
    stream = check(driver.cuStreamCreate(1))
    bare = bare_records(driver, stream, BURST)
    over_all: list[float] = []
    own: list[float] = []
    host_only: list[float] = []
    with recorded() as running:
        on_stream, plain = spans(BURST, int(stream)), spans(BURST)
        paced(on_stream, seconds)
        for _ in range(rounds):
            idle = paced(lambda: None, seconds)
            stamped = paced(bare, seconds) - idle
            control.set(null=1)
            unit = paced(bare, seconds) - idle
            control.set(null=0)
            span = paced(on_stream, seconds) - idle
            over_all.append((span.total - stamped.total) / unit.total + 1)
            own.append((span.thread - stamped.thread) / unit.thread + 1)
            host_only.append((paced(plain, seconds) - idle).total / unit.total)
    summary = running.summary
    assert summary is not None
    assert not summary.dropped
    return [
        Row("CPU time of all threads, a host+GPU span", statistics.median(over_all), by_twin(7.0, 1.5)),
        Row("of that, the thread that opened it", statistics.median(own)),
        Row("CPU time of all threads, a host-only span", statistics.median(host_only)),
    ]


class Cpu:
    """CPU seconds a turn of the loop: of the whole process, and of the calling thread."""

    def __init__(self, total: float, thread: float) -> None:
        self.total = total
        self.thread = thread

    def __sub__(self, other: Cpu) -> Cpu:
        return Cpu(self.total - other.total, self.thread - other.thread)


def paced(burst: Callable[[], object], seconds: float) -> Cpu:
    """Run bursts at the pace for some seconds and let the collector finish."""
    total, thread = time.process_time(), time.thread_time()
    start = due = time.perf_counter()
    turns = 0
    while due - start < seconds:
        burst()
        turns += BURST
        due += BURST / PER_S
        wait = due - time.perf_counter()
        if wait > 0:
            time.sleep(wait)
    time.sleep(SETTLE_S)
    return Cpu((time.process_time() - total) / turns, (time.thread_time() - thread) / turns)


if __name__ == "__main__":
    print_rows(run(int(sys.argv[1]), float(sys.argv[2])))
