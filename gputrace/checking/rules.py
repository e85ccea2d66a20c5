"""The rules. Each is a function of a trace that yields violations, and its name, with spaces, is the rule's.

A rule says only what the trace itself shows: what could be meant otherwise is no fault.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from gputrace.checking.violation import MOST_EXAMPLES, Violation, since_start, slice_examples

if TYPE_CHECKING:
    from gputrace.table.columns import Ints
    from gputrace.table.trace import Trace

    Rule = Callable[[Trace], Iterator[Violation]]

#: No span that anybody watches is longer, and no pause between two events: a time beyond is a broken clock's.
ABSURD_NS = 7 * 24 * 3600 * 10**9
#: Wall clocks are slewed by up to 500 ppm; what moved further was set.
SET_NS = 1_000_000
SLEW_PPM = 500
#: Readings of CLOCK_BOOTTIME and CLOCK_MONOTONIC that were interrupted differ by less than a suspend takes.
SUSPEND_NS = 100_000_000

#: By the kind of a problem: what it means for whoever reads the trace.
_UNREAD = {
    "torn": "The file ends before its time: what was written last is not in it.",
    "damaged": "A piece of the file is not as a trace's should be; slices may be missing there.",
    "unreadable": "These events are missing.",
    "bad time": "These events cannot be placed, and are missing.",
    "bad duration": "Nobody can say when these slices ended; they are missing.",
    "bad value": "The counter has gaps there.",
    "no begin": "Slices lost their begin, or two writers shared a track: what is drawn there may be cut wrongly.",
    "no slice": "Arrows that a viewer cannot draw: what they were to join is missing.",
    "undated": "No clock snapshot ties their clock to the trace's: they cannot be placed, and are missing.",
    "no track": "Events of a track that is not described: a viewer may leave them out.",
    "lost": "The tool's buffer ran over while it recorded: slices are missing, and others may be cut wrongly.",
}


def readable(trace: Trace) -> Iterator[Violation]:
    """All of the file could be read."""
    for problem in trace.problems:
        meaning = _UNREAD.get(problem.kind)
        if meaning is not None:
            place = (f"byte {problem.place:,}",) if problem.place >= 0 else ()
            yield Violation("readable", problem.count, problem.what, meaning, examples=place)


def times(trace: Trace) -> Iterator[Violation]:
    """No time is before its clock's beginning, or days away from all the others."""
    every = np.concatenate([table.ts_ns for table in (trace.slices, trace.instants, trace.counters)])
    negative = int(np.count_nonzero(every < 0))
    if negative:
        yield Violation(
            "times",
            negative,
            f"{negative:,} events have a time below zero",
            "They are before their clock began; the trace processor drops them.",
            int(every.min()),
        )
    every = np.sort(every)
    pauses = np.flatnonzero(np.diff(every) > ABSURD_NS)
    if len(pauses):
        first = int(every[pauses[0]])
        days = int(every[pauses[0] + 1] - first) / 86_400e9
        yield Violation(
            "times",
            len(pauses),
            f"a pause of {days:,.0f} days lies between two events",
            "Events of two clocks are mixed: what lies before the pause and what lies behind it cannot be compared.",
            first,
            (since_start(trace, first),),
        )


def durations(trace: Trace) -> Iterator[Violation]:
    """No slice is days long."""
    rows = np.flatnonzero(trace.slices.dur_ns > ABSURD_NS)
    if len(rows):
        yield _of_slices(
            trace,
            "durations",
            rows,
            "last for over a week",
            "Their end was read from another clock, or never: no sum that holds them means anything.",
        )


def finished(trace: Trace) -> Iterator[Violation]:
    """Every slice ended."""
    rows = np.flatnonzero(trace.slices.unfinished)
    if len(rows):
        yield _of_slices(
            trace,
            "finished",
            rows,
            "never ended",
            "The program was inside them when it was killed or when recording stopped, or their ends are missing. They "
            "are drawn to the trace's end.",
        )


def overlaps(trace: Trace) -> Iterator[Violation]:
    """No two slices of a track overlap without one lying in the other."""
    rows = np.flatnonzero(trace.slices.lane > 0)
    if len(rows):
        yield _of_slices(
            trace,
            "overlaps",
            rows,
            "overlap others of their track without lying inside them",
            "The trace processor drops or bends such slices: a viewer shows less than the file holds.",
        )


def arrows(trace: Trace) -> Iterator[Violation]:
    """No arrow leads back in time: nothing starts before what caused it."""
    slices, flows = trace.slices, trace.flows
    if not len(flows):
        return
    ts_ns, device = slices.ts_ns, np.array([track.is_gpu for track in trace.tracks], np.bool_)[slices.track_id]
    source, target = flows.source, flows.target
    if trace.tool == "gputrace":
        # In Perfetto's format an arrow leads from the earlier to the later; ours are all meant from host to device.
        turned = device[source] & ~device[target]
        source, target = np.where(turned, target, source), np.where(turned, source, target)
    early_ns = ts_ns[source] - ts_ns[target]
    launches = ~device[source] & device[target]
    for chosen, what, meaning in (
        (
            launches,
            "start on the device before the host launched them",
            "The device's clock and the host's are tied too loosely there, or to the wrong moment: times of the two "
            "cannot be compared more finely than that.",
        ),
        (
            ~launches,
            "begin before what an arrow says they follow",
            "Their clocks differ, or the arrow joins the wrong slices: it cannot be drawn.",
        ),
    ):
        back = np.flatnonzero(chosen & (early_ns > 0))
        if len(back):
            rows, worst_ns = np.unique(target[back]), int(early_ns[back].max())
            yield _of_slices(trace, "arrows", rows, f"{what}, by up to {worst_ns:,} ns", meaning)


def clocks(trace: Trace) -> Iterator[Violation]:
    """The trace says how its clock is tied to others, and that held."""
    holds_any = len(trace.slices) or len(trace.instants) or len(trace.counters)
    if trace.clock and holds_any and not len(trace.clocks):
        yield Violation(
            "clocks",
            1,
            "it holds no clock snapshot",
            "Nothing says what time of day its times are: it cannot be laid beside a trace of another host.",
        )
    if len(trace.clocks) > 1:
        yield from _clocks_moved(trace)


def _clocks_moved(trace: Trace) -> Iterator[Violation]:
    table = trace.clocks
    passed = np.diff(table.monotonic_ns)
    wall = np.diff(table.realtime_ns) - np.diff(table.boottime_ns)
    for k in np.flatnonzero(np.abs(wall) > SET_NS + passed * SLEW_PPM // 1_000_000).tolist():
        at = int(table.boottime_ns[k])
        yield Violation(
            "clocks",
            1,
            f"the wall clock was set by {wall[k] / 1e9:+.6f} s",
            "Its own times go on evenly, but what time of day they were is not sure to within that.",
            at,
            (f"after {since_start(trace, at)}",),
        )
    asleep = np.diff(table.boottime_ns) - passed
    for k in np.flatnonzero(asleep > SUSPEND_NS).tolist():
        at = int(table.boottime_ns[k])
        yield Violation(
            "clocks",
            1,
            f"the machine was suspended for {asleep[k] / 1e9:.3f} s",
            "Windows that were open meanwhile are longer than the work in them.",
            at,
            (f"after {since_start(trace, at)}",),
        )


#: By the fact in a recording's own report: what it counts, and what that means.
_REPORTED = {
    "dropped": (
        "spans dropped while it was recorded",
        "Memory's bound was reached: what the rows show there is too little. A larger --max-size keeps more.",
    ),
    "capture_skipped": (
        "windows left out during graph capture",
        "Nothing can be recorded inside a capture: their GPU time is that of the graph's replay.",
    ),
    "out_of_order": (
        "edges out of order",
        "They were moved to where the one before them on their row was: durations there are off.",
    ),
    "clock_violations": (
        "windows placed before their own launch",
        "The device's clock cannot be trusted there; each such window says so.",
    ),
    "stopped": (
        "processes that stopped tracing midway",
        "Their rows end there, though they went on: what `record` said at its end says why.",
    ),
    "silent": (
        "processes that left nothing of what they recorded",
        "They were killed, or left by os._exit or exec, within moments of their first span.",
    ),
    "failed": (
        "windows that could not be recorded or read",
        "The driver refused: their GPU time is missing, and each says why.",
    ),
}


def reported(trace: Trace) -> Iterator[Violation]:
    """The recording itself counted no loss."""
    if trace.tool != "gputrace":
        return
    for fact, (what, meaning) in _REPORTED.items():
        count = trace.metadata.get(fact, 0)
        if isinstance(count, int) and count > 0:
            yield Violation("reported", count, f"{what}: {count:,}", meaning)


def placed(trace: Trace) -> Iterator[Violation]:
    """Every GPU window that was recorded is on its stream's row, at a time with a bound."""
    missing: Counter[str] = Counter()
    for _, why in trace.slices.args.values("gpu"):
        missing[str(why)] += 1
    if missing:
        yield Violation(
            "placed",
            missing.total(),
            f"{missing.total():,} windows have no GPU time",
            "Their host slices are whole; their streams' rows lack what they did.",
            examples=tuple(why for why, _ in missing.most_common(MOST_EXAMPLES)),
        )


#: In the order they are told.
RULES: tuple[Rule, ...] = (
    readable,
    times,
    durations,
    finished,
    overlaps,
    arrows,
    clocks,
    reported,
    placed,
)


def check(trace: Trace) -> list[Violation]:
    """What is wrong with a trace, rule by rule. Raises nothing for one that `gputrace.read` could read."""
    return [violation for rule in RULES for violation in rule(trace)]


def _of_slices(trace: Trace, rule: str, rows: Ints, what: str, meaning: str) -> Violation:
    many = "1 slice" if len(rows) == 1 else f"{len(rows):,} slices"
    first_ns = int(trace.slices.ts_ns[rows].min())
    return Violation(rule, len(rows), f"{many} {what}", meaning, first_ns, slice_examples(trace, rows))
