"""Many traces at a time: what summary and diff say is what they say of one after another, and Ctrl-C ends all of it."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from distributed import LocalCluster

from gputrace.cli.main import main
from tests.analysis.test_summary import rank
from tests.cli.test_record import said
from tests.merging.making import Host, write_trace
from tests.record.running import GPUTRACE, on_a_terminal, run, start

PARALLEL = ("--memory-per-worker", "512MB")


@pytest.fixture
def many(tmp_path: Path) -> Path:
    """A folder with ten traces of two ranks, one that is none, and one that is torn."""
    for k in range(10):
        suffix = ".pftrace" if k % 3 else ".json.gz"
        write_trace(tmp_path / f"t{k}{suffix}", Host("node0"), rank(k % 2, 1 + k / 10), number=k)
    (tmp_path / "t4b.json").write_text("once upon a time")
    whole = (tmp_path / "t5.pftrace").read_bytes()
    (tmp_path / "t5b.pftrace").write_bytes(whole[:-90])
    return tmp_path


@pytest.fixture(scope="module")
def cluster() -> Iterator[tuple[str, str]]:
    """The options that have a cluster read the traces. It is in threads of this process."""
    with LocalCluster(n_workers=2, processes=False, protocol="tcp://", dashboard_address="127.0.0.1:0") as made:
        yield "--scheduler", made.scheduler_address


class Said(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def gputrace(many: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs a command in this process, and in the folder of traces."""
    monkeypatch.chdir(many)

    def command(*arguments: str) -> Said:
        monkeypatch.setattr(sys, "argv", ["gputrace", *arguments])
        code = main()
        return Said(code, *capsys.readouterr())

    return command


@pytest.mark.parametrize(
    "command",
    [
        ("summary", "t*", "--json"),
        ("summary", "t*", "--by", "step", "--markdown", "--name", "forw*", "--name", "step"),
        ("diff", "t[0-4]*", "--", "t[4-9]*", "t[0-2]*", "--json"),
        ("diff", "t[0-3]*", "--", "t[6-9]*", "--json"),
    ],
)
def test_the_same_is_said_as_of_one_after_another(gputrace: Any, cluster: tuple[str, str], command: Any) -> None:
    here, there = gputrace(*command), gputrace(*command, *cluster)
    assert there == here
    assert here.out or "t4b.json: is not a trace" in here.err


@pytest.mark.slow
def test_and_by_processes_of_this_machine(many: Path) -> None:
    here, there = (run([*GPUTRACE, "summary", "t*", "--json", *more], many) for more in ((), PARALLEL))
    assert (there.returncode, there.stdout, there.stderr) == (here.returncode, here.stdout, here.stderr)
    assert b"t4b.json: is not a trace" in here.stderr


@pytest.mark.parametrize("first", [(), ("empty.pftrace",)])  # whose place the next one takes
def test_a_page_has_the_same_timeline(gputrace: Any, many: Path, cluster: tuple[str, str], first: Any) -> None:
    script = rank(0)
    script.batches.clear()
    write_trace(many / "empty.pftrace", Host("node0"), script, number=77)
    pictures = []
    for more in ((), cluster):
        assert gputrace("summary", *first, "t1.pftrace", "t2.pftrace", "--html", "page.html", *more).code == 0
        page = (many / "page.html").read_text()
        pictures.append(re.findall(r"data:image/png;base64,[\w+/=]+", page))
    assert pictures[0] == pictures[1]
    assert len(pictures[0]) == 1


def test_what_is_asked_for_wrongly(gputrace: Any) -> None:
    for options, told in (
        (("--memory-per-worker", "lots"), "--memory-per-worker: 'lots' is no size: write it like 64MB"),
        (("--memory-per-worker", "1MB"), "--memory-per-worker: a process takes 256MB and more: give it 1GB or more"),
        (
            (*PARALLEL, "--scheduler", "tcp://127.0.0.1:1"),
            "--memory-per-worker is of processes here: those of --scheduler have their own limits",
        ),
    ):
        done = gputrace("summary", "t*", *options)
        assert (done.code, done.out, done.err.splitlines()[-1]) == (2, "", f"gputrace: {told}")


@pytest.mark.slow
def test_a_scheduler_that_does_not_answer_is_told_in_seconds(many: Path) -> None:
    done = run([*GPUTRACE, "summary", "t1.pftrace", "--scheduler", "tcp://127.0.0.1:1"], many)
    [line] = said(done.stderr)
    assert done.returncode == 1
    assert line.startswith("no Dask scheduler answers at tcp://127.0.0.1:1 (")
    assert line.endswith("Without --scheduler, the traces are read by processes of this machine")


def test_few_traces_import_no_dask(many: Path) -> None:
    program = (
        "import sys; from gputrace.cli.main import main; main(); "
        "print(sorted({'dask', 'distributed', 'fsspec'} & set(sys.modules)), file=sys.stderr)"
    )
    done = run([GPUTRACE[0], "-c", program, "summary", "t*"], many)
    assert done.stderr.splitlines()[-1] == b"[]"


def test_progress_is_shown_to_whoever_watches(many: Path) -> None:
    command = [*GPUTRACE, "summary", "t*"]
    _, shown = on_a_terminal(command, many, "stderr")
    assert b"gputrace: reading" in shown
    assert b"12/12" in shown
    assert b"t4b.json: is not a trace" in shown
    assert b"reading" not in on_a_terminal([*command[:-1], "t1.pftrace"], many, "stderr")[1]
    assert b"reading" not in run(command, many).stderr


def living(group: int) -> list[Path]:
    """What runs of a process group. A process that has ended and that nobody waits for still is of it."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, pgrp, *_ = path.read_text().rpartition(")")[2].split()
            found += [path.parent] if int(pgrp) == group and state != "Z" else []
    return found


def being_read(group: int, folder: Path) -> bool:
    """Has a process of a group a file of ``folder`` open?"""
    for process in living(group):
        with contextlib.suppress(OSError):  # it ended meanwhile
            if any(os.readlink(each).startswith(f"{folder}/") for each in (process / "fd").iterdir()):
                return True
    return False


@pytest.mark.slow
def test_ctrl_c_ends_all_of_it(tmp_path: Path) -> None:
    event = b'{"ph":"X","ts":1,"dur":1,"pid":1,"tid":1,"name":"a"},\n'
    (tmp_path / "0.json").write_bytes(b"[" + event * 1_000_000)  # seconds of work each
    for k in range(1, 8):
        os.link(tmp_path / "0.json", tmp_path / f"{k}.json")
    command = [*GPUTRACE, "summary", *(f"{k}.json" for k in range(8)), *PARALLEL]
    running = start(command, tmp_path, stderr=subprocess.PIPE, start_new_session=True)
    end_s = time.monotonic() + 60
    while not being_read(running.pid, tmp_path):
        assert time.monotonic() < end_s
        time.sleep(0.05)
    os.killpg(running.pid, signal.SIGINT)  # as a terminal does: all processes
    _, err = running.communicate(timeout=30)
    assert (running.returncode, err) == (130, b"\n")  # which click puts behind the terminal's ^C
    while living(running.pid):
        assert time.monotonic() < end_s
        time.sleep(0.05)
