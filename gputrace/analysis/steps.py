"""A program's steps: how long the host took for each, and the windows launched in it."""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gputrace.analysis.places import HOST
from gputrace.analysis.statistics import union

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gputrace.analysis.gpu import Devices
    from gputrace.analysis.places import Place
    from gputrace.table.columns import Flags, Ids, Ints
    from gputrace.table.trace import Trace

#: What steps are called: by people, and by PyTorch's profiler.
NAMES = ("step", "ProfilerStep#*", "train_step", "training_step", "iteration")


@dataclass
class Step:
    """``gpu_busy_ns`` is how long any window launched in it ran, ``windows`` how many they are: 0 where no arrow tells.
    ``wait_ns`` is what its thread waited for devices meanwhile. ``args`` are its slice's.
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
    trace: Trace, of_track: Ids, places: list[Place], devices: Devices, waiting: Flags, names: Sequence[str] = NAMES
) -> list[Step]:
    """The outermost host slices of such names that ended, by thread and time. ``waiting`` says which slices wait."""
    slices = trace.slices
    place = of_track[slices.track_id]
    host = np.array([each.side == HOST for each in places], np.bool_)
    texts = slices.strings.texts.tolist()
    like = np.array([any(fnmatch.fnmatchcase(text, name) for name in names) for text in texts], np.bool_)
    if not len(slices):
        return []
    chosen = like[slices.name_id] & host[place] & ~slices.unfinished
    found: list[Step] = []
    source, target = devices.arrows()
    for number in np.unique(place[chosen]).tolist():
        here = place == number
        rows = _outermost(np.flatnonzero(chosen & here), slices.ts_ns, slices.end_ns)
        begin, end = slices.ts_ns[rows], slices.end_ns[rows]
        launched = here[source]
        busy_ns, windows = _by_step(
            begin, end, slices.ts_ns[source[launched]], slices.ts_ns[target[launched]], slices.end_ns[target[launched]]
        )
        waits = np.flatnonzero(waiting & here)
        wait_ns, _ = _by_step(begin, end, slices.ts_ns[waits], slices.ts_ns[waits], slices.end_ns[waits])
        for k, row in enumerate(rows.tolist()):
            found.append(
                Step(
                    places[number].label,
                    slices.strings[int(slices.name_id[row])],
                    places[number].rank,
                    k,
                    int(begin[k]),
                    int(slices.dur_ns[row]),
                    int(busy_ns[k]),
                    int(windows[k]),
                    int(wait_ns[k]),
                    slices.args[row],
                )
            )
    return found


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
