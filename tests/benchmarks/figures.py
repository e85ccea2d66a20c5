"""What a benchmark returns, and how it is measured beside its baseline: in a process of its own, in turns.

It measures nothing itself, and knows neither the suite nor its table (`report`).
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PURE, COMPILED = "pure", "compiled"


@dataclass
class Row:
    """One figure. ``budget`` is the most it may be, or with ``at_least`` the least; None: it stands for comparison.

    ``measured`` is None where it could not be, and ``aside`` says why. ``unit`` follows the number. ``note`` says what
    else one must know to believe it, and is the same in every run; ``aside`` is what this one measured besides.
    """

    what: str
    measured: float | None
    budget: float | None = None
    unit: str = "x"
    at_least: bool = False
    note: str = ""
    aside: str = ""

    @property
    def verdict(self) -> str:
        if self.budget is None or self.measured is None:
            return ""
        met = self.measured >= self.budget if self.at_least else self.measured <= self.budget
        return "met" if met else "over"


# Twins.


def twin() -> str:
    """The hot path's twin that this process uses."""
    from gputrace import hot

    return str(getattr(hot, "TWIN", PURE))


def by_twin(pure: float | None, compiled: float | None) -> float | None:
    """The budget of the twin that this process uses."""
    return compiled if twin() == COMPILED else pure


@contextlib.contextmanager
def using(name: str) -> Iterator[None]:
    """Processes started in this block use that twin; with "" whichever this one would."""
    if not name:
        yield
        return
    before = os.environ.pop("GPUTRACE_PURE", None)
    if name == PURE:
        os.environ["GPUTRACE_PURE"] = "1"
    try:
        yield
    finally:
        os.environ.pop("GPUTRACE_PURE", None)
        if before is not None:
            os.environ["GPUTRACE_PURE"] = before


def twins() -> list[str]:
    """The twins that there are for this Python."""
    with using(COMPILED):
        found = in_child("figures", fake=False)
    return [PURE, COMPILED] if found == COMPILED else [PURE]


# Measuring.


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
    done = subprocess.run(command, env=base, cwd=ROOT, stdout=subprocess.PIPE, check=True, timeout=900)
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


def median_ns(subject: Callable[[], object], rounds: int, between: Callable[[], object] = lambda: None) -> float:
    """The median time of one run, in ns; ``between`` runs, untimed, before each."""
    clock = time.perf_counter_ns
    times = []
    for _ in range(rounds):
        between()
        start = clock()
        subject()
        times.append(clock() - start)
    return statistics.median(times)


# Telling.


def table(rows: Iterable[Row]) -> str:
    """Markdown, of one run."""
    lines = ["| what | measured | budget | |", "| --- | ---: | ---: | --- |"]
    for row in rows:
        what = f"{row.what} ({row.note})" if row.note else row.what
        lines.append(f"| {what} | {shown(row)} | {shown_budget(row)} | {row.verdict} |")
    return "\n".join(lines)


def shown(row: Row) -> str:
    """What was measured."""
    if row.measured is None:
        return row.aside
    text = with_unit(row.measured, row.unit)
    return f"{text} ({row.aside})" if row.aside else text


def shown_budget(row: Row) -> str:
    if row.budget is None:
        return ""
    return f"{'at least ' if row.at_least else ''}{with_unit(row.budget, row.unit)}"


def with_unit(value: float, unit: str) -> str:
    if value == int(value) and abs(value) < 1e6:
        text = str(int(value))
    else:
        text = f"{value:.{2 if abs(value) < 10 else 1 if abs(value) < 100 else 0}f}"
    return text + (unit if unit in ("x", "%", "") else f" {unit}")


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


if __name__ == "__main__":
    print(json.dumps(twin()))
