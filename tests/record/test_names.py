"""Files and programs whose names are no UTF-8, or that a terminal cannot show: as any others."""

from __future__ import annotations

import csv
import json
import os
import signal
from pathlib import Path

import pytest

from tests.record.running import GPUTRACE, PYTHON, recording, run
from tests.ways.program import KEEPS_ALL, SUFFIXES, load

#: Bytes that no UTF-8 has, and some that are UTF-8 and no ASCII.
ODD = os.fsdecode(b"\xff\xe9-") + "größe"
PROGRAM = """
import gputrace, os, sys, threading
with gputrace.span("half \\udcff"): pass
thread = threading.Thread(target=lambda: gputrace.instant("there"), name="thread \\udcff")
thread.start()
thread.join()
if sys.argv[2] != "0": os.kill(os.getpid(), int(sys.argv[2]))
"""


@pytest.mark.parametrize("end", [0, signal.SIGKILL])
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_recording(tmp_path: Path, suffix: str, end: int) -> None:
    """Of a script of such a name, with such an argument, in such a folder."""
    folder = tmp_path / ODD
    folder.mkdir()
    (folder / f"{ODD}.py").write_text(PROGRAM)
    done = run(recording(PYTHON, f"{ODD}.py", ODD, str(int(end)), output=f"{ODD}{suffix}"), folder)
    assert done.returncode == -end, done.stderr
    if not end or KEEPS_ALL:
        assert [each.name for each in load(folder / f"{ODD}{suffix}")] == ["half \ufffd", "there"], done.stderr


def test_what_is_made_of_such_traces(tmp_path: Path) -> None:
    """By any command, in a terminal or a pipe that takes no more than ASCII, too."""
    name = f"{ODD}.json"
    (tmp_path / name).write_text(
        json.dumps([{"ph": "X", "name": f"{each}\ud800", "ts": each, "dur": 1, "pid": 1, "tid": 1} for each in (1, 2)])
    )

    def said(*arguments: str) -> str:
        done = run([*GPUTRACE, *arguments], tmp_path, env={**os.environ, "PYTHONIOENCODING": "ascii:strict"})
        assert done.returncode == 0, (arguments, done.stderr.decode())
        return done.stdout.decode()

    assert "1\\ufffd" in said("summary", name)
    for form in ("--csv", "--markdown"):
        assert "1\ufffd" in said("summary", form, name)  # click has it in UTF-8 all the same
    assert "nothing is wrong" in said("check", name)
    assert json.loads(said("check", "--json", name))[0]["violations"] == []
    assert [row["name"] for row in json.loads(said("summary", "--json", name))["spans"]] == ["1\ufffd", "2\ufffd"]
    assert [row["name"] for row in json.loads(said("diff", "--json", name, name))] == ["1\ufffd", "2\ufffd"]
    said("summary", "--html", f"{ODD}.html", name)
    said("merge", f"--clock={name}=monotonic", name, "-o", f"{ODD}.pftrace")
    said("plot", name, "-o", f"{ODD}.svg")
    assert [each.name for each in load(tmp_path / f"{ODD}.pftrace")] == ["1\ufffd", "2\ufffd"]
    said("convert", name, f"{ODD}.csv")
    with open(tmp_path / f"{ODD}.csv", encoding="utf-8") as table:
        assert [row["name"] for row in csv.DictReader(table)] == ["1\ufffd", "2\ufffd"]
