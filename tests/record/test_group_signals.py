"""Signals to the whole process group, as `timeout` and CI runners send them: the command gets them as without us."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.record.running import GPUTRACE, PYTHON, recording, run, wait_for

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")

#: Writes a line for each signal, and ends with SIGUSR2.
COUNTS = """
import os, signal, time
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGWINCH):
    signal.signal(number, lambda number, _: os.write(1, b"%d\\n" % number))
over = []
signal.signal(signal.SIGUSR2, lambda *_: over.append(1))
open("ready", "w").write(str(os.getpid()))
while not over:
    time.sleep(0.01)
"""
#: Numbers of signals, and to whom: the group, `record` alone, or the command alone.
SENT = [
    [(signal.SIGTERM, "group")],
    [(signal.SIGINT, "group")],
    [(signal.SIGHUP, "record")],
    [(signal.SIGTERM, "record"), (signal.SIGTERM, "group"), (signal.SIGTERM, "record"), (signal.SIGTERM, "group")],
    [(signal.SIGINT, "group"), (signal.SIGUSR1, "group"), (signal.SIGINT, "record"), (signal.SIGUSR1, "record")],
]


@pytest.mark.parametrize("sent", SENT, ids=lambda sent: " ".join(f"{n.name}-{whom}" for n, whom in sent))
def test_each_reaches_the_command_once(tmp_path: Path, sent: list[tuple[signal.Signals, str]]) -> None:
    (tmp_path / "counts.py").write_text(COUNTS)
    command = recording(PYTHON, "counts.py")
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, process_group=0) as record:
        assert record.stdout is not None
        pid = int(wait_for(tmp_path / "ready"))
        for number, whom in sent:
            if whom == "group":
                os.killpg(record.pid, number)
            else:
                os.kill(record.pid, number)
            assert record.stdout.readline() == b"%d\n" % number
            # Behind whatever `record` may have to pass on: it takes one at a time, the lowest number first.
            os.kill(record.pid, signal.SIGWINCH)
            assert record.stdout.readline() == b"%d\n" % signal.SIGWINCH
        os.kill(pid, signal.SIGUSR2)
        assert record.stdout.read() == b""
    assert record.returncode == 0


def test_nobody_stands_by_any_longer(tmp_path: Path) -> None:
    """Neither once it is over, nor where `record` is killed: whoever reads its output would wait for ever."""
    script = "import os, sys; print(os.getpgrp(), flush=True); sys.stdin.readline()"
    for killed in (False, True):
        command = recording(PYTHON, "-c", script)
        with subprocess.Popen(
            command, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, process_group=0
        ) as record:
            assert record.stdout is not None
            group = int(record.stdout.readline())
            assert group == record.pid
            if killed:
                record.kill()
            record.communicate(b"\n", timeout=30)
        while members(group):
            pass


def members(group: int) -> list[int]:
    found = []
    for name in os.listdir("/proc"):
        try:
            if name.isdecimal() and os.getpgid(int(name)) == group:
                found.append(int(name))
        except ProcessLookupError:
            continue
    return found


#: `record`, to which signals are sent from when it has said its last line.
SIGNALLED = """
import os, signal, sys, threading
from gputrace.cli import record
from gputrace.cli.main import main
tell = record.tell
def told(*args):
    tell(*args)
    def send():
        while True:
            os.kill(os.getpid(), int(sys.argv[-1]))
    signal.pthread_sigmask(signal.SIG_BLOCK, {int(sys.argv[-1])})
    threading.Thread(target=send, daemon=True).start()
record.tell = told
sys.exit(main())
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_one_on_the_way_out_does_not_change_the_exit_code(tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "signalled.py").write_text(SIGNALLED)
    program = "import gputrace, sys\nwith gputrace.span('x'): pass\nsys.exit(3)"
    command = recording(PYTHON, "-c", program, str(number.value))
    done = run([PYTHON, "signalled.py", *command[len(GPUTRACE) :]], tmp_path)
    assert done.returncode == 3, done.stderr
    assert b"wrote" in done.stderr
