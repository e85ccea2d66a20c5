"""Measures the budgets, for both twins of the hot path where both are built, and prints tables.

    python -m tests.benchmarks [--quick] [--long] [--only NAME] [--twin NAME] [--write-readme] [--strict]
    python -m tests.benchmarks --python PATH --python PATH ...    with those Pythons, not this one: one set of tables
    python -m tests.benchmarks --json FILE ...                    and keep what was measured
    python -m tests.benchmarks --from FILE FILE ...               measure nothing: what was kept

A Python of ``--python`` has gputrace, the extras ``test`` and ``bench``, and torch and triton if their rows are wanted.
Everything that depends on the machine's speed is a ratio to a baseline in the same run, except what is promised as such
(pace of writing, an edge, start-up, memory). Nothing fails for being slow unless ``--strict`` says so.
"""

from __future__ import annotations

import argparse
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tests.benchmarks import (
    busy_thread,
    cpu_time,
    edge,
    fleet,
    fuzz,
    host_cost,
    load,
    memory,
    merging,
    off,
    peer_writing,
    peers,
    placement,
    reading,
    startup,
    training,
    truth,
    writing,
)
from tests.benchmarks.figures import COMPILED, PURE, ROOT, Row, machine, twins, using
from tests.benchmarks.report import Figure, Report, write_readme

SPAN = "A span, in units of two bare `cuEventRecord`"
BUSY = "A busy Python thread"
TIME = "Time"
WRITING = "Writing"
MEMORY = "Memory"
STARTUP = "Start-up"
MERGING = "Merging, on one core"
READING = "Reading"
MANY = "Many traces"
LOAD = "Load"
FUZZING = "Fuzzing, for a bounded time"


class Benchmark(NamedTuple):
    """``measure(quick)`` returns rows for the table under that heading; once for each twin, unless it sees to that."""

    heading: str
    measure: Callable[[bool], list[Row]]
    each_twin: bool = True
    only_long: bool = False


BENCHMARKS = {
    "host_cost": Benchmark(SPAN, host_cost.measure),
    "edge": Benchmark(SPAN, edge.measure),
    "cpu_time": Benchmark(SPAN, cpu_time.measure),
    "off": Benchmark(SPAN, off.measure),
    "busy_thread": Benchmark(BUSY, busy_thread.measure),
    "placement": Benchmark(TIME, placement.measure_rows),
    "truth": Benchmark(TIME, truth.measure),
    "writing": Benchmark(WRITING, writing.measure),
    "memory": Benchmark(MEMORY, memory.measure),
    "long": Benchmark(MEMORY, memory.measure_long, only_long=True),
    "startup": Benchmark(STARTUP, startup.measure),
    "load": Benchmark(LOAD, load.measure),
    "merge": Benchmark(MERGING, merging.measure, each_twin=False),
    "reading": Benchmark(READING, reading.measure, each_twin=False),
    "fleet": Benchmark(MANY, fleet.measure, each_twin=False),
    "fuzz": Benchmark(FUZZING, fuzz.measure, each_twin=False),
    "peers": Benchmark("A host slice beside its peers, in the same units", peers.measure, each_twin=False),
    "peer_writing": Benchmark("Writing beside its peers, events", peer_writing.measure, each_twin=False),
    "training": Benchmark("A training step on the CPU, over the same untraced", training.measure, each_twin=False),
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds and spans: some three minutes a twin")
    parser.add_argument("--long", action="store_true", help="a day's worth of spans too: up to five minutes and 15 GB")
    parser.add_argument("--only", action="append", choices=BENCHMARKS, help="this one alone; may be repeated")
    parser.add_argument("--twin", choices=[PURE, COMPILED], help="this twin alone")
    parser.add_argument("--python", action="append", metavar="PATH", help="measure with this Python; may be repeated")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep what was measured")
    parser.add_argument(
        "--from",
        type=Path,
        nargs="+",
        metavar="FILE",
        dest="kept",
        help="what --json kept; of a figure in several, the last",
    )
    parser.add_argument("--write-readme", action="store_true", help="put the tables between the README's marks")
    parser.add_argument("--strict", action="store_true", help="exit with 1 if a budget is not met")
    options = parser.parse_args()
    if options.kept:
        report = Report.merged(Report.read(path) for path in options.kept)
    elif options.python:
        report = Report.merged(measured_with(python, options) for python in options.python)
    else:
        report = measured(options)
    if options.json:
        report.write(options.json)
    print(report.markdown())
    if options.write_readme:
        write_readme(report.markdown())
    return int(options.strict and bool(report.over))


def measured(options: argparse.Namespace) -> Report:
    """Everything that was asked for, with this Python."""
    python = "{}.{}".format(*platform.python_version_tuple())
    there = twins()
    report = Report([], {python: machine()}, [] if COMPILED in there else [python])
    names = options.only or [name for name, known in BENCHMARKS.items() if options.long or not known.only_long]
    for name in names:
        known = BENCHMARKS[name]
        for twin in there if known.each_twin else [""]:
            if twin and options.twin not in (None, twin):
                continue
            started = time.monotonic()
            with using(twin):
                rows = known.measure(options.quick)
            report.figures += [Figure(known.heading, row, python, twin) for row in rows]
            print(f"{name} {twin}: {time.monotonic() - started:.0f} s", file=sys.stderr)
    return report


def measured_with(python: str, options: argparse.Namespace) -> Report:
    """The same with another Python."""
    with tempfile.TemporaryDirectory() as folder:
        kept = Path(folder) / "figures.json"
        command = [python, "-m", "tests.benchmarks", "--json", kept]
        command += [f"--{name}" for name in ("quick", "long") if getattr(options, name)]
        command += [part for name in options.only or () for part in ("--only", name)]
        command += ["--twin", options.twin] if options.twin else []
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        return Report.read(kept)


if __name__ == "__main__":
    sys.exit(main())
