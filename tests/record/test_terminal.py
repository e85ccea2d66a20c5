"""On a terminal: the command has it, its keys reach the command once, and the trace is still written."""

from __future__ import annotations

import os
import pty
import select
import time
from pathlib import Path
from typing import Any

from tests.record.running import PYTHON, left_behind, recording, start


class Terminal:
    """A command in a session of its own, on a pseudo-terminal that we hold the far end of."""

    def __init__(self, command: list[Any], cwd: Path) -> None:
        self.end, self.other_end = pty.openpty()
        name = os.ttyname(self.other_end)
        # The first terminal that a session's leader opens becomes the session's.
        adopt = ["sh", "-c", 'terminal=$1; shift; exec "$@" <"$terminal" >"$terminal" 2>&1', "sh", name]
        self.process = start([*adopt, *command], cwd, start_new_session=True)
        self.shown = b""

    def read_until(self, text: bytes, timeout_s: float = 30.0) -> None:
        end_s = time.monotonic() + timeout_s
        while text not in self.shown:
            assert time.monotonic() < end_s, self.shown
            if select.select([self.end], [], [], 0.1)[0]:
                self.shown += os.read(self.end, 65536)

    def press(self, keys: bytes) -> None:
        os.write(self.end, keys)

    def exit_code(self) -> int:
        end_s = time.monotonic() + 30
        while time.monotonic() < end_s:
            if select.select([self.end], [], [], 0.05)[0]:
                self.shown += os.read(self.end, 65536)
            elif self.process.poll() is not None:
                os.close(self.end)
                os.close(self.other_end)
                return self.process.returncode
        raise AssertionError(f"still running: {self.shown!r}")


def test_the_command_has_the_terminal(tmp_path: Path) -> None:
    program = """
import os
print([os.isatty(n) for n in (0, 1, 2)])
print("got", input(), os.getpgrp() == os.tcgetpgrp(0))
"""
    terminal = Terminal(recording(PYTHON, "-c", program), tmp_path)
    terminal.read_until(b"[True, True, True]")
    terminal.press(b"hello\n")
    terminal.read_until(b"got hello True")
    assert terminal.exit_code() == 0


def test_ctrl_c_reaches_the_command_once_and_the_trace_is_written(tmp_path: Path) -> None:
    program = """
import gputrace, signal, time
got = []
signal.signal(signal.SIGINT, lambda *_: got.append(1))
print("ready", flush=True)
end = time.monotonic() + 30
while not got and time.monotonic() < end:
    time.sleep(0.01)
time.sleep(0.5)
with gputrace.span("ending"):
    print("interrupted", len(got), "time")
"""
    terminal = Terminal(recording(PYTHON, "-c", program), tmp_path)
    terminal.read_until(b"ready")
    terminal.press(b"\x03")
    terminal.read_until(b"interrupted 1 time")
    assert terminal.exit_code() == 0
    assert (tmp_path / "trace.pftrace").exists()


def test_ctrl_c_that_kills_the_command_is_what_the_caller_sees(tmp_path: Path) -> None:
    program = """
import gputrace, time
with gputrace.span("waiting"):
    print("ready", flush=True)
    for _ in range(600):
        time.sleep(0.1)  # in turns: Python misses a signal that comes on the way into a sleep until its end
"""
    terminal = Terminal(recording(PYTHON, "-c", program), tmp_path)
    terminal.read_until(b"ready")
    terminal.press(b"\x03")
    terminal.read_until(b"KeyboardInterrupt")
    assert terminal.exit_code() == -2
    assert (tmp_path / "trace.pftrace").exists()
    assert left_behind(tmp_path) == []
