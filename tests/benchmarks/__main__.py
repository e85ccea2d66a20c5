"""Measures the budgets and prints one table: what, measured, budget, verdict.

    python -m tests.benchmarks [--quick] [--only NAME] [--write-readme] [--strict]

Everything that depends on the machine's speed is a ratio to a baseline in the same run, except what is promised as such
(pace of writing, start-up, memory). Nothing fails for being slow unless ``--strict`` says so.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable

from tests.benchmarks import busy_thread, cpu_time, host_cost, memory, off, placement, startup, truth, writing
from tests.benchmarks.figures import ROOT, Row, machine, table

README = ROOT / "README.md"
BEGIN, END = "<!-- figures:begin -->", "<!-- figures:end -->"


def placed(quick: bool) -> list[Row]:
    found = placement.measure(2.0 if quick else 5.0)
    ours, theirs = found["ours"], found["afterwards"]
    note = f"{found['windows']} windows, worst {ours['max_ns']} ns, stated {ours['stated_p50_ns']} ns"
    return [
        Row("the profiler's windows against the truth, p99", ours["p99_ns"] / 1e3, 5, "µs", note=note),
        Row("its windows within the bound they state", 100 * ours["within"], 100, "%", True),
        Row("the usual way, read the clock after a wait, p99", theirs["p99_ns"] / 1e3, unit="µs", note="same program"),
    ]


def written(quick: bool) -> list[Row]:
    found = writing.measure(rounds=3) if quick else writing.measure()
    return [
        Row("writing, events a second", found["perfetto_nested_per_s"] / 1e6, 1.5, "M", True),
        Row("writing with flows", found["perfetto_flows_per_s"] / 1e6, 1.5, "M", True),
        Row("writing, over the perfetto package's builder", found["times_the_package"]),
        Row("bytes an event", found["perfetto_bytes"], 15, "B"),
        Row("bytes an event with a flow on each slice", found["perfetto_flows_bytes"], 22, "B"),
    ]


FIGURES: dict[str, Callable[[bool], list[Row]]] = {
    "host_cost": host_cost.measure,
    "cpu_time": cpu_time.measure,
    "busy_thread": busy_thread.measure,
    "off": off.measure,
    "placement": placed,
    "truth": truth.measure,
    "writing": written,
    "memory": memory.measure,
    "startup": startup.measure,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds and spans: about a minute and a half")
    parser.add_argument("--only", action="append", choices=FIGURES, help="this figure alone; may be repeated")
    parser.add_argument("--write-readme", action="store_true", help="put the table between the README's marks")
    parser.add_argument("--strict", action="store_true", help="exit with 1 if a budget is not met")
    options = parser.parse_args()
    rows: list[Row] = []
    for name in options.only or FIGURES:
        started = time.monotonic()
        rows += FIGURES[name](options.quick)
        print(f"{name}: {time.monotonic() - started:.0f} s", file=sys.stderr)
    text = f"{table(rows)}\n\n{machine()}."
    print(text)
    if options.write_readme:
        write_readme(text)
    return int(options.strict and any(row.verdict == "over" for row in rows))


def write_readme(text: str) -> None:
    """Raises `SystemExit` where the README has not both marks."""
    readme = README.read_text()
    before, begin, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{README} has no {BEGIN} ... {END}")
    README.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}")


if __name__ == "__main__":
    sys.exit(main())
