"""Every subcommand over every kind of bad file: what is readable is read, what is not is told by the file's name, and
nobody sees a traceback.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import gputrace
from gputrace.cli.main import main
from gputrace.errors import InputError
from gputrace.reading.stream import Limits
from tests.cli.bad_traces import BAD, HEAD, Bad, event

OTHER = [event("X", ts=10 * k, dur=4, name=f"other {k}") for k in range(2)]
OUTPUTS = {"to json": "o.json", "to packets": "o.pftrace", "to a table": "o.csv", "cut": "o.json", "merge": "m.pftrace"}
# By name; those that read a file themselves tell what is wrong with it. The engine and the UI have their own say.
COMMANDS: dict[str, Callable[[str], list[str]]] = {
    "summary": lambda name: ["summary", name],
    "check": lambda name: ["check", name],
    "to json": lambda name: ["convert", name, "o.json"],
    "to packets": lambda name: ["convert", name, "o.pftrace"],
    "to a table": lambda name: ["convert", name, "o.csv"],
    "cut": lambda name: ["convert", name, "o.json", "--to", "100s"],
    "diff": lambda name: ["diff", "good.json", name],
    "merge": lambda name: ["merge", name, "good.json", "-o", "m.pftrace", *clocks(name)],
    "plot": lambda name: ["plot", name, "-o", "p.svg"],
    "query": lambda name: ["query", name, "select count() n from slice", "--csv"],
    "open": lambda name: ["open", name, "--offline", "--port", "0", "--no-browser", "--timeout", "0.01"],
}
OTHERS_TO_SAY = ("query", "open")
MOST_ROWS = 3_000  # a picture has fewer, and a comparison something to compare


def clocks(name: str) -> list[str]:
    return [part for each in (name, "good.json") for part in ("--clock", f"{each}=boottime")]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where a value of over 2 MB is too long, and 1 MB a lot to unfold, to spare the tests larger ones."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(Limits.__init__.__kwdefaults__, "most_record_bytes", 2 << 20)
    monkeypatch.setitem(Limits.__init__.__kwdefaults__, "free_bytes", 1 << 20)
    (tmp_path / "good.json").write_text(json.dumps(OTHER))
    before = signal.getsignal(signal.SIGINT)
    yield tmp_path
    signal.signal(signal.SIGINT, before)  # `query` lets it end the process


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: bad.name)
def test_read(folder: Path, bad: Bad) -> None:
    bad.make(folder / bad.name)
    if bad.good is None:
        with pytest.raises(InputError, match=bad.told) as failure:
            gputrace.read(bad.name)
        assert failure.value.path == bad.name
        return
    trace = gputrace.read(bad.name)
    assert len(trace.slices) == bad.good
    assert bad.told in "\n".join(map(str, trace.problems))
    assert bool(bad.told) == bool(trace.problems)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("bad", BAD, ids=lambda bad: bad.name)
def test_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], bad: Bad, command: str
) -> None:
    bad.make(folder / bad.name)
    monkeypatch.setattr(sys, "argv", ["gputrace", *COMMANDS[command](bad.name)])
    code = main()  # what it raises is a traceback
    seen = capsys.readouterr()
    assert "Traceback" not in seen.err
    if command in OTHERS_TO_SAY:
        assert code == 0 or (code == 1 and bad.name in seen.err)
        assert bad.told != HEAD or (code == 1 and HEAD in seen.err)
    elif bad.good is None:
        assert f"{bad.name}: " in seen.err
        assert bad.told in seen.err
        assert bool(code) == (command != "merge")
        assert command == "merge" or not list(folder.glob("[op].*"))
    else:
        if command in ("to json", "to packets", "merge"):  # those say it in their own words
            assert f"{bad.name}: " in seen.err or not bad.told
        else:
            assert bad.told in seen.err + seen.out
        refused = command in ("diff", "plot") and not 0 < bad.good < MOST_ROWS
        nothing = command == "cut" and not bad.good
        assert code == 0 or refused or nothing or command == "check"
        assert code == 1 or command != "check" or not bad.told
        assert not nothing or not Path("o.json").exists()
        if not nothing:
            written(command, bad.good)


def written(command: str, good: int) -> None:
    if command not in OUTPUTS:
        return
    expected = good + len(OTHER) * (command == "merge")
    if command == "to a table":
        assert Path(OUTPUTS[command]).read_text().count("\n") == 1 + expected
    else:
        assert len(gputrace.read(OUTPUTS[command]).slices) == expected


def test_they_are_all_asked() -> None:
    from gputrace.cli.main import _COMMANDS

    asked = {make("x")[0] for make in COMMANDS.values()}
    assert set(_COMMANDS) - asked == {"record", "doctor"}


def test_a_line_of_2_gb(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with open("long.json", "wb") as file:
        file.write(b'[{"ph":"X","name":"')
        file.truncate(2 << 30)
    monkeypatch.setattr(sys, "argv", ["gputrace", "summary", "long.json"])
    assert main() == 1
    assert "long.json: one value takes over 2,097,152 bytes (at byte 1)" in capsys.readouterr().err
