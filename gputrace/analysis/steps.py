"""A program's steps: how long the host took for each, and the windows launched in it.

They are the slices that are called as steps are; on a thread that has none, what `marks` finds between the calls of
`gputrace.step()`; in a process that has neither, between an optimizer's steps.
"""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gputrace.analysis.marks import marked, optimized
from gputrace.analysis.places import HOST
from gputrace.analysis.statistics import union
from gputrace.regions import STEP

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gputrace.analysis.gpu import Devices
    from gputrace.analysis.places import Place
    from gputrace.table.columns import Flags, Ids, Ints
    from gputrace.table.trace import Trace

#: What steps are called: by people, by PyTorch's profiler, and by `gputrace.step()`.
NAMES = ("step", "ProfilerStep#*", "train_step", "training_step", "iteration", STEP)


@dataclass
class Step:
    """``gpu_busy_ns`` is how long any window launched in it ran, ``windows`` how many they are: 0 where no arrow tells.
    ``wait_ns`` is what its thread waited for devices meanwhile. ``args`` are its slice's, or its "number" as
    `gputrace.step()` counts.
    """

    place: str
    name: str
    rank: int
    number: int
    begin_ns: int
    duration_ns: int
    gpu_busy_ns: int
    windows: int
    wait_ns: int
    args: dict[str, object]


def steps(
    trace: Trace,
    of_track: Ids,
    places: list[Place],
    devices: Devices,
    waiting: Flags,
    asked: Flags,
    names: Sequence[str] = NAMES,
) -> list[Step]:
    """The outermost host slices of such names that ended, and what lies between ends of steps, by thread and time.

    ``waiting`` says which slices wait, ``asked`` of which places steps are told.
    """
    slices = trace.slices
    place = of_track[slices.track_id]
    host = np.array([each.side == HOST for each in places], np.bool_)
    texts = slices.strings.texts.tolist()
    like = np.array([any(fnmatch.fnmatchcase(text, name) for name in names) for text in texts], np.bool_)
    chosen = like[slices.name_id] & host[place] & ~slices.unfinished if len(slices) else np.zeros(0, np.bool_)
    called = any(fnmatch.fnmatchcase(STEP, name) for name in names)
    marks = marked(trace, of_track, places) if called else {}
    named = set(np.unique(place[chosen]).tolist())
    if called:
        told = {(places[number].process, places[number].pid) for number in named | marks.keys()}
        by_optimizer = optimized(trace, of_track, places)
        marks |= {n: each for n, each in by_optimizer.items() if (places[n].process, places[n].pid) not in told}
    found: list[Step] = []
    for number in sorted(each for each in named | marks.keys() if asked[each]):
        here = place == number
        if number in named:
            rows = _outermost(np.flatnonzero(chosen & here), slices.ts_ns, slices.end_ns)
            begin, end = slices.ts_ns[rows], slices.end_ns[rows]
            called_so = [slices.strings[id] for id in slices.name_id[rows].tolist()]
            args = [slices.args[row] for row in rows.tolist()]
        else:
            between = marks[number]
            begin = np.array([each.begin_ns for each in between], np.int64)
            end = np.array([each.end_ns for each in between], np.int64)
            called_so = ["step"] * len(between)
            args = [{"number": each.number} for each in between]
        figures = _figures(trace, devices, here, waiting, begin, end)
        for k, (busy_ns, windows, wait_ns) in enumerate(figures):
            found.append(
                Step(
                    places[number].label,
                    called_so[k],
                    places[number].rank,
                    k,
                    int(begin[k]),
                    int(end[k] - begin[k]),
                    busy_ns,
                    windows,
                    wait_ns,
                    args[k],
                )
            )
    return found


def _figures(
    trace: Trace, devices: Devices, here: Flags, waiting: Flags, begin: Ints, end: Ints
) -> list[tuple[int, int, int]]:
    """(how long the GPU was busy, windows, how long its thread waited) of each step; ``here`` are that one's slices."""
    slices = trace.slices
    source, target = devices.arrows()
    launched = here[source]
    source, target = source[launched], target[launched]
    busy_ns, windows = _by_step(begin, end, slices.ts_ns[source], slices.ts_ns[target], slices.end_ns[target])
    waits = np.flatnonzero(waiting & here)
    wait_ns, _ = _by_step(begin, end, slices.ts_ns[waits], slices.ts_ns[waits], slices.end_ns[waits])
    return list(zip(busy_ns.tolist(), windows.tolist(), wait_ns.tolist(), strict=True))


def _outermost(rows: Ints, ts_ns: Ints, end_ns: Ints) -> Ints:
    reach = np.maximum.accumulate(end_ns[rows])
    return rows[np.concatenate(([True], ts_ns[rows][1:] >= reach[:-1]))] if len(rows) else rows


def _by_step(begin: Ints, end: Ints, at: Ints, begins: Ints, ends: Ints) -> tuple[Ints, Ints]:
    """(time that intervals cover, how many they are) by step; each interval is of the step that ``at`` falls into."""
    step = np.searchsorted(begin, at, "right") - 1
    inside = np.flatnonzero((step >= 0) & (at < end[step])) if len(begin) else np.empty(0, np.int64)
    step, begins, ends = step[inside], begins[inside], ends[inside]
    if not len(step):
        none = np.zeros(len(begin), np.int64)
        return none, none
    # Each step's intervals are moved to a time of their own, so that one pass finds what each covers.
    origin = int(begins.min())
    apart = int(ends.max()) - origin + 1
    low, high = union(begins - origin + step * apart, ends - origin + step * apart)
    busy = np.bincount(low // apart, weights=high - low, minlength=len(begin))
    return busy.astype(np.int64), np.bincount(step, minlength=len(begin))
