"""What reading traces costs: into columns, by each command, and by the readers of other tools beside it.

    python -m tests.benchmarks.reading make|TASK FILE SLICES...

Traces are of one rank, or in the shape of torch.profiler's with times since 1970, and lie in the folder for temporary
files. Readers are timed in a process of their own, by CPU time, once all is imported; commands from start to end.
HolisticTraceAnalysis has a figure where it is installed: the extra ``bench`` leaves it out, as it brings Jupyter.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from tests.benchmarks.figures import ROOT, Row, in_child

SLICES = 1_000_000
FEW = 9_000  # read first, for what is imported
EVENTS = 300_000  # of the profile
TIMES_MORE = 5
GROWN_MB = 32.0
FIRST_US = 1_790_000_000_000_000


def measure(quick: bool = False) -> list[Row]:
    slices, events, rounds = (SLICES // 5, EVENTS // 5, 1) if quick else (SLICES, EVENTS, 3)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        made = {"few": FEW, "one": slices, "other": slices, "many": TIMES_MORE * slices}
        files = {name: place / f"{name}.pftrace" for name in made}
        for name, count in made.items():
            in_child("reading", "make", str(files[name]), str(count), fake=False)
        profiles = [place / "few.json", place / "profile.json"]
        for path, count in zip(profiles, (FEW, events), strict=True):
            in_child("reading", "make", str(path), str(count), fake=False)
        return [
            *readers([files["few"], files["one"]], profiles, rounds),
            *commands(files, _millions(slices), rounds),
            *grown(files, slices, place),
        ]


# --- readers ----------------------------------------------------------------------------------------------------------


def read(path: str) -> int:
    import gputrace

    return len(gputrace.read(path).slices)


def engine(path: str) -> int:
    """Perfetto's trace processor, in WebAssembly: the one that ``gputrace query`` has without a download."""
    from tests.engine import Engine

    return int(Engine(path).query("select count(*) as n from slice")[0]["n"])


def viztracer(path: str) -> int:
    """As ``viztracer --combine`` and ``vizviewer`` read it."""
    from viztracer.report_builder import ReportBuilder

    builder = ReportBuilder([path], verbose=0)
    builder.load_jsons()
    builder.combine_json()
    return sum(event.get("ph") == "X" for event in builder.combined_json["traceEvents"])


def torch(path: str) -> int:
    """As its own validator of traces does."""
    from torch.profiler._trace_validator import _load_events

    return sum(event.get("ph") == "X" for event in _load_events(path))


def holistic(path: str) -> int:
    from hta.common.trace import parse_trace_file

    _, frame, _ = parse_trace_file(path)
    return int((frame["dur"] >= 0).sum())


TASKS: dict[str, Callable[[str], int]] = {
    "read": read,
    "engine": engine,
    "viztracer": viztracer,
    "torch": torch,
    "holistic": holistic,
}


def timed(task: str, few: str, path: str, rounds: str) -> dict[str, Any]:
    """For a child: CPU seconds, the best of rounds, and how many slices were found; or why there are none."""
    function = TASKS[task]
    try:
        function(few)
        taken = []
        for _ in range(int(rounds)):
            started = time.process_time()
            count = function(path)
            taken.append(time.process_time() - started)
    except ImportError as error:
        print(error, file=sys.stderr)
        return {"why": "not installed"}
    except Exception as error:  # whatever another's package raises on a machine it was not made for
        print(repr(error), file=sys.stderr)
        return {"why": "does not run here"}
    return {"seconds": min(taken), "slices": count}


def readers(traces: list[Path], profiles: list[Path], rounds: int) -> list[Row]:
    def found(task: str, paths: list[Path]) -> dict[str, Any]:
        # Whoever unfolds a profile into objects is asked to let go of one before it reads the next.
        return dict(in_child("reading", task, *map(str, paths), str(rounds), fake=False))

    ours, theirs = found("read", traces), found("read", profiles)
    rows = [
        Row("reading a trace into columns, slices", _kilo(ours), 300, "k/s", at_least=True),
        _beside("the same trace by Perfetto's trace processor, in WebAssembly", found("engine", traces), ours),
        Row("reading a torch profile into columns, slices", _kilo(theirs), unit="k/s"),
    ]
    for what, task in (
        ("viztracer, into objects", "viztracer"),
        ("torch's validator of traces, into objects", "torch"),
        ("HolisticTraceAnalysis, into a table", "holistic"),
    ):
        rows.append(_beside(f"the same profile by {what}", found(task, profiles), theirs))
    return rows


def _kilo(found: dict[str, Any]) -> float:
    return float(found["slices"] / found["seconds"] / 1e3)


def _beside(what: str, found: dict[str, Any], ours: dict[str, Any]) -> Row:
    row = Row(f"{what}, over reading it into columns", None)
    if "why" in found:
        row.aside = found["why"]
    elif found["slices"] != ours["slices"]:
        row.aside = f"finds {found['slices']:,} slices of {ours['slices']:,}"
    else:
        row.measured = found["seconds"] / ours["seconds"]
    return row


# --- commands ---------------------------------------------------------------------------------------------------------


class Spent(NamedTuple):
    """What a process took, from its start to its end."""

    seconds: float
    peak_mb: float


def spent(*arguments: object) -> Spent:
    """By one subcommand, whose findings may be whatever they are."""
    command = [sys.executable, "-m", "gputrace", *map(str, arguments)]
    started = time.perf_counter()
    child = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    taken = time.perf_counter() - started
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode not in (0, 1):
        raise subprocess.CalledProcessError(child.returncode, command)
    return Spent(taken, usage.ru_maxrss / 1e3)


def commands(files: dict[str, Path], how_many: str, rounds: int) -> list[Row]:
    summaries = [spent("summary", "--json", files["one"]) for _ in range(rounds)]
    diffs = [spent("diff", "--json", files["one"], files["other"]) for _ in range(rounds)]
    return [
        Row(f"`summary` of {how_many} slices", min(each.seconds for each in summaries), 6, "s"),
        Row("memory of that", max(each.peak_mb for each in summaries), 500, "MB"),
        Row("`diff` of two such traces", min(each.seconds for each in diffs), unit="s"),
        Row("memory of that `diff`", max(each.peak_mb for each in diffs), 500, "MB"),
    ]


def grown(files: dict[str, Path], slices: int, place: Path) -> list[Row]:
    """The memory that five times the slices take more."""
    rows = []
    for what, arguments in (
        ("`check`", lambda path: ("check", path)),
        ("`convert` to Chrome's JSON", lambda path: ("convert", path, place / "out.json")),
        ("`convert` of a part", lambda path: ("convert", path, place / "out.pftrace", "--track", "*GPU*")),
        ("`convert` to CSV", lambda path: ("convert", path, place / "out.csv")),
        ("`convert` to Parquet", lambda path: ("convert", path, place / "out.parquet")),
    ):
        few, many = (spent(*arguments(files[name])) for name in ("one", "many"))
        aside = f"from {few.peak_mb:.0f} MB, in {many.seconds:.1f} s"
        above = f"{what} of {_millions(TIMES_MORE * slices)} slices takes above that of {_millions(slices)}"
        rows.append(Row(f"memory that {above}", many.peak_mb - few.peak_mb, GROWN_MB, "MB", aside=aside))
    return rows


def _millions(count: int) -> str:
    return f"{count / 1e6:g} M"


def make(path: str, count: str) -> int:
    """For a child: its memory is not to count as that of what is measured."""
    from tests.benchmarks import fleet, merging

    if path.endswith(".json"):
        merging.profile(Path(path), int(count), FIRST_US)
    else:
        fleet.trace(Path(path), 1 + len(path), int(count) // 3)
    return Path(path).stat().st_size


if __name__ == "__main__":
    task, *arguments = sys.argv[1:]
    print(json.dumps(make(*arguments) if task == "make" else timed(task, *arguments)))
