"""What `gputrace summary` prints, in each form, and what it says of what it cannot read."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import pytest

import gputrace
from gputrace.analysis.summary import Summarizer
from gputrace.model import SLICE
from tests.analysis.test_summary import rank
from tests.cli.test_record import said
from tests.exporters.recordings import Script
from tests.merging.making import Host, write_trace
from tests.record.running import GPUTRACE, PYTHON, on_a_terminal, run


def made(folder: Path) -> None:
    for k, slower in enumerate((1.0, 1.5)):
        write_trace(folder / f"rank{k}.pftrace", Host("node0"), rank(k, slower), number=k)
    write_trace(folder / "trace.pftrace", Host("node0"), rank(0, name="train.py"), number=7)


def summary(cwd: Path, *arguments: str) -> str:
    done = run([*GPUTRACE, "summary", *arguments], cwd)
    assert (done.returncode, done.stderr) == (0, b"")
    return done.stdout.decode()


def test_tables_in_a_pipe_are_whole(tmp_path: Path) -> None:
    made(tmp_path)
    shown = summary(tmp_path, "trace.pftrace", "--by", "step", "--top", "3")
    heads = ["Traces", "Steps", "Slowest steps", "GPUs", "Longest idle gaps", "From launch to start", "Spans"]
    places = [shown.index(f"{head}\n") for head in heads]
    assert places == sorted(places)
    assert "Host waiting for devices" in shown
    assert "and 7 more" in shown  # of ten steps
    figures = "forward train.py/MainThread 10 10.00 µs 10.00 µs 11.1% " + "1.000 µs " * 6 + "0"
    assert figures in [" ".join(line.split()) for line in shown.splitlines()]


def test_tables_on_a_terminal_are_as_wide_as_it(tmp_path: Path) -> None:
    made(tmp_path)
    code, out = on_a_terminal([*GPUTRACE, "summary", "trace.pftrace"], tmp_path, "stdout", columns=150)
    assert code == 0
    assert b"\x1b[1m" in out  # bold
    assert b"forward" in out


def test_json_has_everything(tmp_path: Path) -> None:
    made(tmp_path)
    found = json.loads(summary(tmp_path, "rank0.pftrace", "rank1.pftrace", "--json"))
    summarizer = Summarizer()
    for name in ("rank0.pftrace", "rank1.pftrace"):
        trace = gputrace.read(tmp_path / name)
        trace.path = name
        summarizer.add(trace)
    assert found == json.loads(json.dumps(summarizer.summary().as_dict()))
    assert found["ranks"][0]["spread"] == 0.5
    assert found["devices"][0]["idle_ns"] == 81_000
    assert found["gaps"][0]["duration_ns"] == 9_000


def test_csv_and_markdown(tmp_path: Path) -> None:
    made(tmp_path)
    rows = list(csv.DictReader(io.StringIO(summary(tmp_path, "trace.pftrace", "--csv"))))
    assert {(row["name"], row["side"], row["total_ns"]) for row in rows} >= {("forward", "gpu", "10000")}
    steps = list(csv.DictReader(io.StringIO(summary(tmp_path, "trace.pftrace", "--csv", "--by", "step"))))
    assert [row["duration_ns"] for row in steps] == ["9000"] * 10
    text = summary(tmp_path, "trace.pftrace", "--markdown")
    assert "| forward | train.py/MainThread | 10 | 10.00 µs |" in text


def test_what_cannot_be_read_is_told_and_the_rest_summed_up(tmp_path: Path) -> None:
    made(tmp_path)
    whole = (tmp_path / "rank0.pftrace").read_bytes()
    (tmp_path / "words.json").write_text("once upon a time")
    (tmp_path / "torn.pftrace").write_bytes(whole[: len(whole) - 90])
    (tmp_path / ".t.pftrace.0123456789ab").mkdir()
    (tmp_path / ".t.pftrace.0123456789ab" / "recording").write_text("{}")
    arguments = ["words.json", "torn.pftrace", "missing.json", ".t.pftrace.0123456789ab", "trace.pftrace", "--csv"]
    done = run([*GPUTRACE, "summary", *arguments], tmp_path)
    lines = said(done.stderr)
    assert done.returncode == 1
    assert any(line.startswith("torn.pftrace: ") for line in lines)
    assert "words.json: is not a trace: neither Perfetto's packets nor Chrome's JSON begin it" in lines
    assert "missing.json does not exist" in lines
    assert any("make a trace of it first, by gputrace merge" in line for line in lines)
    assert b"forward" in done.stdout
    alone = run([*GPUTRACE, "summary", "words.json"], tmp_path)
    assert (alone.returncode, alone.stdout) == (1, b"")


def test_what_is_asked_for_wrongly(tmp_path: Path) -> None:
    made(tmp_path)
    for arguments, line in (
        (["--from", "soon"], "'soon' is no time: write 1.5s, 200ms, 30us or 10min"),
        (["--json", "--csv"], "--json and --csv are 2 formats: choose one."),
        (["--json", "--csv", "--markdown"], "--json and --csv and --markdown are 3 formats: choose one."),
        (["--from", "2s", "--to", "1s"], "--from is not before --to: nothing lies between them"),
    ):
        done = run([*GPUTRACE, "summary", "trace.pftrace", *arguments], tmp_path)
        assert done.returncode == 2
        assert line in done.stderr.decode()


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--name", "nope"], "(no name fits 'nope'; it is "),
        (["--track", "nope", "--json"], "(no track fits 'nope'; it is "),
        (
            ["--track", "*MainThread", "--track", "nope", "--name", "zzz"],
            "(no track fits 'nope'; no name fits 'zzz'; it is ",
        ),
        (["--from", "9s", "--to", "10s", "--csv"], "(it is "),
    ],
)
def test_a_part_that_holds_nothing_is_told(tmp_path: Path, arguments: list[str], why: str) -> None:
    made(tmp_path)
    done = run([*GPUTRACE, "summary", "rank0.pftrace", "rank1.pftrace", *arguments], tmp_path)
    assert (done.returncode, done.stdout) == (1, b"")
    first, second = said(done.stderr)
    assert first.startswith(f"rank0.pftrace: nothing in it is of the part that was asked for {why}")
    assert "/MainThread', " in first
    assert ("and names like 'forward', " in first) == ("--name" in arguments)
    assert second.startswith("rank1.pftrace: ")


def test_a_part_that_one_trace_alone_holds_is_summed_up(tmp_path: Path) -> None:
    made(tmp_path)
    (tmp_path / "none.json").write_text("[]")
    assert "forward" in summary(tmp_path, "none.json", "trace.pftrace", "--name", "forward")


def test_a_trace_of_counters_alone_is_summed_up_with_a_word(tmp_path: Path) -> None:
    counter = '[{"ph": "C", "ts": 1, "pid": 1, "name": "loss", "args": {"value": 1}}]'
    for text in ("[]", counter):
        (tmp_path / "none.json").write_text(text)
        done = run([*GPUTRACE, "summary", "none.json"], tmp_path)
        assert done.returncode == 0
        assert said(done.stderr) == ["none.json: there are no slices in it"]
        assert b"none.json" in done.stdout


def test_steps_that_are_not_there_are_told(tmp_path: Path) -> None:
    made(tmp_path)
    script = Script(0)
    script.add(script.thread(), (0, SLICE, "forward", None, 0, 10))
    write_trace(tmp_path / "stepless.pftrace", Host("node0"), script, number=8)
    for arguments, told in (
        (["trace.pftrace", "--step", "nope"], "no host span is named 'nope': some are "),
        (
            ["trace.pftrace", "--by", "step", "--step", "nope", "--step", "nor"],
            "no host span is named 'nope' or 'nor': some are ",
        ),
        (["stepless.pftrace", "--by", "step"], "no host span is called step, nor did "),
    ):
        done = run([*GPUTRACE, "summary", *arguments], tmp_path)
        [line] = said(done.stderr)
        assert done.returncode == 1
        assert line.startswith(told)
        assert "'forward'" in line
        assert b"forward" in done.stdout
    by_name = json.loads(summary(tmp_path, "trace.pftrace", "--step", "forward", "--json"))
    assert {(step["name"], step["place"]) for step in by_name["steps"]} == {("forward", "train.py/MainThread")}


def test_the_commands_of_the_readme_and_of_its_help(tmp_path: Path) -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    section = readme.partition("### Sum traces up\n")[2].partition("\n### ")[0]
    commands = section.partition("```sh\n")[2].partition("```")[0].splitlines()
    helped = run([*GPUTRACE, "summary", "--help"], tmp_path).stdout.decode()
    commands += [line.strip() for line in helped.splitlines() if line.startswith("  gputrace summary ")]
    assert len(commands) == 4 + 4
    made(tmp_path)
    for command in commands:
        command = re.sub("--from [0-9]+ms --to [0-9]+ms", "--from 10us --to 50us", command)  # this trace is shorter
        script = f'gputrace() {{ {PYTHON} -m gputrace "$@"; }}\n{command}'
        done = run(["bash", "-c", script], tmp_path)
        assert done.returncode == 0, command
        if command.endswith(" --html summary.html"):
            assert said(done.stderr) == [f"wrote {tmp_path / 'summary.html'}"]
            assert b"forward" in (tmp_path / "summary.html").read_bytes()
            (tmp_path / "summary.html").unlink()
        else:
            assert done.stderr == b"", command
            assert b"forward" in done.stdout or b"traces" in done.stdout, command
