"""Lines hosts' clocks up by what their ranks leave together: barriers, all-reduces and their kin.

No rank leaves such a call before the last has entered it, so all leave within microseconds of one another, some of them
late for reasons of their own. The n-th of a name in one rank is the n-th in all. Of a host's ranks the earliest counts;
through the differences between two hosts goes a straight line that half of them may miss by any amount: an offset, and
how much faster one clock runs.
"""

from __future__ import annotations

import fnmatch
import re
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np

from gputrace.merging.plan import Shift
from gputrace.reading import recognise
from gputrace.reading.chrome import ChromeReader, time_ns
from gputrace.reading.collectives import LEFT_TOGETHER
from gputrace.reading.layout import Events
from gputrace.reading.packets import packets
from gputrace.reading.stream import ByteStream, Limits
from gputrace.reading.trackevents import MADE_UP, TrackEvents

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from gputrace.merging.plan import Host, Plan, Task

    Times = NDArray[np.float64]

LEAST_MATCHES = 4
#: So many more or fewer may one rank have seen at the start.
MOST_LAG = 8
#: Crystals are off by at most some 100 ppm, and NTP slews by 500.
MOST_SKEW = 1e-3
LEAST_STEP_NS = 100_000.0
_NORMAL = 1.4826  # a normal distribution's deviation over its median absolute one


class Fit:
    """``offset_ns`` to add at ``origin_ns``, and ``skew`` more for each ns since.

    ``residual_ns`` is the median of how far off each of ``matches`` pairs is, ``worst_ns`` its 95th percentile.
    ``step_ns`` is by how much the clock was set at ``step_at_ns``; 0 if it was not.
    """

    def __init__(self, offset_ns: float, skew: float, origin_ns: float) -> None:
        self.offset_ns = offset_ns
        self.skew = skew
        self.origin_ns = origin_ns
        self.matches = 0
        self.residual_ns = 0.0
        self.worst_ns = 0.0
        self.step_ns = 0.0
        self.step_at_ns = 0.0
        self.name = ""


class Alignment:
    """How the trace called ``name`` was lined up; where ``fit`` is None, ``why`` says why it was not."""

    def __init__(self, name: str, host: Host, fit: Fit | None, why: str = "") -> None:
        self.name = name
        self.host = host
        self.fit = fit
        self.why = why

    def told(self) -> str:
        """One line."""
        if self.fit is None:
            return f"{self.name} ({self.host.label}): {self.why}; placed by its wall clock"
        fit = self.fit
        return (
            f"{self.name} ({self.host.label}): moved by {fit.offset_ns / 1e9:+.6f} s and {fit.skew * 1e6:+.1f} ppm by "
            f"{fit.matches} of {fit.name!r}; residual {fit.residual_ns / 1e3:.1f} us, "
            f"95 % within {fit.worst_ns / 1e3:.1f} us"
        )

    def problems(self) -> Iterator[str]:
        """What keeps it from being right; says all of `told` where it was not lined up."""
        if self.fit is None:
            yield self.told()
        elif self.fit.step_ns:
            yield (
                f"{self.name} ({self.host.label}): its clock was set by {self.fit.step_ns / 1e9:+.6f} s in the middle; "
                "the longer part is aligned, and the other is off by that much"
            )


def align(plan: Plan, patterns: tuple[str, ...] = (), limits: Limits | None = None) -> list[Alignment]:
    """Refine the plan's shifts. Returns what was done to each trace whose clock is not the timeline's own: nothing
    where all are of one.

    ``patterns`` are whole names of the calls to go by, with * and ?; without any, the usual ones. Raises `InputError`.
    """
    wanted = _wanted(patterns)
    clocks: dict[object, list[Task]] = defaultdict(list)
    for task in plan.tasks:
        clocks[task.host.boot or task.host.index].append(task)
    if len(clocks) < 2:
        return []
    reference = next((key for key, tasks in clocks.items() if any(t.keeps_clocks for t in tasks)), next(iter(clocks)))
    leaves = {
        key: _earliest([series for task in tasks for series in leaving_times(task, wanted, limits)])
        for key, tasks in clocks.items()
    }
    done = []
    for key, tasks in clocks.items():
        if key == reference:
            continue
        fit = best_fit(leaves[reference], leaves[key])
        for task in tasks:
            if task.survey.pinned:
                why = f"it cannot be moved, as {task.survey.pinned}"
            elif fit is None:
                why = _why_none(leaves[reference], leaves[key], patterns)
            else:
                why = ""
                task.to_timeline = _refined(task.to_timeline, fit)
            done.append(Alignment(task.survey.name, task.host, None if why else fit, why))
    return done


def _why_none(one: Series, two: Series, patterns: tuple[str, ...]) -> str:
    """Why two hosts could not be aligned."""
    looked_for = " or ".join(map(repr, patterns)) or "barriers, all-reduces and their kin"
    if not one and not two:
        return f"no collectives to align by ({looked_for}) on any side"
    if not one or not two:
        return f"no collectives to align by ({looked_for}) {'on the first host' if not one else 'in it'}"
    shared = max((min(len(one[name]), len(two[name])) for name in one.keys() & two.keys()), default=0)
    if shared < LEAST_MATCHES:
        return f"too few collectives to align by: {shared} of one name on both sides, and it takes {LEAST_MATCHES}"
    return "its collectives do not match the first host's: the clocks would differ by more than any do"


def _refined(shift: Shift, fit: Fit) -> Shift:
    return Shift(shift.offset_ns + round(fit.offset_ns), fit.skew, round(fit.origin_ns) - shift.offset_ns)


def _wanted(patterns: tuple[str, ...]) -> re.Pattern[str]:
    if not patterns:
        return LEFT_TOGETHER
    return re.compile("|".join(f"(?:\\A{fnmatch.translate(pattern)})" for pattern in patterns))


# --- when ranks leave -------------------------------------------------------------------------------------------------

#: By (name, whether it is on a device): the times of leaving, in order, on the timeline as it is planned, in ns.
Series = dict[tuple[str, bool], list[int]]


def leaving_times(task: Task, wanted: re.Pattern[str], limits: Limits | None = None) -> list[Series]:
    """Of each process in a trace, when it left the calls whose names are wanted."""
    found: dict[Any, Series] = defaultdict(lambda: defaultdict(list))
    open_slices: dict[tuple[Any, Any], list[str]] = defaultdict(list)
    with ByteStream(task.survey.path, limits) as stream:
        if task.survey.kind == recognise.CHROME:
            reader: ChromeReader | TrackEvents = ChromeReader(stream)
        else:
            reader = TrackEvents(stream, _sequences_with(task, wanted, limits))
        for batch in reader.batches():
            for event in batch:
                phase = event.get("ph")
                if phase not in ("X", "B", "E"):
                    continue
                ns = event["ts_ns"] if "ts_ns" in event else time_ns(event.get("ts"))
                if ns is None:
                    continue
                pid, tid = event.get("pid"), event.get("tid")
                if phase == "B":
                    open_slices[pid, tid].append(str(event.get("name", "")))
                    continue
                if phase == "E":
                    stack = open_slices[pid, tid]
                    name = stack.pop() if stack else ""
                else:
                    name, ns = str(event.get("name", "")), ns + (time_ns(event.get("dur")) or 0)
                if name and wanted.search(name):
                    device = not isinstance(pid, int) or pid >= MADE_UP or pid == 0
                    found[0 if device else pid][name, device].append(task.to_timeline(ns))
    for series in found.values():
        for times in series.values():
            times.sort()
    return list(found.values())


def _sequences_with(task: Task, wanted: re.Pattern[str], limits: Limits | None) -> set[int] | None:
    """The packet sequences of a trace of ours in which a wanted name is defined; None: look at all."""
    if task.survey.tool != "gputrace":
        return None
    found: set[int] = set()
    with ByteStream(task.survey.path, limits) as stream:
        for batch in packets(stream):
            events = Events(batch)
            behind = events.time_at + events.time_width
            for k in np.flatnonzero(behind < batch.ends[events.which]).tolist():
                which = int(events.which[k])
                names = batch.data[int(behind[k]) : int(batch.ends[which])]
                # Lengths and tags lie between the names, so a pattern that is tied to a name's ends is not tried here.
                if wanted is not LEFT_TOGETHER or wanted.search(names.decode("latin-1")):
                    found.add(int(events.sequence[which]))
    return found


def _earliest(of_ranks: list[Series]) -> Series:
    """Of each call, when the first of a host's ranks left. Those that saw fewer than the most are left out."""
    keys = {key for series in of_ranks for key in series}
    found: Series = {}
    for key in keys:
        rows = [series[key] for series in of_ranks if key in series]
        most = max(map(len, rows))
        found[key] = [int(v) for v in np.min([row for row in rows if len(row) == most], axis=0)]
    return found


# --- the line through their differences -------------------------------------------------------------------------------


def best_fit(reference: Series, other: Series) -> Fit | None:
    """The fit of the call whose pairs agree best; None if there are too few of any."""
    fits = []
    for key in reference.keys() & other.keys():
        fit = fit_pair(np.array(reference[key], np.float64), np.array(other[key], np.float64))
        if fit is not None:
            fit.name = key[0]
            fits.append(fit)
    return min(fits, key=lambda fit: fit.residual_ns / fit.matches**0.5, default=None)


def fit_pair(reference: Times, other: Times) -> Fit | None:
    """What to add to ``other``, times of leaving in ns, so that they are ``reference``'s. None if too few match."""
    pairs = _matched(reference, other)
    if pairs is None:
        return None
    reference, other = pairs
    origin = float(other[len(other) // 2])
    at, difference = other - origin, reference - other
    place = _step(at, difference)
    whole = slice(place) if place > len(at) - place else slice(place, None)
    offset, skew = _line(at[whole], difference[whole])
    if abs(skew) > MOST_SKEW:
        return None
    fit = Fit(offset, skew, origin)
    off = difference - offset - skew * at
    residual = np.abs(off[whole])
    fit.matches = len(residual)
    fit.residual_ns = float(np.median(residual))
    fit.worst_ns = float(np.percentile(residual, 95))
    if place:
        fit.step_ns, fit.step_at_ns = float(np.median(off[:place]) - np.median(off[place:])), float(other[place])
    return fit


def _matched(reference: Times, other: Times) -> tuple[Times, Times] | None:
    """The same calls of both: in order, but one may have begun to record some calls later."""
    best: tuple[float, tuple[Times, Times]] | None = None
    for lag in sorted(range(-MOST_LAG, MOST_LAG + 1), key=abs):
        one, two = reference[max(lag, 0) :], other[max(-lag, 0) :]
        size = min(len(one), len(two))
        if size < LEAST_MATCHES:
            continue
        pair = one[:size], two[:size]
        spread = _spread(*pair)
        # Steps of a loop are alike: only a clear gain says that they were miscounted.
        if best is None or spread < 0.25 * best[0]:
            best = spread, pair
    return None if best is None else best[1]


def _spread(reference: Times, other: Times) -> float:
    difference = np.diff(reference) - np.diff(other)  # neither an offset nor a skew of ppm shows in steps
    return float(np.median(np.abs(difference - np.median(difference)))) + 1.0


def _line(at: Times, value: Times) -> tuple[float, float]:
    """Offset at 0 and slope of the line that least absolute deviations choose: by reweighting."""
    offset, slope = float(np.median(value)), 0.0
    span = float(at[-1] - at[0]) if len(at) else 0.0
    if len(at) < 2 * LEAST_MATCHES or span <= 0:
        return offset, slope
    slope = _slope(at, value)
    offset = float(np.median(value - slope * at))
    for _ in range(50):
        residual = value - offset - slope * at
        weight = 1 / np.maximum(np.abs(residual), 50.0)
        mean_at, mean = np.average(at, weights=weight), np.average(value, weights=weight)
        centred = at - mean_at
        new = float(np.sum(weight * centred * (value - mean)) / max(float(np.sum(weight * centred**2)), 1e-9))
        moved = abs(new - slope) * span
        slope, offset = new, float(mean - new * mean_at)
        if moved < 1.0:
            break
    deviation = _NORMAL * float(np.median(np.abs(value - offset - slope * at)))
    if abs(slope) * span < 3 * deviation * 3.5 / len(at) ** 0.5:  # it may as well be none
        return float(np.median(value)), 0.0
    return offset, slope


def _slope(at: Times, value: Times) -> float:
    """The median slope between points a quarter of them apart: a step in the middle touches few of those."""
    lag = max(len(at) // 4, 1)
    run = at[lag:] - at[:-lag]
    good = run > 0
    return float(np.median((value[lag:] - value[:-lag])[good] / run[good])) if good.any() else 0.0


def _step(at: Times, value: Times) -> int:
    """Before which value they jump; 0 if they do not."""
    size = len(at)
    least = max(3, size // 20)
    if size < 2 * least + 2:
        return 0
    flat = value - _slope(at, value) * at
    cost = float(np.sum(np.abs(flat - np.median(flat))))
    places = np.unique(np.linspace(least, size - least, min(size, 200)).astype(int)).tolist()
    place = min(places, key=lambda k: _cost(flat, k))
    # The grid is coarse for long runs: the exact place is near.
    near = range(max(place - size // 200 - 1, least), min(place + size // 200 + 2, size - least + 1))
    place = min(near, key=lambda k: _cost(flat, k))
    left, right = flat[:place], flat[place:]
    gap = float(np.median(right) - np.median(left))
    deviation = _NORMAL * float(np.median(np.abs(np.r_[left - np.median(left), right - np.median(right)])))
    clear = max(LEAST_STEP_NS, 6 * deviation / min(len(left), len(right)) ** 0.5, 3 * deviation)
    return place if abs(gap) > clear and _cost(flat, place) < 0.7 * cost else 0


def _cost(flat: Times, place: int) -> float:
    left, right = flat[:place], flat[place:]
    return float(np.sum(np.abs(left - np.median(left))) + np.sum(np.abs(right - np.median(right))))
