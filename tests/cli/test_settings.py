"""Options from pyproject.toml and from the environment: which goes before which, and what a wrong one is told."""

from __future__ import annotations

import importlib
import json
import os
from pathlib import Path
from typing import Any

import click
import pytest

from gputrace.cli import settings
from gputrace.cli.recordoptions import Wanted
from gputrace.errors import UsageError
from tests.engine import Engine
from tests.record.running import GPUTRACE, ONE_SPAN, PYTHON, run

COMMANDS = ("record", "summary", "doctor")


@pytest.fixture(autouse=True)
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings.project.cache_clear()
    for name in [name for name in os.environ if name.startswith("GPUTRACE_")]:
        if name != "GPUTRACE_PURE":
            monkeypatch.delenv(name)


def write(text: str, folder: Path = Path()) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pyproject.toml").write_text(text)


def table(text: str, command: str = "record") -> dict[str, Any]:
    write(text)
    found: click.Command = importlib.import_module(f"gputrace.cli.{command}").command
    return settings.Project(os.getcwd()).options(command, found, COMMANDS)


def context(*words: str) -> click.Context:
    command: click.Command = importlib.import_module("gputrace.cli.record").command
    group = click.Context(click.Group("gputrace"))
    group.default_map = {"record": settings.Defaults(lambda: settings.project().options("record", command, COMMANDS))}
    return command.make_context("record", [*words, "true"], parent=group)


def where(name: str, *words: str) -> tuple[Any, str]:
    found = context(*words)
    return next((each.value, each.where) for each in Wanted(found).settings(found) if each.name == name)


# Precedence.


def test_the_command_line_goes_before_the_environment_before_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    assert where("max-size") == (None, "default")
    write('[tool.gputrace]\nmax-size = "2MB"\n')
    settings.project.cache_clear()
    assert where("max-size") == ("2MB", os.path.abspath("pyproject.toml"))
    monkeypatch.setenv("GPUTRACE_MAX_SIZE", "3MB")
    assert where("max-size") == ("3MB", "GPUTRACE_MAX_SIZE")
    assert where("max-size", "--max-size", "4MB") == ("4MB", "command line")


def test_a_flag_can_be_taken_back_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    write("[tool.gputrace]\npython = true\nquiet = true\n")
    assert "python.calls" in Wanted(context()).instruments
    assert context().params["quiet"]
    assert "python.calls" not in Wanted(context("--no-python")).instruments
    monkeypatch.setenv("GPUTRACE_PYTHON", "0")
    assert "python.calls" not in Wanted(context()).instruments


def test_a_region_can_be_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    write("[tool.gputrace]\ndelay = 5\n")
    assert Wanted(context()).options["delay_ns"] == 5_000_000_000
    assert "delay_ns" not in Wanted(context("--delay", "off")).options


def test_the_nearest_file_with_a_table_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    write("[tool.gputrace]\npython-depth = 1\n")
    write("[tool.other]\nname = 'gputrace'\n", tmp_path / "a")
    (tmp_path / "a" / "b").mkdir()
    found = settings.Project(str(tmp_path / "a" / "b"))
    assert (found.path, found.table) == (str(tmp_path / "pyproject.toml"), {"python-depth": 1})
    write("[tool.gputrace]\npython-depth = 2\n", tmp_path / "a" / "b")
    assert settings.Project(str(tmp_path / "a" / "b")).table == {"python-depth": 2}


def test_of_instruments_each_place_has_its_say(monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(*words: str) -> set[str]:
        named = {"torch.optim", "torch.data", "nvtx.ranges", "python.gc"}
        return named.intersection(Wanted(context(*words)).instruments)

    write('[tool.gputrace]\ninstrument = ["python.gc"]\nno-instrument = ["torch", "nvtx"]\n')
    assert asked() == {"python.gc"}
    monkeypatch.setenv("GPUTRACE_INSTRUMENT", "torch.optim")
    assert asked() == {"torch.optim", "python.gc"}
    assert asked("--no-instrument", "torch", "--instrument", "nvtx.ranges") == {"nvtx.ranges", "python.gc"}
    rows = {(each.name, each.where) for each in Wanted(context()).settings(context())}
    assert {("instrument", "GPUTRACE_INSTRUMENT"), ("instrument", os.path.abspath("pyproject.toml"))} <= rows


def test_of_two_that_contradict_the_nearer_goes_before(monkeypatch: pytest.MonkeyPatch) -> None:
    write('[tool.gputrace]\ndelay = "5s"\nduration = "1s"\n')
    wanted = Wanted(context("--steps", "3:"))
    assert wanted.options["first_step"] == 3
    assert not {"delay_ns", "duration_ns"} & set(wanted.options)
    assert where("delay", "--steps", "3:")[1].endswith("; left out: --steps was given nearer")
    monkeypatch.setenv("GPUTRACE_STEPS", "4:")
    assert Wanted(context("--delay", "1s")).options["delay_ns"] == 1_000_000_000
    with pytest.raises(UsageError, match="--steps and --delay contradict one another"):
        Wanted(context("--delay", "1s", "--steps", "3:"))


def test_two_of_one_place_that_contradict_are_told_with_the_place() -> None:
    write('[tool.gputrace]\ndelay = "5s"\nsteps = "3:"\n')
    with pytest.raises(UsageError) as refused:
        Wanted(context())
    path = os.path.abspath("pyproject.toml")
    assert f"(--delay is from {path}, --steps is from {path})" in str(refused.value)


def test_filters_of_calls_wait_for_calls() -> None:
    write('[tool.gputrace]\npython-include = ["a", "b"]\n')
    assert "python_include" not in Wanted(context()).options
    assert Wanted(context("--python")).options["python_include"] == "a,b"
    with pytest.raises(UsageError, match="add --python"):
        Wanted(context("--python-include", "c"))


# What is wrong.


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("delya = 1", "[tool.gputrace] has no option 'delya'; did you mean 'delay'?"),
        ("python_detph = 1", "[tool.gputrace] has no option 'python_detph'; did you mean 'python-depth'?"),
        (
            "max-size = '1MB'\nmax_size = '1MB'",
            "[tool.gputrace] has 'max_size' twice, with - and with _: leave one out",
        ),
        ("python = 'yes'", "[tool.gputrace] python is on or off: write true or false"),
        ("python-depth = 0", "[tool.gputrace] python-depth: 0 is not in the range x>=1."),
        ("delay = true", "[tool.gputrace] delay takes a string or a number, not True"),
        ("instrument = {a = 1}", "[tool.gputrace] instrument takes a string, or a list of them, not {'a': 1}"),
    ],
)
def test_what_the_file_has_wrong_is_told_with_its_place(text: str, told: str) -> None:
    with pytest.raises(UsageError) as refused:
        table(f"[tool.gputrace]\n{text}\n")
    assert str(refused.value) == f"{os.path.abspath('pyproject.toml')}: {told}"


def test_a_subcommand_has_a_table_of_its_own() -> None:
    text = "[tool.gputrace]\nquiet = true\n[tool.gputrace.summary]\ntop = 3\nwait = 'x'\n"
    assert table(text) == {"quiet": True}
    assert table(text, "summary") == {"top": 3, "waits": ["x"]}
    with pytest.raises(UsageError, match=r"\[tool.gputrace.summary\] has no option 'topp'; did you mean 'top'"):
        table("[tool.gputrace.summary]\ntopp = 3\n", "summary")


def test_a_file_that_is_no_toml_is_named_with_the_line(tmp_path: Path) -> None:
    write("[tool.gputrace]\ndelay = 1\nsteps: 3\n")
    result = run([*GPUTRACE, "record", PYTHON, "-c", "print('ran')"], tmp_path)
    assert (result.returncode, result.stdout) == (2, b"")
    assert f"{tmp_path / 'pyproject.toml'} cannot be read: ".encode() in result.stderr
    assert b"line 3" in result.stderr
    doctor = json.loads(run([*GPUTRACE, "doctor", "--json", "--seconds", "0.1"], tmp_path).stdout)
    assert "line 3" in doctor["options"]["problem"]


def test_a_file_that_is_none_of_ours_may_be_broken(tmp_path: Path) -> None:
    write("steps: 3\n")
    assert settings.Project(str(tmp_path)).path == ""


def test_a_strangers_file_in_a_folder_for_all_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write("[tool.gputrace]\nquiet = true\n")
    tmp_path.chmod(0o1777)
    assert settings.Project(str(tmp_path)).table
    monkeypatch.setattr(os, "geteuid", lambda: 4242)
    monkeypatch.setattr(settings, "TRUSTED", ())
    assert not settings.Project(str(tmp_path)).table
    tmp_path.chmod(0o755)
    assert settings.Project(str(tmp_path)).table


@pytest.mark.parametrize(
    ("variable", "told"),
    [
        ("GPUTRACE_STPES", "GPUTRACE_STPES is no option; did you mean GPUTRACE_STEPS?"),
        ("GPUTRACE_INSTRUMENTS", "GPUTRACE_INSTRUMENTS is no option; did you mean GPUTRACE_INSTRUMENT?"),
    ],
)
def test_a_variable_that_is_nearly_an_option_is_told(monkeypatch: pytest.MonkeyPatch, variable: str, told: str) -> None:
    monkeypatch.setenv(variable, "1")
    with pytest.raises(UsageError) as refused:
        Wanted(context())
    assert str(refused.value) == told


def test_other_variables_are_somebodys_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUTRACE_FOLDER_OF_MINE", "1")
    assert Wanted(context()).options


@pytest.mark.parametrize(
    ("variable", "value", "told"),
    [
        ("GPUTRACE_DELAY", "1x", "write it like 500ms, 10s or 2m (--delay is from GPUTRACE_DELAY)"),
        ("GPUTRACE_PYTHON_DEPTH", "x", "It is from GPUTRACE_PYTHON_DEPTH."),
        ("GPUTRACE_MAX_SIZE", "1", "must be from 1MB to 1024GB (--max-size is from GPUTRACE_MAX_SIZE)"),
        ("GPUTRACE_OUTPUT", "no/where.json", "make it first (--output is from GPUTRACE_OUTPUT)"),
    ],
)
def test_a_wrong_value_is_told_with_its_place(tmp_path: Path, variable: str, value: str, told: str) -> None:
    result = run([*GPUTRACE, "record", PYTHON, "-c", ""], tmp_path, env={**os.environ, variable: value})
    assert result.returncode
    assert told in result.stderr.decode()


# For real.


def test_a_recording_goes_by_them_and_its_program_reads_none(tmp_path: Path) -> None:
    write('[tool.gputrace]\noutput = "from_file.json"\ndevice = "host"\nno-instrument = ["nvtx"]\n')
    program = f"import sys\n{ONE_SPAN}\nprint('tomllib' in sys.modules, 'click' in sys.modules)"
    result = run(
        [*GPUTRACE, "record", "--", PYTHON, "-c", program], tmp_path, env={**os.environ, "GPUTRACE_QUIET": "1"}
    )
    assert (result.stdout, result.stderr) == (b"done\nFalse False\n", b"")
    engine = Engine(tmp_path / "from_file.json")
    assert engine.query("select name from slice") == [{"name": "work"}]


def test_the_doctor_shows_a_table(tmp_path: Path) -> None:
    write('[tool.gputrace]\nmax-size = "64MB"\n')
    variables = {**os.environ, "GPUTRACE_QUIET": "1"}
    shown = run([*GPUTRACE, "doctor", "--seconds", "0.1"], tmp_path, env=variables).stdout.decode()
    rows = {tuple(line.split()) for line in shown.splitlines()}
    assert ("--max-size", str(tmp_path / "pyproject.toml"), "64MB") in rows
    assert ("--quiet", "GPUTRACE_QUIET", "on") in rows
    assert ("--counters", "default", "100ms") in rows
