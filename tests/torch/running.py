"""Runs programs with the real PyTorch, as they are and recorded."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

#: A busy machine takes a minute for what takes ten seconds on another.
PATIENCE_S = 280


def record(output: Path, *command: str, options: Sequence[str] = (), pure: bool = False) -> tuple[str, str]:
    """Record a command; its stdout, and what `record` said."""
    words = [sys.executable, "-m", "gputrace", "record", "--device", "host", "-o", str(output), *options]
    return _run([*words, "--", *command], {**os.environ, "GPUTRACE_PURE": "1" if pure else ""})


def plain(*command: str) -> str:
    """A command's stdout."""
    return _run(list(command), dict(os.environ))[0]


def torchrun(program: Path, ranks: int) -> list[str]:
    """The command that runs a program on so many ranks of this host."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    words = ["-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "--master-addr", "127.0.0.1"]
    return [sys.executable, *words, "--master-port", port, str(program)]


def _run(words: list[str], environment: dict[str, str]) -> tuple[str, str]:
    done = subprocess.run(words, env=environment, timeout=PATIENCE_S, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr
