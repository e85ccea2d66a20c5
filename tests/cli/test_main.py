"""The command line as a whole."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

from tests.record.running import GPUTRACE, run


def test_version(tmp_path: Path) -> None:
    assert run([*GPUTRACE, "--version"], tmp_path).stdout == f"gputrace {version('gputrace')}\n".encode()


def test_help_names_every_command(tmp_path: Path) -> None:
    shown = run([*GPUTRACE, "--help"], tmp_path).stdout
    for command in (b"record", b"merge", b"doctor"):
        assert command in shown
        assert b"Usage" in run([*GPUTRACE, command.decode(), "--help"], tmp_path).stdout


def test_wrong_calls_are_one_line(tmp_path: Path) -> None:
    for arguments in ([], ["recrod"], ["record"], ["merge"], ["--nope"]):
        result = run([*GPUTRACE, *arguments], tmp_path)
        assert result.returncode == 2
        assert result.stdout == b""
        assert result.stderr.startswith(b"gputrace: ")
        assert result.stderr.count(b"\n") == 1


def test_merge_of_nothing(tmp_path: Path) -> None:
    result = run([*GPUTRACE, "merge", ".", "-o", "x.pftrace"], tmp_path)
    assert result.returncode == 1
    assert b"cannot be read as a recording's folder" in result.stderr
