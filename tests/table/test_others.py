"""Chrome's JSON of other tools, read: what the engine draws of it, and what it does not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import gputrace
from gputrace.reading.chrome import time_ns
from gputrace.table.trace import Trace
from tests.engine import Engine
from tests.merging.test_chrome import KINETO, kineto
from tests.table.rows import of_engine, of_trace

REAL_KINETO = Path(__file__).parent.parent / "merging" / "kineto.json"


def written(path: Path, events: list[dict[str, Any]]) -> Trace:
    path.write_text(json.dumps({"traceEvents": events}))
    return gputrace.read(path)


def slice(name: str, ts: Any, dur: float, tid: Any = 1, **more: Any) -> dict[str, Any]:
    return {"ph": "X", "name": name, "ts": ts, "dur": dur, "pid": 7, "tid": tid, **more}


def seen(trace: Trace) -> list[tuple[Any, ...]]:
    slices = trace.slices
    columns = (slices.names, slices.ts_ns, slices.dur_ns, slices.depth, slices.lane)
    return [(name, *map(int, rest)) for name, *rest in zip(*columns, strict=True)]


def test_a_real_torch_profile() -> None:
    trace = gputrace.read(REAL_KINETO)
    found, drawn = of_trace(trace), of_engine(Engine(REAL_KINETO))
    # The engine knows args of args by dotted names, and times of 13 digits as doubles alone: 1 ns off at most.
    events = [e for e in json.loads(REAL_KINETO.read_text())["traceEvents"] if e["ph"] == "X"]
    assert len(trace.slices) == len(events) > 10
    assert sorted(trace.slices.names) == sorted(e["name"] for e in events)
    assert len(found["arrows"]) == len(drawn["arrows"])
    assert [key[3] for key in sorted(found["depths"])] == [key[3] for key in sorted(drawn["depths"])]
    assert all(
        abs(a - b) <= 1 and abs(c - d) <= 1
        for (a, c, *_), (b, d, *_) in zip(
            sorted(found["lines"].elements()), sorted(drawn["lines"].elements()), strict=True
        )
    )
    assert trace.tool == "torch.profiler"


def test_a_gpu_in_a_profile(tmp_path: Path) -> None:
    path = kineto(tmp_path / "p.json", KINETO)
    trace = gputrace.read(path)
    assert trace.metadata["host_name"] == "node0"
    assert {str(t) for t in trace.tracks if t.is_gpu} == {"python/GPU 0/stream 7"}
    slices, flows = trace.slices, trace.flows
    arrows = {(slices.names[a], slices.names[b]) for a, b in zip(flows.source, flows.target, strict=True)}
    assert ("launch" in {a for a, _ in arrows}) == (len(flows) > 0)
    assert of_trace(trace)["arrows"] == of_engine(Engine(path))["arrows"]


def test_overlapping_slices_are_all_there(tmp_path: Path) -> None:
    trace = written(tmp_path / "t", [slice("a", 0, 10), slice("b", 5, 10), slice("in b", 6, 2), slice("c", 7, 20)])
    assert seen(trace) == [
        ("a", 0, 10_000, 0, 0),
        ("b", 5_000, 10_000, 0, 1),
        ("in b", 6_000, 2_000, 1, 0),
        ("c", 7_000, 20_000, 0, 2),
    ]
    assert trace.slices.parent.tolist() == [-1, -1, 0, -1]


def test_begins_ends_and_whole_slices_on_one_track(tmp_path: Path) -> None:
    events = [
        {"ph": "B", "name": "step", "ts": 0, "pid": 7, "tid": 1, "args": {"n": 1}},
        slice("op", 1, 3),
        {"ph": "B", "name": "inner", "ts": 1.5, "pid": 7, "tid": 1},
        {"ph": "E", "ts": 2.25, "pid": 7, "tid": 1, "args": {"end": True}},
        {"ph": "i", "s": "t", "name": "now", "ts": 3, "pid": 7, "tid": 1},
        {"ph": "E", "ts": 9, "pid": 7, "tid": 1, "args": {"m": 2}},
        {"ph": "B", "name": "never ends", "ts": 10, "pid": 7, "tid": 1},
        slice("after", 11, 1),
    ]
    path = tmp_path / "t"
    trace = written(path, events)
    assert of_trace(trace) == of_engine(Engine(path))
    assert trace.slices.args[0] == {"n": 1, "m": 2}


def test_ids_and_times_as_text(tmp_path: Path) -> None:
    events = [
        {"ph": "M", "name": "process_name", "pid": "7", "args": {"name": "worker"}},
        {"ph": "M", "name": "thread_name", "pid": "7", "tid": "9", "args": {"name": "main"}},
        {"ph": "X", "name": "a", "ts": "1790000000000000.123", "dur": "1.5", "pid": "7", "tid": "9"},
        {"ph": "X", "name": "b", "ts": 1790000000000001.5, "dur": 0.25, "pid": 7, "tid": 9},
        {"ph": "X", "name": "c", "ts": 1, "dur": 1, "pid": 7.0, "tid": "a name"},
    ]
    trace = written(tmp_path / "t", events)
    assert [(name, ts, dur) for name, ts, dur, *_ in seen(trace)] == [
        ("c", 1_000, 1_000),
        ("a", 1_790_000_000_000_000_123, 1_500),
        ("b", 1_790_000_000_000_001_500, 250),
    ]
    assert [(t.kind, t.name, t.pid, t.tid) for t in trace.tracks] == [
        ("thread", "main", 7, 9),
        ("thread", "a name", 7, 0),
    ]


@pytest.mark.parametrize(
    "texts",
    [
        ["1790000000000000.123", "1790000000000001.000", "1790000000000002.999"],  # as most tools write them
        ["4611686018427387.903", "4611686018427387.904"],  # the last is more than a column holds
        ["9790000000000000.123", "1790000000000001.456"],
        ["1790000000000000.1234", "179000000000001.456"],  # as many letters in all as two of the usual kind
        ["1790000000000000,123", "1790000000000001.456"],
        ["1790000000000000.123,1790000000000000.123", "1790000000000001.456"],
        ["-790000000000000.123", "1790000000000001.456"],
        ["1790000000000000.12٣", "1790000000000001.456"],
        [" 90000000000000.1235", "1790000000000001.456"],
        [".123", ".456"],
        ["", ""],
        ["5.123", "6.456"],
        [1790000000000000, "1790000000000001.456"],
    ],
)
def test_times_as_texts_are_read_together_as_each_alone(tmp_path: Path, texts: list[Any]) -> None:
    trace = written(tmp_path / "t", [slice(f"s{k}", ts, 1) for k, ts in enumerate(texts)])
    alone = [ns for text in texts if (ns := time_ns(text)) is not None and abs(ns) < 1 << 62]
    assert trace.slices.ts_ns.tolist() == sorted(alone)
    assert sum(problem.count for problem in trace.problems) == len(texts) - len(alone)


def test_events_out_of_order(tmp_path: Path) -> None:
    events = [slice("late", 50, 5), slice("inner", 1, 2), slice("outer", 0, 10)]
    events += [{"ph": "E", "ts": 30, "pid": 7, "tid": 2}, {"ph": "B", "name": "x", "ts": 20, "pid": 7, "tid": 2}]
    trace = written(tmp_path / "t", events)
    assert [row[:4] for row in seen(trace)] == [
        ("outer", 0, 10_000, 0),
        ("inner", 1_000, 2_000, 1),
        ("x", 20_000, 10_000, 0),
        ("late", 50_000, 5_000, 0),
    ]


def test_arrows_of_either_kind(tmp_path: Path) -> None:
    def flow(phase: str, ts: float, tid: int, **more: Any) -> dict[str, Any]:
        return {"ph": phase, "cat": "c", "name": "n", "id": 5, "ts": ts, "pid": 7, "tid": tid, **more}

    path = tmp_path / "t"
    trace = written(
        path,
        [
            slice("from", 0, 10),
            flow("s", 5, 1),
            slice("by", 20, 10, 2),
            flow("t", 25, 2),
            slice("around", 30, 100, 3),
            slice("to", 40, 10, 3),
            flow("f", 45, 3, bp="e"),
            slice("next", 60, 5, 4),
            {**flow("s", 1, 1), "id": 6},
            {**flow("f", 55, 4), "id": 6},
            slice("out", 100, 5, 5, bind_id="0x9", flow_out=True),
            slice("in", 110, 5, 6, bind_id="0x9", flow_in=True),
        ],
    )
    assert of_trace(trace) == of_engine(Engine(path))
    names, flows = trace.slices.names, trace.flows
    assert {(names[a], names[b]) for a, b in zip(flows.source, flows.target, strict=True)} == {
        ("from", "by"),
        ("by", "to"),
        ("from", "next"),
        ("out", "in"),
    }


def test_what_spans_no_thread(tmp_path: Path) -> None:
    def part(phase: str, ts: float, id: int, name: str = "request") -> dict[str, Any]:
        return {"ph": phase, "cat": "c", "name": name, "id": id, "ts": ts, "pid": 7, "tid": 1}

    trace = written(
        tmp_path / "t",
        [
            part("b", 0, 1),
            part("b", 5, 2),
            part("n", 6, 2, "request"),
            part("e", 10, 1),
            part("e", 20, 2),
            part("b", 30, 3),
        ],
    )
    assert [row[:3] for row in seen(trace)] == [
        ("request", 0, 10_000),
        ("request", 5_000, 15_000),
        ("request", 30_000, -1),
    ]
    assert len({trace.tracks[id].row for id in trace.slices.track_id.tolist()}) == 1
    assert trace.slices.depth.tolist() == [0, 0, 0]


def test_counters_of_several_series(tmp_path: Path) -> None:
    events = [{"ph": "C", "name": "mem", "ts": k, "pid": 7, "args": {"used": k * 2, "free": "0.5"}} for k in range(3)]
    trace = written(
        tmp_path / "t", [*events, {"ph": "C", "name": "one", "ts": 9, "pid": 7, "args": {"bytes": 1 << 70}}]
    )
    found = [(str(trace.tracks[id]), t, v) for id, t, v in zip(*vars_of(trace), strict=True)]
    assert sorted(found) == sorted(
        [
            *(("7/mem used", k * 1_000, k * 2.0) for k in range(3)),
            *(("7/mem free", k * 1_000, 0.5) for k in range(3)),
            ("7/one", 9_000, float(1 << 70)),
        ]
    )
    assert [t.unit for t in trace.tracks] == ["", "", "bytes"]


def vars_of(trace: Trace) -> tuple[Any, Any, Any]:
    table = trace.counters
    return table.track_id.tolist(), table.ts_ns.tolist(), table.value.tolist()


def test_a_trace_of_viztracer(tmp_path: Path) -> None:
    path = tmp_path / "v.json"
    program = "def f(n): return n and f(n - 1)\nfor k in range(40): f(k)\n"
    (tmp_path / "p.py").write_text(program)
    command = [sys.executable, "-m", "viztracer", "-o", str(path), "--quiet", str(tmp_path / "p.py")]
    subprocess.run(command, check=True, capture_output=True)
    trace = gputrace.read(path)
    assert trace.tool == "viztracer"
    assert sum(name.startswith("f ") for name in trace.slices.names) == sum(k + 1 for k in range(40))
    drawn = of_engine(Engine(path))
    assert of_trace(trace)["depths"].total() == drawn["depths"].total()
    assert sorted(k[3] for k in of_trace(trace)["depths"].elements()) == sorted(
        k[3] for k in drawn["depths"].elements()
    )
