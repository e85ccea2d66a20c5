"""What `gputrace diff` prints and exits with."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from gputrace.cli.main import main
from gputrace.model import SLICE
from tests.analysis import sql
from tests.cli.test_record import said
from tests.engine import Engine
from tests.exporters.recordings import Script
from tests.merging.making import Host, write_trace
from tests.record.running import GPUTRACE, PYTHON, run


def made(folder: Path, side: str, slower: float, count: int = 3, suffix: str = ".pftrace") -> None:
    """Runs of one program: "forward" on host and GPU, "other", and one of each side's own."""
    for k in range(count):
        rng = np.random.default_rng([k, *side.encode()])
        script = Script()
        thread, stream = script.thread(), script.stream()
        for step in range(40):
            at, noise = step * 1_000_000, rng.normal(1, 0.01, 3)
            script.add(
                thread,
                (at, SLICE, "forward", None, step + 1, at + round(50_000 * noise[0])),
                (at + 300_000, SLICE, "other", None, 0, at + 300_000 + round(80_000 * noise[1])),
            )
            script.add(
                stream,
                (at + 10_000, SLICE, "forward", None, step + 1, at + 10_000 + round(200_000 * slower * noise[2])),
            )
        script.add(thread, (50_000_000, SLICE, f"only {side}", None, 0, 50_000_000 + 7_000))
        write_trace(folder / f"{side}{k or ''}{suffix}", Host("node0"), script, number=k)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made(tmp_path, "base", 1.0)
    made(tmp_path, "new", 1.2)
    return tmp_path


def diff(cwd: Path, arguments: str) -> subprocess.CompletedProcess[bytes]:
    return run(["bash", "-c", f'gputrace() {{ {PYTHON} -m gputrace "$@"; }}\ngputrace diff {arguments}'], cwd)


def test_a_table_of_what_changed(folder: Path) -> None:
    done = diff(folder, "base*.pftrace -- new*.pftrace")
    assert (done.returncode, done.stderr) == (0, b"")
    lines = done.stdout.decode().splitlines()
    assert lines[0] == "Spans: 1 slower, 0 faster, 1 new, 1 gone, 2 the same within noise."
    rows = [line.split() for line in lines[4:7]]
    assert [row[:3] for row in rows] == [
        ["forward", "gpu", "slower"],
        ["only", "new", "host"],
        ["only", "base", "host"],
    ]
    change = float(rows[0][7].rstrip("%"))
    assert 19 < change < 21


def test_json_has_every_span_as_the_engine_sees_it(folder: Path) -> None:
    done = diff(folder, "base.pftrace new.pftrace --json")
    found = {(row["name"], row["side"]): row for row in json.loads(done.stdout)}
    assert len(found) == 5
    for side, name in (("base", "base.pftrace"), ("new", "new.pftrace")):
        for row in sql.spans(Engine(folder / name)):
            each = found[row[0], "gpu" if row[1] else "host"]
            assert (each[f"{side}_count"], each[f"{side}_ns"]) == (row[2], row[9])
    forward = found["forward", "gpu"]
    assert forward["verdict"] == "slower"
    assert forward["low"] < 0.2 < forward["high"]
    assert forward["lost_ns"] == pytest.approx(40 * (forward["new_ns"] - forward["base_ns"]))
    assert said(done.stderr) == [
        "one run a side: what differs from run to run anyway may be called a change; give several"
    ]


def test_either_format_and_a_part_of_it(folder: Path) -> None:
    made(folder, "late", 1.2, suffix=".json")
    done = diff(folder, "base*.pftrace -- late*.json --track '*stream 7' --name 'forw*'")
    assert done.stdout.startswith(b"Spans: 1 slower, 0 faster, 0 new, 0 gone, 0 the same within noise.\n")


@pytest.mark.parametrize(
    ("limits", "code", "told"),
    [
        ("--fail-above 30%", 0, []),
        ("--fail-above 5%", 1, ["forward (gpu) is "]),
        ("--fail-above 5 --fail-on 'for*:25%'", 0, []),
        ("--fail-on forward:10% --fail-on gone:3%", 1, ["forward (gpu) is ", "no span named gone is on both sides"]),
        ("--fail-on 'only base:5%'", 1, ["no span named only base is on both sides"]),
    ],
)
def test_limits_set_the_exit_code(folder: Path, limits: str, code: int, told: list[str]) -> None:
    done = diff(folder, f"base*.pftrace -- new*.pftrace {limits}")
    lines = said(done.stderr)
    assert done.returncode == code
    assert len(lines) == len(told)
    assert all(line.startswith(begin) for line, begin in zip(lines, told, strict=True))


def test_what_cannot_be_compared_is_no_pass(folder: Path) -> None:
    (folder / "words.json").write_text("once upon a time")
    for arguments in ("base.pftrace words.json", "base*.pftrace -- new*.pftrace missing.pftrace"):
        done = diff(folder, arguments)
        assert (done.returncode, done.stdout) == (2, b"")
        assert len(said(done.stderr)) == 1


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("base.pftrace none.json", ["none.json: there are no slices in it"]),
        ("none.json new.pftrace --fail-above 5%", ["none.json: there are no slices in it"]),
        ("base.pftrace open.json", ["open.json: of what is to be compared no span ended"]),
        ("base.pftrace new.pftrace --name zzz", ["no name fits 'zzz'", "no name fits 'zzz'"]),
        ("base.pftrace new.pftrace --track zzz", ["no track fits 'zzz'", "no track fits 'zzz'"]),
        ("base*.pftrace -- new.pftrace --name 'only new'", ["no name fits 'only new'"] * 3),
    ],
)
def test_a_side_with_nothing_to_compare_is_no_pass(folder: Path, arguments: str, told: list[str]) -> None:
    (folder / "none.json").write_text("[]")
    (folder / "open.json").write_text('[{"ph": "B", "ts": 1, "pid": 1, "tid": 1, "name": "forward"}]')
    done = diff(folder, arguments)
    assert (done.returncode, done.stdout) == (2, b"")
    lines = [line for line in said(done.stderr) if not line.startswith("one run a side")]
    assert len(lines) == len(told)
    assert all(part in line for line, part in zip(lines, told, strict=True))
    if "zzz" in arguments:
        assert all("nothing in it is of the part that was asked for (no " in line for line in lines)
        assert all("with tracks like 'train.py/MainThread', " in line for line in lines)
        assert all(("and names like 'forward', 'other'" in line) == ("--name" in arguments) for line in lines)


def test_a_trace_torn_before_its_first_event_is_no_pass(folder: Path) -> None:
    (folder / "torn.json").write_text('{"traceEvents": [')
    done = diff(folder, "base.pftrace torn.json")
    assert (done.returncode, done.stdout) == (2, b"")
    lines = said(done.stderr)
    assert all(line.startswith("torn.json: ") for line in lines)
    assert "is only the beginning of a trace" in lines[-1]


def test_a_run_with_nothing_to_compare_beside_one_that_has_it(folder: Path) -> None:
    (folder / "none.json").write_text("[]")
    done = diff(folder, "base.pftrace none.json -- new*.pftrace --name other --json")
    assert (done.returncode, done.stderr) == (0, b"")
    assert [(row["base_count"], row["new_count"]) for row in json.loads(done.stdout)] == [(20, 40)]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("base.pftrace", "say which traces are which: gputrace diff BASE... -- NEW..."),
        ("-- new.pftrace", "say which traces are which: gputrace diff BASE... -- NEW..."),
        ("base.pftrace base1.pftrace new.pftrace", "say which traces are which: gputrace diff BASE... -- NEW..."),
        ("a -- b -- c", "say which traces are which: gputrace diff BASE... -- NEW..."),
        ("a b --json --markdown", "--json and --markdown are 2 formats: choose one."),
        ("a b --fail-above much", "'much' is no percentage: write it as 5%."),
        ("a b --fail-on forward", "'forward' names no span and limit: write NAME:10%."),
        ("a b --fail-on :5%", "':5%' names no span and limit: write NAME:10%."),
        ("a b --fail-on forward:x", "'x' is no percentage: write it as 5%."),
    ],
)
def test_what_is_asked_for_wrongly(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: str, told: str
) -> None:
    monkeypatch.setattr(sys, "argv", ["gputrace", "diff", *arguments.split()])
    assert main() == 2
    seen = capsys.readouterr()
    assert told in seen.err
    assert seen.out == ""


def test_the_commands_of_the_readme_and_of_its_help(folder: Path) -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    section = readme.partition("### Compare runs\n")[2].partition("\n### ")[0]
    commands = section.partition("```sh\n")[2].partition("```")[0].splitlines()
    helped = run([*GPUTRACE, "diff", "--help"], folder).stdout.decode()
    commands += [line.strip() for line in helped.splitlines() if line.startswith("  gputrace diff ")]
    assert len(commands) == 2 + 2
    for command in commands:
        done = diff(folder, command.removeprefix("gputrace diff "))
        assert done.returncode == ("--fail" in command)
        assert done.stdout.startswith(b"Spans: 1 slower"), command
        if "--markdown" in command:
            assert b"| forward | gpu | slower | " in done.stdout
