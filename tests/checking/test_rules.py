"""Faults planted one by one, in traces of both formats and of several tools: each is found by its rule."""

from __future__ import annotations

import dataclasses
import gzip
import json
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gputrace.exporters.perfetto import Perfetto

import gputrace
from gputrace.checking.rules import ABSURD_NS, RULES, check
from gputrace.checking.violation import Violation
from gputrace.model import BEGIN, END, INSTANT, SLICE
from tests.exporters.recordings import BASE, FORMATS, RECORDING, SNAPSHOTS, Script, join, write

DAY_US = 86_400e6


def chrome(*events: dict[str, Any]) -> bytes:
    """A trace of some other tool."""
    return json.dumps({"traceEvents": [{"pid": 7, "tid": 8, **event} for event in events]}).encode()


def whole(name: str, ts: float, dur: float, **more: Any) -> dict[str, Any]:
    return {"ph": "X", "name": name, "ts": ts, "dur": dur, **more}


def arrow(ph: str, ts: float) -> dict[str, Any]:
    return {"ph": ph, "bp": "e", "cat": "c", "name": "n", "id": 1, "ts": ts}


def ours(*edges: Any) -> bytes:
    script = Script()
    script.add(script.thread(), *edges)
    return write(Perfetto, script)


def launched(after_ns: int) -> bytes:
    """A launch on the host, and its kernel so long after it."""
    script = Script()
    thread, stream = script.thread(), script.stream()
    script.add(thread, (1_000, BEGIN, "launch", None, 5), (2_000, END))
    script.add(stream, (1_000 + after_ns, BEGIN, "kernel", None, 5), (9_000, END))
    return write(Perfetto, script)


def clocked(*rows: tuple[int, int, int]) -> bytes:
    """A trace with snapshots of the clocks: BOOTTIME, MONOTONIC and REALTIME, in ns after a common start."""
    from gputrace.model import ClockSnapshot

    script = Script()
    script.add(script.thread(), (0, SLICE, "x", None, 0, 5))
    first = SNAPSHOTS[1]
    snapshots = [
        ClockSnapshot(first.boottime_ns + b, first.monotonic_ns + m, first.realtime_ns + r) for b, m, r in rows
    ]
    return Perfetto.header(RECORDING, snapshots, {}) + script.shard(Perfetto) + Perfetto.footer()


def counted(**facts: int) -> bytes:
    script = Script()
    script.add(script.thread(), (0, SLICE, "x", None, 0, 5))
    return join(Perfetto, [script.shard(Perfetto)], {"gputrace_version": "1", **facts})


SECOND = 1_000_000_000
GOOD = [whole("outer", 10, 100), whole("inner", 20, 30), whole("next", 200, 1)]

# By rule: a trace that breaks it, how often, and words that the finding must hold.
PLANTED: dict[str, list[tuple[bytes, int, str]]] = {
    "readable": [
        (chrome(*GOOD)[:-40], 1, "cut short"),
        (chrome(*GOOD, {"ph": "E", "ts": 500}), 1, "close nothing"),
        (chrome(*GOOD, whole("x", 5, -3), whole("y", 6, -1)), 2, "negative duration"),
        (chrome(*GOOD, whole("x", "soon", 3)), 1, "no time"),  # type: ignore[arg-type]
        (chrome(*GOOD, {"ph": "C", "name": "c", "ts": 3, "args": {"v": "much"}}), 1, "no numbers"),
        (ours((0, BEGIN, "x"), (5, END), (9, END)), 1, "close nothing"),
        (ours((0, SLICE, "x", None, 0, 5))[:-9], 1, "byte"),
    ],
    "times": [
        (chrome(*GOOD, whole("early", -3, 1)), 1, "below zero"),
        (chrome(*GOOD, whole("late", 300 * DAY_US, 1)), 1, "300 days"),
    ],
    "durations": [(chrome(*GOOD, whole("endless", 300, 8 * DAY_US)), 1, "over a week")],
    "finished": [
        (chrome(*GOOD, {"ph": "B", "name": "open", "ts": 300}), 1, "never ended"),
        (ours((0, BEGIN, "x"), (5, BEGIN, "y"), (9, END)), 1, "never ended"),
    ],
    "overlaps": [
        (chrome(*GOOD, whole("across", 105, 50)), 1, "overlap others"),
        (chrome({"ph": "B", "name": "a", "ts": 0}, whole("b", 5, 10), {"ph": "E", "ts": 9}), 1, "overlap others"),
    ],
    "arrows": [
        (chrome(*GOOD, arrow("s", 200.5), arrow("f", 25)), 1, "begin before what an arrow says they follow"),
        (launched(-300), 1, "before the host launched them, by up to 300 ns"),
    ],
    "clocks": [
        (clocked(), 1, "no clock snapshot"),
        (clocked((0, 0, 0), (SECOND, SECOND, SECOND + 5_000_000)), 1, "set by +0.005000 s"),
        (clocked((0, 0, 0), (SECOND, SECOND, SECOND - 70_000_000)), 1, "set by -0.070000 s"),
        (clocked((0, 0, 0), (9 * SECOND, SECOND, 9 * SECOND)), 1, "suspended for 8.000 s"),
    ],
    "reported": [
        (counted(dropped=12), 12, "dropped"),
        (counted(capture_skipped=3), 3, "capture"),
        (counted(out_of_order=2), 2, "out of order"),
        (counted(stopped=2), 2, "stopped tracing midway"),
        (counted(silent=1), 1, "left nothing of what they recorded"),
        (counted(clock_violations=1), 1, "before their own launch"),
        (counted(failed=4), 4, "could not be recorded"),
    ],
    "placed": [(ours((0, SLICE, "x", {"gpu": "not recorded: refused"}, 0, 5)), 1, "have no GPU time")],
}
CASES = [(rule, *case) for rule, cases in PLANTED.items() for case in cases]


def checked(tmp_path: Path, trace: bytes) -> tuple[gputrace.Trace, list[Violation]]:
    path = tmp_path / "trace"
    path.write_bytes(trace)
    read = gputrace.read(path)
    return read, check(read)


@pytest.mark.parametrize(("rule", "trace", "count", "words"), CASES, ids=lambda x: x if isinstance(x, str) else "")
def test_a_planted_fault(tmp_path: Path, rule: str, trace: bytes, count: int, words: str) -> None:
    _, found = checked(tmp_path, trace)
    mine = [each for each in found if each.rule == rule]
    assert [(each.count, words in each.what) for each in mine] == [(count, True)], found
    assert all(each.meaning.endswith(".") for each in found)


def test_every_rule_has_a_fault_planted() -> None:
    assert [rule.__name__ for rule in RULES] == list(PLANTED)


@pytest.mark.parametrize("exporter", FORMATS, ids=lambda each: each.__name__)
def test_nothing_is_wrong_with_a_good_trace(tmp_path: Path, exporter: type) -> None:
    script = Script()
    thread, stream, lane = script.thread(), script.stream(merge_key="s"), script.stream(merge_key="s")
    script.add(thread, (0, BEGIN, "step"), (1, SLICE, "launch", None, 1, 2), (3, INSTANT, "mark"), (9, END))
    script.add(stream, (4, SLICE, "kernel", {"grid": "1x1"}, 1, 8), (8, SLICE, "next", None, 0, 8))
    script.add(lane, (5, SLICE, "beside it", None, 0, 9))
    assert checked(tmp_path, write(exporter, script))[1] == []
    assert checked(tmp_path, chrome(*GOOD))[1] == []
    assert checked(tmp_path, chrome(*GOOD, whole("beside", 105, 50, tid=9)))[1] == []
    assert checked(tmp_path, launched(1))[1] == []
    assert checked(tmp_path, clocked((0, 0, 0), (SECOND, SECOND, SECOND + 900_000)))[1] == []


def test_what_is_found_is_where_it_is(tmp_path: Path) -> None:
    trace, found = checked(tmp_path, chrome(*GOOD, whole("across", 105, 50), whole("endless", 300, 8 * DAY_US)))
    by_rule = {each.rule: each for each in found}
    assert by_rule["overlaps"].first_ns == 105_000
    assert by_rule["durations"].first_ns == 300_000
    [example] = by_rule["overlaps"].examples
    assert example.startswith("across on ")
    assert example.endswith(" at 0.000095000 s")
    assert trace.duration_ns > ABSURD_NS


def test_a_trace_of_a_real_tool(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("def f(n):\n    return n if n < 2 else f(n - 1) + f(n - 2)\n\n\nf(9)\n")
    command = [sys.executable, "-m", "viztracer", "-o", "v.json", "--quiet", "program.py"]
    subprocess.run(command, check=True, cwd=tmp_path, timeout=100, capture_output=True)
    trace = json.loads((tmp_path / "v.json").read_bytes())
    slices = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert checked(tmp_path, json.dumps(trace).encode())[1] == []
    outer, inner = (next(event for event in slices if event["name"].startswith(name)) for name in ("<module>", "f "))
    inner["ts"] = outer["ts"] + outer["dur"] / 2
    inner["dur"] = outer["dur"]
    assert "overlaps" in {each.rule for each in checked(tmp_path, json.dumps(trace).encode())[1]}


@pytest.mark.parametrize("trace", [b"", b"[]", b"\n"], ids=["empty", "no events", "a line"])
def test_what_is_no_trace_or_holds_nothing(tmp_path: Path, trace: bytes, run: Callable[..., Any]) -> None:
    (tmp_path / "t.json").write_bytes(trace)
    done = run("check", "t.json")
    assert "Traceback" not in done.stderr
    assert done.returncode == (0 if trace == b"[]" else 1)


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Any]:
    def run(*arguments: str) -> Any:
        command = [sys.executable, "-m", "gputrace", *arguments]
        return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=100)

    return run


def test_the_command(tmp_path: Path, run: Callable[..., Any]) -> None:
    (tmp_path / "good.json").write_bytes(chrome(*GOOD))
    (tmp_path / "bad.json").write_bytes(chrome(*GOOD, whole("across", 105, 50)))
    done = run("check", "good.json")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "good.json: nothing is wrong with it: 3 slices on 1 tracks\n"
    done = run("check", "good.json", "bad.json")
    assert done.returncode == 1
    assert "bad.json:\n  overlaps: 1 slice overlap others of their track" in done.stdout
    done = run("check", "--json", "bad.json", "gone.json", "good.json")
    assert done.returncode == 1
    assert "gone.json: cannot be read" in done.stderr
    bad, gone, good = json.loads(done.stdout)
    _, [violation] = checked(tmp_path, (tmp_path / "bad.json").read_bytes())
    assert bad == {
        "trace": "bad.json",
        "violations": [{**dataclasses.asdict(violation), "examples": [*violation.examples]}],
    }
    assert (good["violations"], gone["violations"]) == ([], [])
    assert "cannot be read" in gone["error"]


def test_times_are_those_of_the_trace(tmp_path: Path) -> None:
    _, [violation] = checked(tmp_path, ours((7, BEGIN, "open")))
    assert violation.first_ns == BASE + 7 + RECORDING.boottime_offset_ns


def test_the_readme_s_examples(tmp_path: Path, run: Callable[..., Any]) -> None:
    text = (Path(__file__).parents[2] / "README.md").read_text()
    lines = [line for line in text.splitlines() if line.startswith("gputrace check ")]
    assert len(lines) == 3
    (tmp_path / "trace.pftrace").write_bytes(ours((0, SLICE, "x", None, 0, 5)))
    (tmp_path / "profile.json.gz").write_bytes(gzip.compress(chrome(*GOOD)))
    (tmp_path / "runs" / "a").mkdir(parents=True)
    (tmp_path / "runs" / "a" / "t.pftrace").write_bytes(ours((0, SLICE, "x", None, 0, 5)))
    for line in lines:
        done = run(*shlex.split(line)[1:])
        assert (done.returncode, done.stderr) == (0, "")
        assert line in run("check", "--help").stdout
