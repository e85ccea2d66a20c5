"""Traces that a command line names are read one at a time."""

from __future__ import annotations

import importlib
import weakref
from pathlib import Path
from typing import Any

import pytest

from gputrace.cli.traces import each_of
from gputrace.fleet.each import Fleet
from gputrace.table import read as reading
from gputrace.table.columns import Problem
from tests.cli.test_summary import made


@pytest.mark.parametrize("command", ["summary", "diff"])
def test_no_two_are_in_memory_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    made(tmp_path)
    monkeypatch.chdir(tmp_path)
    plain, known = reading.read, list[Any]()

    def read(path: str) -> Any:
        assert [each() for each in known if each() is not None] == []
        trace = plain(path)
        known.append(weakref.ref(trace))
        return trace

    monkeypatch.setattr(reading, "read", read)
    sides = ["rank0.pftrace", "trace.pftrace", "--", "rank1.pftrace", "trace.pftrace"]
    arguments = sides if command == "diff" else ["rank0.pftrace", "rank1.pftrace", "trace.pftrace"]
    importlib.import_module(f"gputrace.cli.{command}").command.main(arguments, standalone_mode=False)
    assert len(known) == len(arguments) - (command == "diff")
    assert capsys.readouterr().out


def test_of_many_problems_some_are_told_and_the_rest_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made(tmp_path)
    monkeypatch.chdir(tmp_path)
    plain = reading.read

    def read(path: str) -> Any:
        trace = plain(path)
        trace.problems = [Problem(path, "torn", f"piece {k} is torn", 100 * k) for k in range(9)]
        return trace

    monkeypatch.setattr(reading, "read", read)
    failures: list[str] = []
    found = list(each_of(("trace.pftrace", "none"), failures, Fleet(), lambda trace: len(trace.slices)))
    assert found == [("trace.pftrace", 40)]
    assert failures == ["none does not exist"]
    assert capsys.readouterr().err.splitlines() == [
        "gputrace: none does not exist",
        *(f"gputrace: trace.pftrace: piece {k} is torn (at byte {100 * k})" for k in range(5)),
        "gputrace: trace.pftrace: and 4 more that cannot be read as they stand",
    ]


def test_a_trace_given_several_times_is_read_once_and_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made(tmp_path)
    monkeypatch.chdir(tmp_path)
    failures: list[str] = []
    arguments = ("trace.pftrace", "./trace.pftrace", "trace.pftrace")
    found = list(each_of(arguments, failures, Fleet(), lambda trace: len(trace.slices)))
    assert (found, failures) == ([("trace.pftrace", 40)], [])
    told = "gputrace: trace.pftrace: is given 3 times, also as ./trace.pftrace, and read once\n"
    assert capsys.readouterr().err == told
