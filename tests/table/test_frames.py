"""The same rows in Arrow, pandas and Polars as in the columns."""

from __future__ import annotations

import importlib
import json
import math
from pathlib import Path
from typing import Any

import pytest

import gputrace
from gputrace.errors import UsageError
from gputrace.table.frames import TABLES
from gputrace.table.trace import Trace
from tests.merging.making import Host, program, write_trace


@pytest.fixture
def trace(tmp_path: Path) -> Trace:
    path = write_trace(tmp_path / "t.pftrace", Host("h"), program(0, 10), program(1, 11, name="rank 2 · node1 · 11"))
    return gputrace.read(path)


def rows_of(frame: Any) -> list[dict[str, Any]]:
    if hasattr(frame, "to_pylist"):
        return list(frame.to_pylist())
    if hasattr(frame, "to_dicts"):
        return list(frame.to_dicts())
    return [
        {k: None if v is None or str(v) == "<NA>" or v != v else v for k, v in row.items()}
        for row in frame.to_dict("records")
    ]


@pytest.mark.parametrize("kind", ["arrow", "pandas", "polars"])
def test_every_slice_is_a_row(trace: Trace, kind: str) -> None:
    rows = rows_of(getattr(trace, f"to_{kind}")())
    slices = trace.slices
    assert len(rows) == len(slices) > 0
    for k, row in enumerate(rows):
        track = trace.tracks[int(slices.track_id[k])]
        assert row == {
            "ts_ns": slices.ts_ns[k],
            "dur_ns": slices.dur_ns[k],
            "name": slices.names[k],
            "category": "",
            "depth": slices.depth[k],
            "parent": None if slices.parent[k] < 0 else slices.parent[k],
            "lane": 0,
            "track_id": track.id,
            "track": str(track),
            "kind": track.kind,
            "process": track.process,
            "pid": track.pid,
            "tid": track.tid,
            "rank": 2 if track.pid == 11 else None,
            "host": "node1" if track.pid == 11 else "",
            "args": json.dumps(slices.args[k]) if slices.args[k] else None,
        }


@pytest.mark.parametrize("table", TABLES)
def test_all_three_agree(trace: Trace, table: str) -> None:
    arrow, pandas, polars = (rows_of(getattr(trace, f"to_{kind}")(table)) for kind in ("arrow", "pandas", "polars"))
    assert arrow == pandas == polars
    if table != "instants":
        assert arrow
    assert not any(isinstance(v, float) and math.isnan(v) for row in arrow for v in row.values())


def test_what_never_ended_has_no_duration(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(
        '[{"ph":"B","name":"\\ud800x","ts":1,"pid":1,"tid":1},{"ph":"i","name":"i","ts":2,"pid":1,"tid":1}]'
    )
    trace = gputrace.read(path)
    for kind in ("arrow", "pandas", "polars"):
        [row] = rows_of(getattr(trace, f"to_{kind}")())
        assert row["dur_ns"] is None
        assert row["name"] == "\ufffdx"
        [row] = rows_of(getattr(trace, f"to_{kind}")("instants"))
        assert row["name"] == "i"


def test_no_such_table_and_no_such_package(trace: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="no table 'slice': take one of slices, instants"):
        trace.to_arrow("slice")

    def missing(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    for kind, package in (("arrow", "pyarrow"), ("pandas", "pandas"), ("polars", "polars")):
        with pytest.raises(UsageError, match=rf"takes {package}, .*pip install 'gputrace\[{kind}\]'"):
            getattr(trace, f"to_{kind}")()
