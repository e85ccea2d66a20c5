"""The rows of a trace as a reader names them: lanes of one row are one, rows of one name are told apart."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gputrace.table import tracks

if TYPE_CHECKING:
    from gputrace.table.columns import Ids
    from gputrace.table.trace import Trace
    from gputrace.table.tracks import Track

HOST, GPU = "host", "gpu"


@dataclass(frozen=True)
class Place:
    """A row. ``label`` is its path; ``device`` that of the GPU it is a stream of, "" on the host; ``rank`` or -1."""

    label: str
    process: str
    pid: int
    rank: int
    device: str = ""

    @property
    def side(self) -> str:
        return GPU if self.device else HOST


def places(trace: Trace) -> tuple[Ids, list[Place]]:
    """(number of its place by track id, places)."""
    keys = [_key(track) for track in trace.tracks]
    numbers: dict[tuple[object, ...], int] = {}
    of_track = np.array([numbers.setdefault(key, len(numbers)) for key in keys], np.int32)
    labels = Counter(path for path, *_ in numbers)
    found: list[Place] = []
    for track, key in zip(trace.tracks, keys, strict=True):
        if numbers[key] < len(found):
            continue
        path, pid, tid = key
        label = "/".join(track.path) or track.name or f"track {track.id}"
        if labels[path] > 1:
            label += f" {tid or pid or track.id}"
        device = _device(track) if track.is_gpu else ""
        found.append(Place(label, track.process, track.pid, track.rank, device))
    return of_track, found


def _key(track: Track) -> tuple[object, ...]:
    # Chrome's format has no rows of several tracks: there, lanes are known by their like names.
    alike = track.kind in (tracks.THREAD, tracks.LANE, tracks.STREAM) and track.path
    return (track.path, track.pid, track.tid if track.kind == tracks.THREAD else 0 if alike else f"#{track.row}")


def _device(track: Track) -> str:
    return "/".join(track.path[:-1]) or track.process or "GPU"
