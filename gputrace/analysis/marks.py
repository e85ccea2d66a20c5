"""Steps by what ends each, `gputrace.step()` or a step of PyTorch's optimizer: from the one before to its own.

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

#: Its optimizers, for programs that clear gradients by another way.
_OF_PYTORCH = (
    *("ASGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "LBFGS", "Muon", "NAdam", "RAdam"),
    *("RMSprop", "Rprop", "SGD", "SparseAdam"),
)


@dataclass(frozen=True)
class Marked:
    """A step between two ends; ``number`` counts from 0 in its process, or an optimizer's from 0 on its thread."""

    begin_ns: int
    end_ns: int
    number: int


def marked(trace: Trace, of_track: Ids, places: list[Place]) -> dict[int, list[Marked]]:
    """By place, in order."""
    instants = trace.instants
    named = np.array([text == STEP for text in instants.strings.texts.tolist()], np.bool_)
    ends: dict[int, list[tuple[int, int]]] = {}
    for row in np.flatnonzero(named[instants.name_id]).tolist() if len(named) else ():
        number = instants.args[row].get("number")
        place = int(of_track[instants.track_id[row]])
        if isinstance(number, int) and places[place].side == HOST:
            ends.setdefault(place, []).append((int(instants.ts_ns[row]), number))
    return _between(ends, trace, places)


def optimized(trace: Trace, of_track: Ids, places: list[Place]) -> dict[int, list[Marked]]:
    """By place, steps that an optimizer ends: where there are several, the one that steps first. One that wraps another
    steps once.
    """
    slices = trace.slices
    names = slices.strings.texts.tolist()
    optimizers = _optimizers(names)
    ids = [id for id, name in enumerate(names) if name in optimizers]
    if not ids:
        return {}
    rows = np.flatnonzero(np.isin(slices.name_id, ids) & ~slices.unfinished)
    first: dict[int, int] = {}
    reach: dict[int, int] = {}
    ends: dict[int, list[tuple[int, int]]] = {}
    for row, place, name in zip(
        rows.tolist(), of_track[slices.track_id[rows]].tolist(), slices.name_id[rows].tolist(), strict=True
    ):
        begin_ns, end_ns = int(slices.ts_ns[row]), int(slices.end_ns[row])
        if places[place].side != HOST or begin_ns < reach.get(place, begin_ns):
            continue
        reach[place] = end_ns
        if first.setdefault(place, name) == name:
            each = ends.setdefault(place, [])
            each.append((end_ns, len(each)))
    return _between(ends, trace, places)


def _optimizers(names: list[str]) -> set[str]:
    """What steps of optimizers are called: by torch.profiler, and here those of a class that has ``zero_grad`` called,
    too, or is of PyTorch. Schedulers and modules step as well.
    """
    known = set(names)
    return {
        name
        for name in names
        if name.startswith("Optimizer.step#")
        or (name.endswith(".step") and (f"{name[:-5]}.zero_grad" in known or name[:-5] in _OF_PYTORCH))
    }


def _between(ends: dict[int, list[tuple[int, int]]], trace: Trace, places: list[Place]) -> dict[int, list[Marked]]:
    """Steps by place, of the (time, number) of their ends."""
    off = _off(trace) if ends else {}
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
