"""A summary as tables for people: which figures stand where, and under what head."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gputrace.analysis.tables import COUNT, NS, SHARE, TEXT, Table, duration

if TYPE_CHECKING:
    from gputrace.analysis.gpu import Gap
    from gputrace.analysis.steps import Step
    from gputrace.analysis.summary import Summary


def tables(summary: Summary, top: int) -> Iterator[Table]:
    """Those that have rows, each with ``top`` at most."""
    yield _traces(summary, top)
    for table in (
        _steps(summary, top),
        _step_rows(summary, top),
        _devices(summary),
        _gaps(summary, top),
        _delays(summary),
        _waits(summary, top),
        _ranks(summary, top),
        _spans(summary, top),
    ):
        if table.rows:
            yield table


def _table(
    title: str,
    columns: Sequence[tuple[str, str]],
    rows: Iterable[Sequence[Any]],
    top: int = 0,
    spare: Sequence[str] = (),
) -> Table:
    found = list(rows)
    kept = found[:top] if top else found
    return Table(title, columns, kept, len(found) - len(kept), spare)


def _traces(summary: Summary, top: int) -> Table:
    columns = [
        ("trace", TEXT),
        ("lasts", NS),
        ("slices", COUNT),
        ("unfinished", COUNT),
        ("not read", COUNT),
        ("dropped", COUNT),
        ("failed windows", COUNT),
    ]
    rows = (
        (t.path, t.duration_ns, t.slices, t.unfinished, t.problems, t.dropped, t.failed_windows) for t in summary.traces
    )
    return _table("Traces", columns, rows, top)


def _steps(summary: Summary, top: int) -> Table:
    """Of each thread that has steps, what a step takes."""
    columns = [
        ("steps of", TEXT),
        ("steps", COUNT),
        ("host median", NS),
        ("host p95", NS),
        ("host max", NS),
        ("GPU median", NS),
        ("GPU p95", NS),
        ("GPU max", NS),
        ("waits median", NS),
    ]
    by_place: dict[str, list[tuple[int, int, int]]] = {}
    for step in summary.steps:
        by_place.setdefault(step.place, []).append((step.duration_ns, step.gpu_busy_ns, step.wait_ns))
    rows: list[Sequence[Any]] = []
    for place, figures in by_place.items():
        median, p95, most = (np.quantile(np.array(figures), share, axis=0) for share in (0.5, 0.95, 1))
        rows.append((place, len(figures), median[0], p95[0], most[0], median[1], p95[1], most[1], median[2]))
    return _table("Steps", columns, rows, top, ("GPU p95", "host p95", "GPU max", "waits median", "host max"))


def _step_rows(summary: Summary, top: int) -> Table:
    columns = [
        ("step", TEXT),
        ("of", TEXT),
        ("host", NS),
        ("GPU busy", NS),
        ("windows", COUNT),
        ("waits", NS),
    ]
    slowest = sorted(summary.steps, key=lambda step: -max(step.duration_ns, step.gpu_busy_ns))
    rows = ((_numbered(s), s.place, s.duration_ns, s.gpu_busy_ns, s.windows, s.wait_ns) for s in slowest)
    return _table("Slowest steps", columns, rows, top, ("windows", "waits"))


def _numbered(step: Step) -> str:
    """ProfilerStep#7 has a number in its name."""
    return step.name if step.name[-1:].isdecimal() else f"{step.name} {step.args.get('number', step.number)}"


def _devices(summary: Summary) -> Table:
    columns = [
        ("GPU", TEXT),
        ("stream", TEXT),
        ("busy", SHARE),
        ("busy for", NS),
        ("idle for", NS),
        ("windows", COUNT),
        ("failed", COUNT),
        ("unfinished", COUNT),
    ]
    rows = (
        (
            use.device,
            use.stream or "all",
            use.busy_ns / (use.end_ns - use.begin_ns) if use.end_ns > use.begin_ns else None,
            use.busy_ns,
            use.idle_ns,
            use.windows,
            use.failed,
            use.unfinished,
        )
        for use in summary.devices
    )
    return _table("GPUs", columns, rows, spare=("idle for",))


def _gaps(summary: Summary, top: int) -> Table:
    columns = [
        ("GPU", TEXT),
        ("idle for", NS),
        ("between", TEXT),
        ("next launched after", NS),
        ("host meanwhile", TEXT),
    ]
    rows = (
        (gap.device, gap.duration_ns, f"{gap.after} … {gap.before}", gap.launch_ns, _meanwhile(gap))
        for gap in sorted(summary.gaps, key=lambda gap: -gap.duration_ns)
    )
    return _table("Longest idle gaps", columns, rows, top, ("next launched after",))


def _meanwhile(gap: Gap) -> str:
    return ", ".join(f"{each.name} {duration(each.ns)}" for each in gap.host) or "no span"


def _delays(summary: Summary) -> Table:
    columns = [
        ("GPU", TEXT),
        ("stream", TEXT),
        ("windows", COUNT),
        ("median", NS),
        ("p95", NS),
        ("p99", NS),
        ("min", NS),
        ("max", NS),
        ("before launch", COUNT),
    ]
    rows = (
        (d.device, d.stream, d.count, d.median_ns, d.p95_ns, d.p99_ns, d.min_ns, d.max_ns, d.negative)
        for d in summary.delays
    )
    return _table("From launch to start", columns, rows, spare=("min", "p99", "p95"))


def _waits(summary: Summary, top: int) -> Table:
    columns = [("thread", TEXT), ("waits", COUNT), ("waited", NS)]
    rows = ((wait.place, wait.count, wait.total_ns) for wait in sorted(summary.waits, key=lambda w: -w.total_ns))
    return _table("Host waiting for devices", columns, rows, top)


def _ranks(summary: Summary, top: int) -> Table:
    columns = [
        ("span", TEXT),
        ("on", TEXT),
        ("ranks", COUNT),
        ("late", TEXT),
        ("longest on", TEXT),
        ("its total", NS),
        ("shortest on", TEXT),
        ("its total", NS),
        ("spread", SHARE),
    ]
    rows = (
        (
            r.name,
            r.side,
            len(r.total_ns),
            f"rank {r.late}",
            f"rank {r.longest}",
            r.total_ns[r.longest],
            f"rank {r.shortest}",
            r.total_ns[r.shortest],
            r.spread,
        )
        for r in summary.ranks
    )
    return _table("Ranks apart", columns, rows, top, ("its total", "ranks"))


def _spans(summary: Summary, top: int) -> Table:
    columns = [
        ("span", TEXT),
        ("track", TEXT),
        ("count", COUNT),
        ("total", NS),
        ("self", NS),
        ("share", SHARE),
        ("mean", NS),
        ("median", NS),
        ("p95", NS),
        ("p99", NS),
        ("min", NS),
        ("max", NS),
        ("unfinished", COUNT),
    ]
    rows = (
        (
            s.name,
            s.track,
            s.count,
            s.total_ns,
            s.self_ns,
            s.share,
            s.mean_ns,
            s.median_ns,
            s.p95_ns,
            s.p99_ns,
            s.min_ns if s.count else None,
            s.max_ns if s.count else None,
            s.unfinished,
        )
        for s in summary.spans
    )
    return _table("Spans", columns, rows, top, ("min", "mean", "p99", "share", "max", "p95", "self", "unfinished"))
