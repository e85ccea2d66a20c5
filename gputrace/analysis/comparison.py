"""What changed between two sets of runs: which spans got slower or faster, and which are new or gone.

Of a run few figures are kept, so any number of runs can be compared. What differs from run to run (the machine's state,
its neighbours, where memory lies) is in the noise only where a side has several runs: their medians are compared then.
Of one run a side, medians of stretches of it are, which tell less the more alike neighbours are: if each span counted
as a sample of its own, any drift would be a change. Logarithms are compared, as times vary by factors.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from gputrace.analysis.spans import Spans
from gputrace.analysis.ttest import compare, corrected, likeness

if TYPE_CHECKING:
    from gputrace.table.columns import Floats, Ints
    from gputrace.table.trace import Trace

SLOWER, FASTER, SAME, UNTESTED, NEW, GONE = "slower", "faster", "same", "untested", "new", "gone"

#: So often, of what is called slower or faster, nothing has changed.
FALSE_ALARMS = 0.05
#: Medians of whole ns that are this near may be of the same durations.
_STEP_NS = 1.0
#: A run's durations are cut into so many stretches, where they are twice as many.
_STRETCHES = 10


@dataclass
class _Span:
    """Of one name on one side, a figure a run: how often, the median in ns, and medians of stretches."""

    counts: list[int] = field(default_factory=list)
    medians: list[float] = field(default_factory=list)
    stretches: list[Floats] = field(default_factory=list)


class Runs:
    """One side of a comparison: traces of any number of runs. Spans go by name, and by whether a GPU or the host ran
    them: rows' names change from run to run.
    """

    def __init__(self) -> None:
        self.count = 0
        self.spans: dict[tuple[str, str], _Span] = {}

    def add(self, trace: Trace) -> int:
        """A run. Slices that never ended are left out. Returns how many did."""
        self.count += 1
        slices = trace.slices
        spans = Spans()
        span = spans.add(trace)
        keys: dict[tuple[str, str], int] = {}
        number = np.array([keys.setdefault((place.side, name), len(keys)) for place, name in spans.keys], np.int32)
        rows = np.flatnonzero(~slices.unfinished)
        if not len(rows):
            return 0
        group = number[span[rows]]
        order = np.argsort(group, kind="stable")  # by span, and of each in order of time
        durations = np.split(slices.dur_ns[rows][order], np.cumsum(np.bincount(group, minlength=len(keys)))[:-1])
        for key, dur_ns in zip(keys, durations, strict=True):
            if len(dur_ns):
                found = self.spans.setdefault(key, _Span())
                found.counts.append(len(dur_ns))
                found.medians.append(float(np.median(dur_ns)))
                found.stretches.append(_stretches(dur_ns))
        return len(rows)

    def merge(self, other: Runs) -> None:
        """Take the runs of another, as if they had been added here, after all that were."""
        self.count += other.count
        for key, theirs in other.spans.items():
            mine = self.spans.setdefault(key, _Span())
            mine.counts += theirs.counts
            mine.medians += theirs.medians
            mine.stretches += theirs.stretches


def _stretches(dur_ns: Ints) -> Floats:
    length = len(dur_ns) // _STRETCHES
    if length < 2:
        return dur_ns.astype(np.float64)
    medians: Floats = np.median(dur_ns[: length * _STRETCHES].reshape(_STRETCHES, length), axis=1)
    return medians


@dataclass
class Change:
    """A span on both sides, or on one.

    ``base_ns`` and ``new_ns`` are medians, of several runs the median one; NaN on the side that has none. ``change`` is
    by what share the new one is larger, ``low`` to ``high`` what it is likely to lie between. ``lost_ns`` is what it
    costs a run more than before: medians times how often it runs. ``false_alarm`` is the share of changes called real
    down to this one that are none. The counts are a run's, on average.
    """

    side: str
    name: str
    verdict: str
    base_ns: float
    new_ns: float
    change: float
    low: float
    high: float
    false_alarm: float
    lost_ns: float
    base_count: float
    new_count: float


def changes(base: Runs, new: Runs) -> list[Change]:
    """Every span of either side, the most time lost first. Both must have a run."""
    found: list[Change] = []
    p: list[float] = []
    tested: list[Change] = []
    for key in dict.fromkeys((*base.spans, *new.spans)):
        before, after = base.spans.get(key), new.spans.get(key)
        each = _change(key, before, after, base.count, new.count)
        found.append(each)
        if before is None or after is None:
            continue
        by_run = len(before.medians) + len(after.medians) > 2
        first, second = (_logarithms(s.medians if by_run else s.stretches[0]) for s in (before, after))
        test = compare(first, second, 0.0 if by_run else likeness(first, second))
        if test is None:
            continue
        low, high = (float(np.expm1(min(value, 700))) for value in (test.low, test.high))
        # Those of stretches may lie beside the one of all that is shown: then less is known than they say.
        each.low, each.high = min(low, each.change), max(high, each.change)
        p.append(test.p)
        tested.append(each)
        # The medians that are shown must say the same as the test, by more than a clock's step.
        agrees = np.sign(test.difference) == np.sign(each.change) and abs(each.new_ns - each.base_ns) > _STEP_NS
        each.verdict = SAME if not agrees else SLOWER if test.difference > 0 else FASTER
    for each, false_alarm in zip(tested, corrected(p).tolist(), strict=True):
        each.false_alarm = false_alarm
        if false_alarm > FALSE_ALARMS:
            each.verdict = SAME
    return sorted(found, key=lambda each: -each.lost_ns)


def _logarithms(durations: Floats | list[float]) -> Floats:
    found: Floats = np.log(np.maximum(durations, 1.0))  # one of 0 ns is shorter than any clock tells
    return found


def _change(key: tuple[str, str], before: _Span | None, after: _Span | None, base_runs: int, new_runs: int) -> Change:
    side, name = key
    verdict = NEW if before is None else GONE if after is None else UNTESTED
    base_ns, new_ns = (float(np.median(s.medians)) if s else float("nan") for s in (before, after))
    spent = [
        sum(count * ns for count, ns in zip(s.counts, s.medians, strict=True)) / runs if s else 0.0
        for s, runs in ((before, base_runs), (after, new_runs))
    ]
    nan = float("nan")
    return Change(
        side,
        name,
        verdict,
        base_ns,
        new_ns,
        new_ns / base_ns - 1 if base_ns else nan,
        nan,
        nan,
        nan,
        spent[1] - spent[0],
        sum(before.counts) / base_runs if before else 0.0,
        sum(after.counts) / new_runs if after else 0.0,
    )
