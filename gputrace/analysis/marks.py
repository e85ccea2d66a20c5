"""Steps that a program counts by `gputrace.step()`: each lasts from the call that ended the one before to its own.

The first has no begin that is known, and one in which the recording was off for a while is not seen whole: both are
left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from gputrace.analysis.places import HOST
from gputrace.regions import RECORDED, STEP

if TYPE_CHECKING:
    from gputrace.analysis.places import Place
    from gputrace.table.columns import Ids
    from gputrace.table.trace import Trace


@dataclass(frozen=True)
class Marked:
    """A step between two calls; ``number`` counts from 0 in its process."""

    begin_ns: int
    end_ns: int
    number: int


def marked(trace: Trace, whole: Trace, of_track: Ids, places: list[Place]) -> dict[int, list[Marked]]:
    """By place, those of ``trace`` in order. ``whole`` is the trace that it is a part of: it says what was recorded."""
    instants = trace.instants
    named = np.array([text == STEP for text in instants.strings.texts.tolist()], np.bool_)
    ends: dict[int, list[tuple[int, int]]] = {}
    for row in np.flatnonzero(named[instants.name_id]).tolist() if len(named) else ():
        number = instants.args[row].get("number")
        place = int(of_track[instants.track_id[row]])
        if isinstance(number, int) and places[place].side == HOST:
            ends.setdefault(place, []).append((int(instants.ts_ns[row]), number))
    off = _off(whole) if ends else {}
    found = {}
    for place, each in ends.items():
        gaps = off.get(places[place].pid, [])
        found[place] = [
            Marked(begin, end, number)
            for (begin, before), (end, number) in pairwise(each)
            if number == before + 1 and not any(since < end and until > begin for since, until in gaps)
        ]
    return {place: steps for place, steps in found.items() if steps}


def _off(trace: Trace) -> dict[int, list[tuple[int, int]]]:
    """By pid, when nothing was recorded."""
    found: dict[int, list[tuple[int, int]]] = {}
    for track in trace.tracks:
        if track.name != RECORDED:
            continue
        samples = np.flatnonzero(trace.counters.track_id == track.id)
        times, values = trace.counters.ts_ns[samples].tolist(), trace.counters.value[samples].tolist()
        for k, (begin, value) in enumerate(zip(times, values, strict=True)):
            if not value:
                end = times[k + 1] if k + 1 < len(times) else trace.end_ns
                found.setdefault(track.pid, []).append((begin, end))
    return found
