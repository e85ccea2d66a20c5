"""The command line as a whole."""

from __future__ import annotations

import importlib
from importlib.metadata import version
from pathlib import Path

import gputrace.cli
from tests.record.running import GPUTRACE, PYTHON, run


def test_version(tmp_path: Path) -> None:
    assert run([*GPUTRACE, "--version"], tmp_path).stdout == f"gputrace {version('gputrace')}\n".encode()


def test_help_names_every_command(tmp_path: Path) -> None:
    shown = run([*GPUTRACE, "--help"], tmp_path).stdout
    modules = {path.stem for path in Path(gputrace.cli.__file__).parent.glob("*.py")}
    commands = [name for name in modules if hasattr(importlib.import_module(f"gputrace.cli.{name}"), "command")]
    assert len(commands) > 8
    for command in commands:
        assert f"\n  {command} ".encode() in shown
        assert b"Usage" in run([*GPUTRACE, command, "--help"], tmp_path).stdout


def test_wrong_calls_are_one_line(tmp_path: Path) -> None:
    for arguments in ([], ["recrod"], ["record"], ["merge"], ["--nope"]):
        result = run([*GPUTRACE, *arguments], tmp_path)
        assert result.returncode == 2
        assert result.stdout == b""
        assert result.stderr.startswith(b"gputrace: ")
        assert result.stderr.count(b"\n") == 1


def test_a_wrong_option_points_to_its_own_commands_help(tmp_path: Path) -> None:
    assert run([*GPUTRACE, "record", "--nope"], tmp_path).stderr.endswith(b"See gputrace record --help.\n")
    assert run([*GPUTRACE, "merge"], tmp_path).stderr.endswith(b"See gputrace merge --help.\n")
    assert run([*GPUTRACE, "--nope"], tmp_path).stderr.endswith(b"See gputrace --help.\n")


def test_a_command_that_there_is_not_is_said_to_be_which(tmp_path: Path) -> None:
    assert b" Did you mean record? See gputrace --help." in run([*GPUTRACE, "recrod", "x"], tmp_path).stderr
    assert b"Did you mean" not in run([*GPUTRACE, "zzz"], tmp_path).stderr


def test_as_a_module(tmp_path: Path) -> None:
    shown = run([PYTHON, "-m", "gputrace", "--version"], tmp_path).stdout
    assert shown == f"gputrace {version('gputrace')}\n".encode()


def test_merge_of_nothing(tmp_path: Path) -> None:
    (tmp_path / "emptyd").mkdir()
    result = run([*GPUTRACE, "merge", "-o", "x.pftrace", "emptyd"], tmp_path)
    assert result.returncode == 1
    assert result.stderr.splitlines() == [
        b"gputrace: emptyd is not a recording's folder (no file 'recording' in it), and holds no trace",
        b"gputrace: nothing was merged: none of what was given is a trace that can be placed in time",
    ]
    assert not (tmp_path / "x.pftrace").exists()
