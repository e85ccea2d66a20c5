"""The tracks of a trace: what each is, and what it hangs on. It knows no file format."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

# Kinds of track.
PROCESS = "process"  # a process's own row
THREAD = "thread"  # a host thread
STREAM = "stream"  # a GPU's stream
COUNTER = "counter"
GROUP = "group"  # holds others, as a GPU does, and mostly no slices of its own
LANE = "lane"  # beside a thread: tasks, generators, and what may overlap the thread's own
OTHER = "track"  # whatever else a tool drew

#: What gputrace calls the processes of a rank.
_RANK = re.compile(r"\brank (\d+)(?: · ([^·\s]+))?", re.IGNORECASE)
_HOST = re.compile(r"\((?:pid|tid) \d+ on ([^)]+)\)$")


@dataclass
class Track:
    """One track; ``id`` is its index in the trace's ``tracks``.

    ``path`` are the names from the process down, ``path[-1]`` being its own. ``parent`` is the id of the track that it
    hangs on, -1 if that is its process. ``row`` is the id of the first of the tracks that are drawn as one row with it:
    its own mostly, another's for a lane. ``pid`` and ``tid`` are the operating system's, 0 where the track has none.
    ``rank`` is -1 where none is stated, ``host`` "". ``unit`` is a counter's. ``labels`` are what a file says besides.
    ``order`` sorts siblings.
    """

    id: int
    kind: str
    name: str
    path: tuple[str, ...] = ()
    parent: int = -1
    row: int = -1
    process: str = ""
    pid: int = 0
    tid: int = 0
    rank: int = -1
    host: str = ""
    unit: str = ""
    order: int = 0
    labels: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.row < 0:
            self.row = self.id

    @property
    def is_gpu(self) -> bool:
        """Do its slices say what a device did?"""
        return self.kind == STREAM

    def __str__(self) -> str:
        return "/".join(self.path)


def rank_of(process: str) -> tuple[int, str]:
    """(rank, host) that the name of a process states; -1 and "" where it does not."""
    match = _RANK.search(process)
    host = _HOST.search(process)
    named = (match[2] or "") if match else ""
    return int(match[1]) if match and len(match[1]) < 10 else -1, host[1] if host else named
