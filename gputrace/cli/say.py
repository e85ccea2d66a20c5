"""What gputrace says to a person while a command runs: lines on stderr, which carry its name."""

from __future__ import annotations

import contextlib
import sys


def say(text: str) -> None:
    """Print one line on stderr. Never raises, and never falls back to stdout: that is the command's alone."""
    if sys.stderr is None:
        return
    with contextlib.suppress(OSError, ValueError):
        print(f"gputrace: {text}", file=sys.stderr, flush=True)
