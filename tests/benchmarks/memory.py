"""How a traced process grows: with the number of spans it has recorded, and with a device that lags behind.

Resident memory as the kernel counts it. The program opens spans as fast as they are collected, each with a window on
the GPU. The fake driver's own events, some 100 bytes each, count here as a real driver's would.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from tests.benchmarks.figures import Row, in_child, print_rows, rows_of

BURST = 500
#: Spans after which the program sees to it that they are collected.
BACKLOG = 10_000
FLAT_BUDGET_MB = 8.0
BEHIND_BUDGET_MB = 64.0
BEHIND_S = 5.0
BEHIND_PER_S = 20_000  # enough to meet the bound on windows in flight
FEW = 100_000
QUICK, FULL, LONG = 1_000_000, 5_000_000, 100_000_000
LONGEST_S = 300.0


def measure(quick: bool = False) -> list[Row]:
    return rows_of([*in_child("memory", "flat", str(QUICK if quick else FULL)), *in_child("memory", "behind")])


def measure_long(quick: bool = False) -> list[Row]:
    """A day's worth of spans, or as many as five minutes take: some 15 GB in the folder for temporary files."""
    return rows_of(in_child("memory", "flat", str(LONG)))


def resident_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


class Program:
    """Opens spans no faster than they are collected."""

    def __init__(self) -> None:
        from tests.benchmarks.program import check, open_gpu, spans

        self.stream: Any = check(open_gpu().cuStreamCreate(1))
        self.burst = spans(BURST, int(self.stream))
        self.opened = 0

    def run_to(self, total: int, longest_s: float = float("inf")) -> float:
        """Open spans until there were so many, or for so long; the resident memory once all are written."""
        from gputrace import tracer

        recording = tracer.current()
        assert recording is not None
        start = time.monotonic()
        while self.opened < total and time.monotonic() - start < longest_s:
            for _ in range(BACKLOG // BURST):
                self.burst()
            self.opened += BACKLOG
            recording.cycle()
        time.sleep(1.0)
        return resident_mb()


def flat(many: int) -> list[Row]:
    from tests.benchmarks.program import recorded

    program = Program()
    with recorded() as running:
        before = program.run_to(FEW)
        after = program.run_to(many, LONGEST_S)
    assert running.summary is not None
    assert running.summary.windows == program.opened
    stopped = f", stopped at {program.opened / 1e6:.0f} M" if program.opened < many else ""
    judged = not stopped or after - before > FLAT_BUDGET_MB
    return [
        Row(
            f"memory at {many / 1e6:g} M spans above that at {FEW // 1000} k",
            after - before,
            FLAT_BUDGET_MB if judged else None,
            "MB",
            aside=f"from {before:.0f}{stopped}",
        )
    ]


def behind() -> list[Row]:
    from tests.benchmarks.program import recorded
    from tests.fake_driver import control

    program = Program()
    with recorded() as running:
        before = program.run_to(FEW)
        control.enqueue(program.stream, round(BEHIND_S * 1e9))
        start = time.monotonic()
        opened = 0
        most = before
        while (passed := time.monotonic() - start) < BEHIND_S:
            if opened < passed * BEHIND_PER_S:
                program.burst()
                opened += BURST
            else:
                time.sleep(0.005)
            most = max(most, resident_mb())
    assert running.summary is not None
    windows = running.summary.windows - program.opened
    return [
        Row(
            f"the most with the device {BEHIND_S:g} s behind, above that at {FEW // 1000} k",
            most - before,
            BEHIND_BUDGET_MB,
            "MB",
            aside=f"{windows} in flight",
        )
    ]


if __name__ == "__main__":
    print_rows(flat(int(sys.argv[2])) if sys.argv[1] == "flat" else behind())
