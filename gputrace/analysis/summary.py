"""A summary of traces: every figure of it, as rows of plain numbers. It knows no output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from gputrace.analysis.gpu import Delay, Devices, Gap, Use
from gputrace.analysis.host import WAITS, Host, Wait
from gputrace.analysis.places import places
from gputrace.analysis.ranks import RankSpread, rank_spreads
from gputrace.analysis.spans import Spans
from gputrace.analysis.statistics import Grouped
from gputrace.analysis.steps import NAMES, Step, steps
from gputrace.table.trace import matcher, overlapping, tracks_like

if TYPE_CHECKING:
    from gputrace.analysis.places import Place
    from gputrace.table.columns import Flags, Ids
    from gputrace.table.trace import Patterns, Trace


@dataclass
class Options:
    """What is told, and how much of it.

    ``names`` and ``tracks`` are patterns as `Trace.select` takes them: of spans by name, and of whatever lies on a
    track by track. They choose what is told, and change no figure: a GPU is as busy whichever of its windows are asked
    for. ``start_ns`` and ``end_ns`` count from each trace's begin. ``waits`` and ``steps`` are patterns of names;
    ``gaps`` how many of each device are told.
    """

    names: Patterns | None = None
    tracks: Patterns | None = None
    start_ns: int | None = None
    end_ns: int | None = None
    by_step: bool = False
    waits: Sequence[str] = WAITS
    steps: Sequence[str] = NAMES
    gaps: int = 5


@dataclass
class SpanRow:
    """A span on a row of the trace. Statistics are of slices that ended, in ns; NaN where none did.

    ``share`` is its self time as a part of all self time on its row, whichever spans are told.
    """

    track: str
    name: str
    side: str
    rank: int
    count: int
    unfinished: int
    total_ns: int
    self_ns: int
    share: float
    mean_ns: float
    median_ns: float
    p95_ns: float
    p99_ns: float
    min_ns: int
    max_ns: int


@dataclass
class TraceRow:
    """A file: what wrote it, how long it lasts, and what is not in it. Counts of gputrace's own are None elsewhere."""

    path: str
    tool: str
    duration_ns: int
    slices: int
    unfinished: int
    problems: int
    dropped: int | None
    failed_windows: int | None


@dataclass
class Summary:
    """Rows of each kind; of several traces, one trace's after another's. Spans are the longest first."""

    traces: list[TraceRow] = field(default_factory=list)
    spans: list[SpanRow] = field(default_factory=list)
    devices: list[Use] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    delays: list[Delay] = field(default_factory=list)
    waits: list[Wait] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    ranks: list[RankSpread] = field(default_factory=list)

    def as_dict(self) -> dict[str, list[dict[str, Any]]]:
        """All of it, in types that JSON has."""
        made = asdict(self)
        for kind, derived in (
            ("devices", ("idle_ns",)),
            ("gaps", ("duration_ns",)),
            ("ranks", ("lost_ns", "spread")),
        ):
            for row, each in zip(made[kind], getattr(self, kind), strict=True):
                row |= {name: getattr(each, name) for name in derived}
        return made


class Summarizer:
    """Takes traces one at a time, so that no two need be in memory together; then sums up."""

    def __init__(self, options: Options | None = None) -> None:
        self._options = options or Options()
        self._spans = Spans()
        #: By a row's label, the self time of all spans on it.
        self._on_row: dict[str, int] = {}
        self._found = Summary()

    def add(self, trace: Trace) -> int:
        """What a trace holds; of a part of it, where options say so. Returns how many slices that is."""
        options, found = self._options, self._found
        found.traces.append(_trace_row(trace))
        start_ns, end_ns = (None if ns is None else trace.start_ns + ns for ns in (options.start_ns, options.end_ns))
        slices = trace.slices
        of_track, rows = places(trace)
        keep = in_time = overlapping(slices.ts_ns, slices.end_ns, start_ns, end_ns)
        asked = np.ones(len(rows), np.bool_)
        if options.tracks is not None:
            wanted = tracks_like(trace.tracks, options.tracks)
            keep = keep & wanted[slices.track_id]
            asked = np.bincount(of_track[wanted], minlength=len(rows)) > 0
        if options.names is not None:
            like = matcher(options.names)
            named = np.array([like(text) for text in slices.strings.texts], np.bool_)
            keep = keep & (named[slices.name_id] if len(named) else False)
        self._spans.add(trace, keep)
        self._add_rows(trace, in_time, of_track, rows)
        devices = Devices(trace, of_track, rows, (start_ns, end_ns), asked)
        host = Host(trace, of_track, rows)
        found.devices += devices.use()
        found.gaps += devices.gaps(host, options.gaps)
        found.delays += devices.delays()
        found.waits += host.waits(options.waits, in_time & asked[of_track[slices.track_id]])
        if options.by_step:
            waiting = host.waiting(options.waits)
            each = steps(trace, of_track, rows, devices, waiting, asked, options.steps)
            begin_ns = np.array([step.begin_ns for step in each], np.int64)
            lasts_ns = np.array([step.duration_ns for step in each], np.int64)
            there = overlapping(begin_ns, begin_ns + lasts_ns, start_ns, end_ns)
            found.steps += [each[k] for k in np.flatnonzero(there).tolist()]
        return int(np.count_nonzero(keep))

    def _add_rows(self, trace: Trace, in_time: Flags, of_track: Ids, rows: list[Place]) -> None:
        slices = trace.slices
        ended = np.flatnonzero(in_time & ~slices.unfinished)
        own = np.zeros(len(rows), np.int64)
        np.add.at(own, of_track[slices.track_id[ended]], slices.self_ns[ended])
        for place, self_ns in zip(rows, own.tolist(), strict=True):
            self._on_row[place.label] = self._on_row.get(place.label, 0) + self_ns

    def merge(self, other: Summarizer) -> None:
        """Take what another was given, as if it had been given here, after all that was."""
        self._spans.merge(other._spans)
        for label, self_ns in other._on_row.items():
            self._on_row[label] = self._on_row.get(label, 0) + self_ns
        for part in fields(Summary):
            getattr(self._found, part.name).extend(getattr(other._found, part.name))

    @property
    def approximate(self) -> bool:
        """Are quantiles told to within `spans.PRECISION` only, as there are more durations than are kept?"""
        return self._spans.approximate

    def summary(self) -> Summary:
        self._found.spans = _span_rows(self._spans, self._on_row)
        self._found.ranks = rank_spreads(self._spans)
        return self._found


def _trace_row(trace: Trace) -> TraceRow:
    stated = trace.metadata if trace.tool == "gputrace" else {}
    unfinished = int(np.count_nonzero(trace.slices.unfinished))
    problems = sum(problem.count for problem in trace.problems)
    return TraceRow(
        trace.path,
        trace.tool,
        trace.duration_ns,
        len(trace.slices),
        unfinished,
        problems,
        _count(stated.get("dropped")),
        _count(stated.get("failed")),
    )


def _count(value: object) -> int | None:
    return value if isinstance(value, int) else None


def _span_rows(spans: Spans, on_row: dict[str, int]) -> list[SpanRow]:
    id, dur_ns, times = spans.durations()
    by_span = Grouped(id, dur_ns, len(spans), times)
    own = spans.self_ns
    share = own / np.maximum(np.array([on_row[place.label] for place, _ in spans.keys], np.int64), 1)
    with np.errstate(invalid="ignore"):
        mean = spans.total_ns / spans.count
    median, p95, p99 = (by_span.quantile(q) for q in (0.5, 0.95, 0.99))
    found = [
        SpanRow(
            place.label,
            name,
            place.side,
            place.rank,
            int(spans.count[k]),
            int(spans.unfinished[k]),
            int(spans.total_ns[k]),
            int(own[k]),
            float(share[k]),
            float(mean[k]),
            float(median[k]),
            float(p95[k]),
            float(p99[k]),
            int(spans.min_ns[k]),
            int(spans.max_ns[k]),
        )
        for k, (place, name) in enumerate(spans.keys)
    ]
    return sorted(found, key=lambda each: -each.total_ns)
