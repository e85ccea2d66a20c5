"""What `gputrace convert` takes, and what it says; and the README's examples of it."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

import gputrace
from tests.cli.test_record import said
from tests.merging.making import Host, program, write_trace
from tests.record.running import GPUTRACE, PYTHON, left_behind, recording, run

ROOT = Path(__file__).parent.parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def convert(cwd: Path, *arguments: str) -> tuple[int, list[str]]:
    """The exit code and what was said."""
    done = run([*GPUTRACE, "convert", *arguments], cwd)
    assert done.stdout == b""
    assert left_behind(cwd) == []
    return done.returncode, said(done.stderr)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with trace.pftrace of the training loop, and a JSON trace as another tool writes it."""
    folder = tmp_path_factory.mktemp("recorded")
    done = run(recording(PYTHON, ROOT / "examples" / "train.py", device="simulated"), folder)
    assert done.returncode == 0, done.stderr
    kineto = (ROOT / "tests" / "merging" / "kineto.json").read_bytes()
    for name in ("kineto.json", "profile.json.gz"):
        (folder / name).write_bytes(kineto)
    return folder


def examples(text: str) -> list[list[str]]:
    return [shlex.split(line)[1:] for line in re.findall(r"^ *(gputrace convert .*)$", text, re.MULTILINE)]


def test_the_examples_of_its_help_and_of_the_readme_run(recorded: Path) -> None:
    help_text = run([*GPUTRACE, "convert", "--help"], recorded).stdout.decode()
    assert len(examples(help_text)) == len(examples(README)) == 3
    for arguments in examples(help_text.replace("--from 1.5s", "--from 1ms")) + examples(README):
        done = run([*GPUTRACE, *arguments], recorded)
        assert done.returncode == 0, done.stderr
        assert said(done.stderr)[-1].startswith(f"wrote {arguments[2]}: ")
        assert len(said(done.stderr)) == 1
        if not arguments[2].endswith(".csv"):
            assert len(gputrace.read(recorded / arguments[2]).slices) > 0


def test_the_readmes_way_to_read_it(
    recorded: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(recorded)
    [snippet] = [s for s in re.findall(r"```py\n(.*?)```", README, re.DOTALL) if "gputrace.read" in s]
    exec(compile(snippet, "README.md", "exec"), {"gputrace": gputrace})
    shown = capsys.readouterr().out
    assert "GPU windows" in shown
    assert "forward" in shown


def test_a_part_by_time_track_and_name(tmp_path: Path) -> None:
    write_trace(tmp_path / "t.pftrace", Host("h"), program(steps=20))
    whole = gputrace.read(tmp_path / "t.pftrace")
    for arguments, wanted in [
        (
            ["--from", "0.5ms", "--to", "700us"],
            whole.select(start_ns=whole.start_ns + 500_000, end_ns=whole.start_ns + 700_000),
        ),
        (["--from", "0.0005"], whole.select(start_ns=whole.start_ns + 500_000)),
        (["--track", "*stream*", "--track", "loss"], whole.select(tracks=["*stream*", "loss"])),
        (["--name", "st?p"], whole.select(names="step")),
    ]:
        code, lines = convert(tmp_path, "t.pftrace", "part.json", *arguments)
        assert (code, len(lines)) == (0, 1), lines
        part = gputrace.read(tmp_path / "part.json")
        assert part.slices.ts_ns.tolist() == wanted.slices.ts_ns.tolist()
        assert len(part.counters) == len(wanted.counters)
        assert 0 < len(wanted.slices) < len(whole.slices)


def test_wrong_calls_and_wrong_files_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "words.json").write_text("once upon a time")
    (tmp_path / "folder.pftrace").mkdir()
    write_trace(tmp_path / "t.pftrace", Host("h"), program())
    for arguments, code, what in [
        (["t.pftrace"], 2, "Missing argument 'OUTPUT'"),
        (["t.pftrace", "o.json", "--from", "soon"], 2, "'soon' is no time: write 1.5s, 200ms, 30us or 10min"),
        (["t.pftrace", "o.xls"], 2, "names no trace format"),
        (["t.pftrace", "t.pftrace"], 2, "it is the trace that is read"),
        (["words.json", "o.pftrace"], 1, "words.json: is not a trace"),
        (["nothing.json", "o.pftrace"], 1, "nothing.json: cannot be read: No such file"),
        (
            ["t.pftrace", "o.json", "--from", "3s", "--to", "2s"],
            2,
            "--from is not before --to: nothing lies between them",
        ),
        (
            ["t.pftrace", "o.json", "--from", "2s", "--to", "2s"],
            2,
            "--from is not before --to: nothing lies between them",
        ),
        (["t.pftrace", "o.json", "--track", "*GPU 7*"], 1, "no track fits '*GPU 7*'; it is "),
        (["t.pftrace", "nowhere/o.json"], 1, "does not exist; make it first"),
    ]:
        exit_code, lines = convert(tmp_path, *arguments)
        assert (exit_code, len(lines)) == (code, 1), lines
        assert what in lines[0]
        assert not (tmp_path / "o.json").exists()


def test_strict_is_an_exit_code(tmp_path: Path) -> None:
    write_trace(tmp_path / "t.pftrace", Host("h"), program())
    (tmp_path / "cut.pftrace").write_bytes((tmp_path / "t.pftrace").read_bytes()[:-3])
    assert convert(tmp_path, "t.pftrace", "o.json", "--strict")[0] == 0
    code, lines = convert(tmp_path, "cut.pftrace", "o.json", "--strict")
    assert code == 1
    assert "cut.pftrace: from byte" in lines[0]
    assert convert(tmp_path, "cut.pftrace", "o.json")[0] == 0


def test_what_could_not_be_read_is_told_where_nothing_is_of_a_part(tmp_path: Path) -> None:
    """It may be why."""
    write_trace(tmp_path / "t.pftrace", Host("h"), program())
    (tmp_path / "cut.pftrace").write_bytes((tmp_path / "t.pftrace").read_bytes()[:-3])
    code, lines = convert(tmp_path, "cut.pftrace", "o.json", "--name", "absent")
    assert (code, len(lines)) == (1, 2)
    assert "cut.pftrace: from byte" in lines[0]
    assert "no name fits 'absent'" in lines[1]
