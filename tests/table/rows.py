"""A trace as `gputrace.read` gives it and as the engine draws it, in the same words."""

from __future__ import annotations

from collections import Counter as Count
from typing import Any

from gputrace.exporters.chrome import Chrome
from gputrace.exporters.perfetto import Perfetto

from gputrace.table.trace import Trace
from tests.engine import Engine, slices
from tests.exporters.recordings import args_of, name_of
from tests.exporters.recordings import args_seen as as_seen


def of_trace(trace: Trace, base_ns: int = 0) -> dict[str, Any]:
    exporter = Perfetto if trace.format == "perfetto" else Chrome
    table, instants = trace.slices, trace.instants
    lines = [
        (
            int(table.ts_ns[k]) - base_ns,
            int(table.dur_ns[k]),
            name_of(exporter, table.names[k]),
            repr(sorted(args_of(exporter, table.args[k]).items())),
        )
        for k in range(len(table))
    ]
    moments = [
        (
            int(instants.ts_ns[k]) - base_ns,
            0,
            name_of(exporter, instants.names[k]),
            repr(sorted(args_of(exporter, instants.args[k]).items())),
        )
        for k in range(len(instants))
    ]
    short = [line[:3] for line in lines]
    return {
        "lines": Count(lines + moments),
        "depths": Count((*short[k], int(table.depth[k])) for k in range(len(table)) if table.dur_ns[k]),
        "parents": Count(
            (short[k], short[parent] if (parent := int(table.parent[k])) >= 0 else None)
            for k in range(len(table))
            if table.dur_ns[k]
        ),
        "arrows": Count(
            (short[a], short[b]) for a, b in zip(trace.flows.source.tolist(), trace.flows.target.tolist(), strict=True)
        ),
        "samples": Count(
            (t - base_ns, _digits(v))
            for t, v in zip(trace.counters.ts_ns.tolist(), trace.counters.value.tolist(), strict=True)
        ),
    }


def of_engine(engine: Engine) -> dict[str, Any]:
    drawn = {each.id: each for each in slices(engine)}
    parents = {row["id"]: row["parent_id"] for row in engine.query("select id, parent_id from slice")}

    def short(id: int) -> tuple[int, int, str]:
        each = drawn[id]
        return each.ts, each.dur, each.name or ""

    return {
        "lines": Count((*short(id), repr(sorted(as_seen(each.args).items()))) for id, each in drawn.items()),
        "depths": Count((*short(id), each.depth) for id, each in drawn.items() if each.dur),
        "parents": Count(
            (short(id), None if parents[id] is None else short(parents[id])) for id, each in drawn.items() if each.dur
        ),
        "arrows": Count((short(id), short(to)) for id, each in drawn.items() for to in each.flows_to),
        "samples": Count((row["ts"], _digits(row["value"])) for row in engine.query("select ts, value from counter")),
    }


def paths_of_trace(trace: Trace) -> Count[Any]:
    """How many slices each row has, by its path in the engine's words."""
    found: Count[Any] = Count()
    counts = Count(trace.slices.track_id.tolist()) + Count(trace.instants.track_id.tolist())
    for id, count in counts.items():
        found[path_of(trace, id)] += count
    return found


def path_of(trace: Trace, id: int) -> tuple[str, ...]:
    track = trace.tracks[id]
    if track.kind == "thread":
        return f"{track.process} {track.pid}", f"{track.name} {track.tid}"
    if track.kind == "process":
        return (f"{track.process} {track.pid}",)
    above = path_of(trace, track.parent) if track.parent >= 0 else (f"{track.process} {track.pid}",)
    return *above, name_of(Perfetto, track.name)


def paths_of_engine(engine: Engine) -> Count[Any]:
    return Count(each.track for each in slices(engine))


def _digits(value: float | None) -> Any:
    return as_seen({"": float("nan") if value is None else float(value)})[""]
