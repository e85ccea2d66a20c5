"""What a recorded command finds in its environment: its own, and the two variables that start tracing."""

from __future__ import annotations

import os

from gputrace.errors import OutputError
from gputrace.shards import ShardFolder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

#: Names the recording's shard folder. Inherited by child processes, as PYTHONPATH is.
FOLDER_VARIABLE = "GPUTRACE_RECORD"

#: Holds `sitecustomize`, which every Python started with this folder on its PYTHONPATH imports first.
SITE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "site")


def for_command(environment: Mapping[str, str], folder: str) -> dict[str, str]:
    """``environment`` with what makes a Python process in it trace itself into the shard folder."""
    inherited = environment.get("PYTHONPATH", "")
    kept = [entry for entry in inherited.split(os.pathsep) if entry != SITE] if inherited else []
    # An empty entry would mean the current directory, so none is made where there was none.
    return {**environment, "PYTHONPATH": os.pathsep.join([SITE, *kept]), FOLDER_VARIABLE: folder}


def tell_outer(output: str) -> None:
    """If we run inside another recording, note there that what runs under us is traced into ``output`` instead."""
    outer = os.environ.get(FOLDER_VARIABLE)
    if outer:
        try:
            ShardFolder.open(outer).add_nested(output)
        except (OSError, OutputError):
            pass  # the outer recording is over


def as_started() -> dict[str, str]:
    """Our environment without what our own Python put there: it sets LC_CTYPE in a C locale (PEP 538)."""
    environment = dict(os.environ)
    if environment.get("LC_CTYPE", "").upper() in ("C.UTF-8", "C.UTF8", "UTF-8") and not _was_set("LC_CTYPE"):
        del environment["LC_CTYPE"]
    return environment


def _was_set(name: str) -> bool:
    try:
        with open("/proc/self/environ", "rb") as block:  # as the process was started with
            return any(entry.startswith(name.encode() + b"=") for entry in block.read().split(b"\0"))
    except OSError:
        return True  # not Linux: nothing to compare with
