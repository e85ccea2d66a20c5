"""No room for the ring that outlives a crash: on a small disk, or under a limit on files' sizes.

Tracing goes on in memory of the process's own, the recording's end says once what that means, and no store into the
ring finds its page missing (SIGBUS), whenever the disk filled up.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.engine import Engine, assert_clean, slices
from tests.hot.twin import TWINS, environment
from tests.record.running import run
from tests.ways import test_room
from tests.ways.test_room import Disk

disk = test_room.disk

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("compiled" not in TWINS, reason="the pure twin has no ring"),
]

#: Its collector gets no turn until the end, so all spans stay in the ring.
BEGINNING = """
import os, resource, signal, sys
import gputrace
from gputrace import collector
collector.Collector.start = lambda self: False
def spans(first, last):
    for n in range(first, last):
        with gputrace.span("x", n=n):
            pass
def fill():
    with open("filler", "wb", buffering=0) as filler:
        try:
            for _ in range(4096):  # and no more, should the disk be another than the small one
                filler.write(bytes(1024))
        except OSError as error:
            print(error.strerror, flush=True)
"""
#: By when the disk is full: the statements.
FULL = {
    "before the ring is": "fill(); spans(0, 9000)",
    "before it grows": "spans(0, 1); fill(); spans(1, 9000)",
    "after it grew": "spans(0, 9000); fill(); spans(9000, 9100)",
}
TOLD = "were not safe from a kill: "


def record(folder: Path, program: str, where: list[str], output: str) -> tuple[bytes, str]:
    (folder / "program.py").write_text(BEGINNING + program)
    command = [*where, sys.executable, "-m", "gputrace.cli.main", "record", "--device", "host", "-o", output, "--"]
    done = run([*command, sys.executable, str(folder / "program.py")], folder, env=environment("compiled"))
    assert done.returncode == 3, done.stderr
    return done.stdout, done.stderr.decode()


def assert_all_there(trace: Path, count: int) -> None:
    engine = Engine(trace)
    assert_clean(engine)
    assert sorted(s.args["n"] for s in slices(engine)) == list(range(count))


@pytest.mark.parametrize("when", FULL)
def test_the_disk_fills_up(disk: Disk, tmp_path: Path, when: str) -> None:
    count = 9100 if "after" in when else 9000
    program = f"os.chdir('disk'); {FULL[when]}; os.unlink('filler'); sys.exit(3)"
    stdout, said = record(tmp_path, program, disk.inside, "disk/t.pftrace")
    assert stdout == b"No space left on device\n"
    assert said.count(TOLD) == (0 if "after" in when else 1), said
    assert ("No space left on device" in said) is ("after" not in when)
    assert ", 0 dropped" in said
    assert_all_there(disk.view / "t.pftrace", count)


@pytest.mark.parametrize("handler", ["SIG_IGN", "SIG_DFL"])
@pytest.mark.parametrize("first", [0, 100])
def test_a_limit_on_a_file_s_size(tmp_path: Path, handler: str, first: int) -> None:
    """To exceed it raises SIGXFSZ, which Python ignores; a program may not. Its own files are as large as it likes."""
    limit = f"signal.signal(signal.SIGXFSZ, signal.{handler}); before = resource.getrlimit(resource.RLIMIT_FSIZE)"
    limit += "; resource.setrlimit(resource.RLIMIT_FSIZE, (100_000 if not first else 500_000, before[1]))"
    lift = "resource.setrlimit(resource.RLIMIT_FSIZE, before)"
    program = f"first = {first}; spans(0, first); {limit}; spans(first, 9000); {lift}; sys.exit(3)"
    _, said = record(tmp_path, program, [], "t.pftrace")
    assert said.count(TOLD) == 1, said
    assert "File too large" in said
    assert_all_there(tmp_path / "t.pftrace", 9000)


def test_signals_that_come_while_it_is_made(tmp_path: Path, disk: Disk) -> None:
    """Some file systems break an allocation off for each; it is asked for again."""
    program = """
came = []
signal.signal(signal.SIGALRM, lambda *_: came.append(1))
signal.setitimer(signal.ITIMER_REAL, 0.0001, 0.0001)
spans(0, 9000)
signal.setitimer(signal.ITIMER_REAL, 0)
assert len(came) > 10
sys.exit(3)
"""
    _, said = record(tmp_path, program, disk.inside, "disk/t.pftrace")
    assert TOLD not in said, said
    assert_all_there(disk.view / "t.pftrace", 9000)
