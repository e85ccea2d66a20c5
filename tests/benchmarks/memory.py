"""How a traced process grows: with the number of spans it has recorded, and with a device that lags behind.

Resident memory as the kernel counts it. The program opens spans as fast as the collector writes them, each with a
window on the GPU. The fake driver's own events, some 100 bytes each, count here as a real driver's would.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from tests.benchmarks.figures import Row, in_child, print_rows, rows_of

BURST = 500
#: Host edges not yet collected at which the program waits.
BACKLOG = 30_000
FLAT_BUDGET_MB = 8.0
BEHIND_BUDGET_MB = 64.0
BEHIND_S = 5.0
BEHIND_PER_S = 20_000  # enough to meet the bound on windows in flight


def measure(quick: bool = False) -> list[Row]:
    many = 300_000 if quick else 5_000_000
    return rows_of([*in_child("memory", "flat", str(many)), *in_child("memory", "behind")])


def resident_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


class Program:
    """Opens spans no faster than they are collected."""

    def __init__(self) -> None:
        from tests.benchmarks.program import check, open_gpu, spans

        self.stream: Any = check(open_gpu().cuStreamCreate(1))
        self.burst = spans(BURST, int(self.stream))
        self.opened = 0

    def run_to(self, total: int) -> float:
        """Open spans until there were so many; the resident memory once all are written."""
        from gputrace import hot

        while self.opened < total:
            self.burst()
            self.opened += BURST
            while sum(len(thread.edges) for thread in hot.threads()) > BACKLOG:
                time.sleep(0.001)
        time.sleep(1.0)
        return resident_mb()


def flat(many: int) -> list[Row]:
    from tests.benchmarks.program import recorded

    program = Program()
    with recorded() as running:
        before = program.run_to(100_000)
        after = program.run_to(many)
    assert running.summary is not None
    assert running.summary.windows == program.opened
    return [
        Row(
            f"memory at {many / 1e6:g} M spans above that at 100 k",
            after - before,
            FLAT_BUDGET_MB,
            "MB",
            note=f"{before:.0f} MB then",
        )
    ]


def behind() -> list[Row]:
    from tests.benchmarks.program import recorded
    from tests.fake_driver import control

    program = Program()
    with recorded() as running:
        before = program.run_to(100_000)
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
            f"the same with the device {BEHIND_S:g} s behind",
            most - before,
            BEHIND_BUDGET_MB,
            "MB",
            note=f"{windows} windows in flight, {opened - windows} spans without one",
        )
    ]


if __name__ == "__main__":
    print_rows(flat(int(sys.argv[2])) if sys.argv[1] == "flat" else behind())
