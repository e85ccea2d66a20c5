"""Runs `gputrace record` for real, and the same command without it to compare with."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

PYTHON = sys.executable
GPUTRACE = [PYTHON, "-m", "gputrace.cli.main"]

#: A program that opens one span and says so on stdout.
ONE_SPAN = "import gputrace\nwith gputrace.span('work'): pass\nprint('done')"

#: What a recorded program runs so as to go on only once all that it recorded so far is in its shard: what is not there
#: yet, the pure twin loses in a kill. The name is no other process's, nor of the image that this one was before exec.
WRITTEN = """
import glob, os, time
mark = str(os.getpid()) + ' at ' + str(time.monotonic_ns())
gputrace.counter(mark, 1)
shards = os.path.join(os.environ['GPUTRACE_RECORD'], '*.shard')
while not any(mark.encode() in open(path, 'rb').read() for path in glob.glob(shards)):
    time.sleep(0.01)
"""


def recording(*command: str | bytes, output: str | Path = "trace.pftrace", device: str = "host") -> list[str | bytes]:
    """The command line that records ``command``."""
    return [*GPUTRACE, "record", "-o", str(output), "--device", device, "--", *command]


def run(command: list[Any], cwd: Path, **options: Any) -> subprocess.CompletedProcess[bytes]:
    options.setdefault("stdin", subprocess.DEVNULL)
    if "input" in options:
        del options["stdin"]
    return subprocess.run(command, cwd=cwd, capture_output=True, timeout=60, **options)


def on_a_terminal(command: list[Any], cwd: Path, stream: str, *, columns: int = 100) -> tuple[int, bytes]:
    """The exit code, and what a command says on ``stream`` ("stdout" or "stderr") where that is a terminal; the other
    is dropped.
    """
    outside, inside = pty.openpty()
    environment = {**os.environ, "COLUMNS": str(columns), "TERM": "xterm"}
    streams: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, stream: inside}
    with subprocess.Popen(command, cwd=cwd, env=environment, **streams) as shown:
        os.close(inside)
        out = b""
        try:
            while piece := os.read(outside, 65536):
                out += piece
        except OSError:
            pass  # how a terminal says that nobody writes to it any more
    os.close(outside)
    return shown.returncode, out


def start(command: list[Any], cwd: Path, **options: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, cwd=cwd, **options)


def wait_for(path: Path, timeout_s: float = 30.0) -> str:
    """The text of a file that a running program makes when it is ready."""
    end_s = time.monotonic() + timeout_s
    while not (path.exists() and path.read_text()):
        assert time.monotonic() < end_s, f"{path} never appeared"
        time.sleep(0.01)
    return path.read_text()


def left_behind(folder: Path) -> list[str]:
    """Hidden files and folders: what a recording uses and must remove."""
    return [name for name in os.listdir(folder) if name.startswith(".")]
