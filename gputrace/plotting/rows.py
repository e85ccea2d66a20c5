"""Which row of a picture each slice of a trace goes to. It draws nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from gputrace.table.columns import Ints
    from gputrace.table.trace import Trace
    from gputrace.table.tracks import Track


@dataclass(frozen=True)
class Row:
    """One line of the picture: the slices, by their rows in the trace's table, of one depth of one track or lane."""

    title: str
    slices: Ints
    #: Is it its track's first, which bears its name?
    first: bool


def rows(trace: Trace, most_deep: int) -> list[Row]:
    """The rows from the top down: processes' threads, then the devices' streams, each as deep as it nests.

    Tracks that hold no slices have none; of one, slices nested deeper than ``most_deep`` are left out.
    """
    slices = trace.slices
    shown = slices.depth < most_deep
    # Tracks that a viewer draws as one row, and lanes within a track, are stacked in one block.
    block = np.array([track.row for track in trace.tracks], np.int64)[slices.track_id]
    found: list[Row] = []
    order = sorted({int(each) for each in block[shown]}, key=lambda id: _place(trace, id))
    several = len({track.pid for track in trace.tracks if track.pid}) > 1
    pids: dict[str, set[int]] = {}
    for id in order:
        pids.setdefault(trace.tracks[id].path[0], set()).add(trace.tracks[id].pid)
    for id in order:
        of_block = np.flatnonzero(shown & (block == id))
        line = np.stack((slices.track_id[of_block], slices.lane[of_block], slices.depth[of_block]), axis=1)
        lines, which = np.unique(line, axis=0, return_inverse=True)
        for k in range(len(lines)):
            title = _title(trace.tracks[id], several, pids) if k == 0 else ""
            found.append(Row(title, of_block[which.reshape(-1) == k], k == 0))
    return found


def _place(trace: Trace, id: int) -> tuple[object, ...]:
    """Sorts tracks: by rank and process, the host's threads first; below them devices, as the trace orders them."""
    track = trace.tracks[id]
    return (track.rank, track.pid, track.is_gpu, track.order, track.path, id)


def _title(track: Track, several_processes: bool, pids: dict[str, set[int]]) -> str:
    """``pids`` are those of the processes by name: of one name, only they tell which is which."""
    process, *below = track.path
    if not several_processes and below:
        return " · ".join(below)
    alike = track.pid and len(pids[process]) > 1
    return " · ".join((f"{process} {track.pid}" if alike else process, *below))
