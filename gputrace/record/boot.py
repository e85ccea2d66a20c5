"""Starts tracing inside a recorded program, before its first line.

Called by `site/sitecustomize.py`, which catches what this raises and leaves a note for the launcher. It imports only
what every traced program pays for.
"""

from __future__ import annotations

import os
import sys

from gputrace.shards import ShardFolder


def boot(path: str) -> None:
    """Start this process's tracer for the recording whose shard folder is ``path``."""
    # Before anything can fail: "Python started, but ..." is told apart from "no Python started".
    ShardFolder.open(path).add_process(os.getpid(), sys.executable)

    from gputrace import tracer

    tracer.start_from_environment()
