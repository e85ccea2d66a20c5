"""A folder where one trace is wanted: every command says the same of it, and what to give instead."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import gputrace
from gputrace.cli.main import main
from tests.cli.test_summary import made


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my runs").mkdir()
    made(tmp_path / "my runs")
    return tmp_path


@pytest.mark.parametrize(
    "arguments",
    [
        ["plot", "my runs", "-o", "o.svg"],
        ["convert", "my runs", "o.json"],
        ["convert", "my runs", "o.csv", "--name", "forward"],
        ["query", "my runs", "select 1"],
        ["open", "my runs", "--no-browser"],
    ],
    ids=" ".join,
)
def test_it_says_what_to_give_instead(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["gputrace", *arguments])
    assert main() == 1
    seen = capsys.readouterr()
    assert (seen.out, seen.err) == (
        "",
        "gputrace: my runs: is a folder: give a trace in it, or make one of it first, by gputrace merge -o all.pftrace "
        "'my runs'\n",
    )
    assert [path.name for path in folder.iterdir()] == ["my runs"]


@pytest.mark.parametrize("argument", ["my runs", "my*/*.pftrace", "**/*.pftrace"])
def test_check_takes_all_that_is_in_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], argument: str
) -> None:
    monkeypatch.setattr(sys, "argv", ["gputrace", "check", argument])
    main()
    told = capsys.readouterr().out.splitlines()
    names = sorted(f"my runs/{each.name}" for each in (folder / "my runs").glob("*.pftrace"))
    assert len(names) > 1
    assert [line.partition(":")[0] for line in told if line.startswith("my runs") and ".pftrace:" in line] == names


@pytest.mark.parametrize("argument", ["nothing", "no*.pftrace"])
def test_check_of_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], argument: str
) -> None:
    (folder / "nothing").mkdir()
    monkeypatch.setattr(sys, "argv", ["gputrace", "check", argument])
    assert main() == 1
    assert argument in capsys.readouterr().err


def test_what_it_says_to_do_makes_a_trace(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["gputrace", "merge", "-o", "all.pftrace", "my runs"])
    assert main() == 0
    assert len(gputrace.read(folder / "all.pftrace").slices) > 0
