"""What a benchmark returns, how it is measured beside its baseline, and the table of all of them.

It measures nothing itself.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


@dataclass
class Row:
    """One figure. ``budget`` is the most it may be, or with ``at_least`` the least; None: it stands for comparison.

    ``unit`` follows the number; ``note`` says what else one must know to believe it.
    """

    what: str
    measured: float
    budget: float | None = None
    unit: str = "x"
    at_least: bool = False
    note: str = ""

    @property
    def verdict(self) -> str:
        if self.budget is None:
            return ""
        met = self.measured >= self.budget if self.at_least else self.measured <= self.budget
        return "met" if met else "over"


def in_child(
    module: str, *arguments: str, fake: bool = True, env: dict[str, str] | None = None, **settings: Any
) -> Any:
    """Run ``python -m tests.benchmarks.MODULE ARGUMENTS`` and return the JSON that is the last line of what it prints.

    ``fake``: with the fake driver, under these settings of it.
    """
    base = dict(os.environ if env is None else env)
    if fake:
        from tests.fake_driver import environment

        base = environment(base, **settings)
    command = [sys.executable, "-m", f"tests.benchmarks.{module}", *arguments]
    done = subprocess.run(command, env=base, cwd=ROOT, stdout=subprocess.PIPE, check=True, timeout=600)
    return json.loads(done.stdout.splitlines()[-1])


def rows_of(found: Iterable[dict[str, Any]]) -> list[Row]:
    """Rows that came from a child as JSON."""
    return [Row(**row) for row in found]


def print_rows(rows: Iterable[Row]) -> None:
    """For a child: the last line of its output."""
    print(json.dumps([asdict(row) for row in rows]))


def paired_ratio(
    subject: Callable[[], object],
    baseline: Callable[[], object],
    rounds: int,
    between: Callable[[], object] = lambda: None,
) -> float:
    """The median of subject over baseline, each round timing the subject between two runs of the baseline.

    A machine's speed drifts, and a busy one loses a slice of time now and then: neighbours see the same speed, and the
    median drops the rounds that lost one. ``between`` runs, untimed, before each round.
    """
    clock = time.perf_counter_ns
    ratios = []
    for _ in range(rounds):
        between()
        t0 = clock()
        baseline()
        t1 = clock()
        subject()
        t2 = clock()
        baseline()
        t3 = clock()
        ratios.append(2 * (t2 - t1) / (t1 - t0 + t3 - t2))
    return statistics.median(ratios)


def table(rows: Iterable[Row]) -> str:
    """Markdown."""
    lines = ["| what | measured | budget | |", "| --- | ---: | ---: | --- |"]
    for row in rows:
        sign = "at least " if row.at_least else ""
        budget = "" if row.budget is None else f"{sign}{_shown(row.budget, row.unit)}"
        what = f"{row.what} ({row.note})" if row.note else row.what
        lines.append(f"| {what} | {_shown(row.measured, row.unit)} | {budget} | {row.verdict} |")
    return "\n".join(lines)


def machine() -> str:
    """What the figures were taken on."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        bindings = f"cuda-python {version('cuda-python')}"
    except PackageNotFoundError:
        bindings = "no cuda-python"
    model = platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    except OSError:
        pass  # not Linux
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{platform.python_implementation()} {platform.python_version()}, {bindings}, {cores} cores of {model}"


def _shown(value: float, unit: str) -> str:
    if value == int(value) and abs(value) < 1e6:
        text = str(int(value))
    else:
        text = f"{value:.{2 if abs(value) < 10 else 1 if abs(value) < 100 else 0}f}"
    return text + (unit if unit in ("x", "%", "") else f" {unit}")
