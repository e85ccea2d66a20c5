"""`gputrace query`: rows in each format, from each way to give SQL; refusals with the place, and no traceback."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import pty
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from gputrace.exporters.chrome import Chrome
from gputrace.exporters.perfetto import Perfetto

from gputrace.cli.query import unique
from gputrace.model import BEGIN, END
from tests.exporters.recordings import Script, write
from tests.record.running import GPUTRACE, PYTHON, run
from tests.sql.shell import make_shell
from tests.test_house import blocks

ROOT = Path(__file__).parents[2]
NAME = "load \x1b[31m [bold]é"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Holds t.pftrace, and t.json of the same."""
    for suffix, exporter in ((".pftrace", Perfetto), (".json", Chrome)):
        script = Script()
        script.add(script.thread(), (1_000, BEGIN, NAME), (3_500, END), (4_000, BEGIN, "step"), (9_000, END))
        (tmp_path / f"t{suffix}").write_bytes(write(exporter, script))
    return tmp_path


def query(folder: Path, *arguments: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
    return run([*GPUTRACE, "query", "--trace-processor", "wasm", *arguments], folder, **options)


SLICES = "select name, dur, null as none, x'00ff' as b from slice order by ts"


def test_json(folder: Path) -> None:
    done = query(folder, "t.pftrace", SLICES, "--json")
    assert (done.returncode, done.stderr) == (0, b"")
    assert json.loads(done.stdout) == [
        {"name": NAME, "dur": 2500, "none": None, "b": "00ff"},
        {"name": "step", "dur": 5000, "none": None, "b": "00ff"},
    ]
    assert json.loads(query(folder, "t.pftrace", "select 1 as a where 0", "--json").stdout) == []


def test_csv(folder: Path) -> None:
    done = query(folder, "t.pftrace", SLICES.replace("null", "'a,\"b'"), "--csv")
    rows = list(csv.reader(io.StringIO(done.stdout.decode())))
    assert rows == [["name", "dur", "none", "b"], [NAME, "2500", 'a,"b', "00ff"], ["step", "5000", 'a,"b', "00ff"]]


def test_a_table_where_there_is_no_terminal_breaks_no_line_and_obeys_no_name(folder: Path) -> None:
    done = query(folder, "t.pftrace", f"{SLICES.replace('x', 'printf(char(37,48,53,48,48,100), 7) as wide, x', 1)}")
    shown = done.stdout.decode()
    [line] = [line for line in shown.splitlines() if "load" in line]
    assert line.split() == ["load", r"\x1b[31m", "[bold]é", "2500", "NULL", "7".rjust(500, "0"), "00ff"]
    assert "\x1b" not in shown


def test_a_table_on_a_terminal_fits_it(folder: Path) -> None:
    ours, theirs = pty.openpty()
    environment = {**os.environ, "COLUMNS": "60", "TERM": "xterm"}
    command = [*GPUTRACE, "query", "--trace-processor", "wasm", "t.pftrace", f"select '{'y' * 200}' as y"]
    process = subprocess.Popen(command, cwd=folder, stdout=theirs, stdin=theirs, env=environment)
    os.close(theirs)
    shown = b""
    try:
        while piece := os.read(ours, 4096):
            shown += piece
    except OSError:  # how a terminal ends
        pass
    assert process.wait() == 0
    plain = re.sub(r"\x1b\[[\d;]*m", "", shown.decode())
    assert plain.count("y") == 201
    assert max(map(len, plain.splitlines())) <= 60


@pytest.mark.parametrize("name", ["t.pftrace", "t.json", "t.pftrace.gz", "t.json.gz"])
def test_every_format(folder: Path, name: str) -> None:
    if name.endswith(".gz"):
        (folder / name).write_bytes(gzip.compress((folder / name.removesuffix(".gz")).read_bytes()))
    done = query(folder, name, "select dur from slice order by ts", "--csv")
    assert done.stdout == b"dur\n2500\n5000\n"


def test_sql_from_a_file_or_stdin(folder: Path) -> None:
    sql = "-- of more than one statement\ncreate perfetto table x as select 7 as a; select a from x"
    (folder / "q.sql").write_text(sql)
    for arguments in (["-f", "q.sql"], ["-"], ["-f", "-"]):
        assert query(folder, "t.pftrace", *arguments, "--csv", input=sql.encode()).stdout == b"a\n7\n"
    nothing = query(folder, "t.pftrace", "create perfetto table x as select 7 as a")
    assert (nothing.returncode, nothing.stdout, nothing.stderr) == (0, b"", b"")


@pytest.mark.parametrize(
    ("sql", "told"),
    [
        (
            "select\n  nme from slice",
            "line 2, column 3: no such column: nme\nnme from slice\n^\n",
        ),
        (
            "select 1; select * frm slice",
            "line 1, column 20: syntax error\nselect * frm slice\n         ^\n",
        ),
        ("include perfetto module nope.x; select 1", "INCLUDE: Package 'nope.x' not found\n"),
        ("", "No valid SQL to run\n"),
    ],
)
def test_refused_sql_is_shown_with_its_place(folder: Path, sql: str, told: str) -> None:
    done = query(folder, "t.pftrace", sql, "--json")
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr.decode() == f"gputrace: the trace processor refuses the SQL: {told}"


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["t.pftrace"], 2, "Give the SQL once"),
        (["t.pftrace", "select 1", "-f", "q.sql"], 2, "Give the SQL once"),
        (["t.pftrace", "-f", "gone.sql"], 2, "gone.sql cannot be read: No such file"),
        (["t.pftrace", "-f", "t.pftrace"], 2, "t.pftrace is no SQL: not UTF-8 at byte"),
        (["t.pftrace", "select 1", "--json", "--csv"], 2, "choose one"),
        (["gone.pftrace", "select 1"], 1, "gone.pftrace: cannot be read: No such file"),
        (["notes.txt", "select 1"], 1, "notes.txt: is not a trace"),
    ],
)
def test_what_cannot_be_asked_is_one_line(folder: Path, arguments: list[str], code: int, told: str) -> None:
    (folder / "notes.txt").write_text("hello")
    done = query(folder, *arguments)
    assert (done.returncode, done.stdout, done.stderr.count(b"\n")) == (code, b"", 1)
    assert told in done.stderr.decode()


def test_what_the_trace_processor_dropped_is_told(folder: Path) -> None:
    (folder / "bad.json").write_text('[{"ph":"i","name":"x","pid":1,"tid":1,"ts":-5}]')
    done = query(folder, "bad.json", "select count(*) as n from slice", "--csv")
    assert done.stdout == b"n\n0\n"
    assert b"counts trace_sorter_negative_timestamp_dropped: 1; what it answers may lack" in done.stderr


def test_a_reader_that_has_seen_enough(folder: Path) -> None:
    sql = "with recursive n(i) as (select 0 union all select i + 1 from n where i < 99999) select i from n"
    command = [*GPUTRACE, "query", "--trace-processor", "wasm", "t.pftrace", sql, "--csv"]
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline() == b"i\n"
    process.stdout.close()
    assert (process.stderr.read(), process.wait()) == (b"", 0)


def test_more_rows_than_eyes_want(folder: Path) -> None:
    sql = "with recursive n(i) as (select 0 union all select i + 1 from n where i < 1499) select i from n"
    done = query(folder, "t.pftrace", sql)
    assert done.stderr == b"gputrace: 500 more rows are not shown: --csv and --json print all\n"
    assert b" 999 " in done.stdout
    assert b"1000" not in done.stdout


def test_columns_of_one_name() -> None:
    assert unique(["id", "id", "id_2", "x", "id"]) == ["id", "id_3", "id_2", "x", "id_4"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the example's trace, and question.sql."""
    folder = tmp_path_factory.mktemp("trained")
    program = [PYTHON, str(ROOT / "examples" / "train.py")]
    done = run([*GPUTRACE, "record", "-o", "trace.pftrace", "--device", "simulated", "--", *program], folder)
    assert done.returncode == 0, done.stderr
    (folder / "question.sql").write_text("select name from slice where name = 'epoch'")
    make_shell(folder / "bin")
    make = f'#!/bin/sh\nexec {PYTHON} -m gputrace "$@"\n'
    (folder / "bin" / "gputrace").write_text(make)
    (folder / "bin" / "gputrace").chmod(0o755)
    return folder


def shell(line: str, folder: Path) -> str:
    """What a person's shell would print, with a trace processor on PATH."""
    path = f"{folder / 'bin'}:{os.environ['PATH']}"
    done = run(["bash", "-euo", "pipefail", "-c", line], folder, env={**os.environ, "PATH": path})
    assert (done.returncode, done.stderr) == (0, b""), done.stderr.decode()
    return done.stdout.decode()


def test_the_queries_of_the_readme(trained: Path) -> None:
    delays, busy, idle = [block for block in blocks("sh") if block.startswith("gputrace query")]
    shown = shell(delays, trained)
    rows = [line.split() for line in shown.splitlines()]
    [[_, _, mean_us, max_us]] = [row for row in rows if row[:2] == ["optimizer", "400"]]
    assert 0 < float(mean_us) <= float(max_us)
    streams = [line.split() for line in shell(busy, trained).splitlines() if "Simulated GPU" in line]
    assert [row[5] for row in streams] == ["compute", "copy"]
    assert all(0 < float(row[7]) <= 100 for row in streams)
    gaps = [line.split(maxsplit=1) for line in shell(idle, trained).splitlines() if "epoch" in line]
    lengths = [float(us) for us, _ in gaps]
    assert lengths == sorted(lengths, reverse=True)
    assert 0 < len(gaps) <= 5


def test_the_examples_of_its_help(trained: Path) -> None:
    shown = run([*GPUTRACE, "query", "--help"], trained).stdout.decode()
    first, second = re.findall(r"^ +(gputrace query .*)$", shown, re.MULTILINE)
    assert "epoch" in shell(first, trained)
    assert shell(f"{second} && cat answer.csv", trained) == "name\n" + "epoch\n" * 10
