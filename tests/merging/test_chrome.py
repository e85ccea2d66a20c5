"""Chrome's JSON merged: with its like, with Perfetto's format, and from the one to the other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gputrace.merging.merge import merge
from tests.exporters.recordings import BASE
from tests.merging.making import WALL_NS, Drawn, program, write_trace
from tests.merging.test_protobuf import HOST, OTHER

MOVED_NS = (OTHER.wall_ns - OTHER.boottime_ns) - (HOST.wall_ns - HOST.boottime_ns)


def times(drawn: Drawn, shift_ns: int = 0) -> list[Any]:
    """What any format must agree on: names, times and args, wherever they are drawn."""
    return sorted((s.name, s.ts + shift_ns, s.dur, s.depth, repr(sorted(s.args.items()))) for s in drawn.slices)


def arrows(drawn: Drawn) -> list[Any]:
    by_id = {s.id: s for s in drawn.slices}
    return sorted((s.name, s.ts, by_id[id].name, by_id[id].ts) for s in drawn.slices for id in s.flows_to)


@pytest.mark.parametrize("output", ["all.json", "all.json.gz", "all.pftrace", "all.pftrace.gz"])
@pytest.mark.parametrize("names", [("a.json", "b.json"), ("a.pftrace", "b.json.gz"), ("a.json", "b.pftrace")])
def test_every_mixture(tmp_path: Path, names: tuple[str, str], output: str) -> None:
    one = write_trace(tmp_path / names[0], HOST, program(0, 10))
    two = write_trace(tmp_path / names[1], OTHER, program(0, 10), number=1)
    outcome = merge((str(one), str(two)), str(tmp_path / output))
    assert outcome.problems == []
    drawn = Drawn(tmp_path / output)
    assert times(drawn) == sorted(times(Drawn(one)) + times(Drawn(two), MOVED_NS))
    assert arrows(drawn) == sorted(
        arrows(Drawn(one)) + [(a, t + MOVED_NS, b, u + MOVED_NS) for a, t, b, u in arrows(Drawn(two))]
    )
    pids = {pid % (1 << 31): name for pid, name in drawn.processes().items() if pid < 1 << 31}
    assert pids == {10: "train.py", (1 << 22) + 10: "train.py (pid 10 on node1)"}
    assert sorted(value for samples in drawn.counters.values() for _, value in samples) == sorted(
        [0.5, 0.25, 0.5 / 3] * 2
    )


def kineto(path: Path, events: list[dict[str, Any]], **more: Any) -> Path:
    """In the shape that torch.profiler writes: times since a stated base, a GPU's pid its ordinal."""
    path.write_text(
        json.dumps(
            {
                "schemaVersion": 1,
                "host_name": "node0",
                "displayTimeUnit": "ms",
                "baseTimeNanoseconds": WALL_NS,
                "traceEvents": events,
                "traceName": path.name,
                **more,
            },
            indent=1,
        )
    )
    return path


def at(ns: int) -> float:
    """A time after BASE on `HOST` as a profiler on it writes it."""
    return (BASE + ns) / 1000


KINETO = [
    {"ph": "M", "name": "process_name", "ts": at(0), "pid": 10, "tid": 0, "args": {"name": "python"}},
    {"ph": "M", "name": "process_name", "ts": at(0), "pid": 0, "tid": 0, "args": {"name": "python"}},
    {"ph": "M", "name": "process_labels", "ts": at(0), "pid": 0, "tid": 0, "args": {"labels": "GPU 0"}},
    {"ph": "M", "name": "thread_name", "ts": at(0), "pid": 0, "tid": 7, "args": {"name": "stream 7"}},
    {
        "ph": "X",
        "cat": "cpu_op",
        "name": "aten::mm",
        "pid": 10,
        "tid": 10,
        "ts": at(5_000),
        "dur": 9.5,
        "args": {"Ev Idx": 1},
    },
    {"ph": "X", "cat": "cuda_runtime", "name": "launch", "pid": 10, "tid": 10, "ts": at(6_000), "dur": 1.25},
    {"ph": "s", "id": 3, "cat": "ac2g", "name": "ac2g", "pid": 10, "tid": 10, "ts": at(6_000)},
    {
        "ph": "X",
        "cat": "kernel",
        "name": "gemm",
        "pid": 0,
        "tid": 7,
        "ts": at(20_000),
        "dur": 30,
        "args": {"grid": [1, 2]},
    },
    {"ph": "f", "id": 3, "cat": "ac2g", "name": "ac2g", "pid": 0, "tid": 7, "ts": at(20_000), "bp": "e"},
    {"ph": "X", "cat": "kernel", "name": "late", "pid": 0, "tid": 7, "ts": at(40_000), "dur": 25},
    {
        "ph": "X",
        "cat": "Trace",
        "name": "PyTorch Profiler (0)",
        "pid": "Spans",
        "tid": "PyTorch Profiler",
        "ts": at(0),
        "dur": 90,
    },
    {"ph": "i", "s": "g", "name": "Record Window End", "pid": "", "tid": "", "ts": at(90_000)},
]


@pytest.mark.parametrize("output", ["all.json", "all.pftrace"])
def test_a_torch_profile_beside_a_recording(tmp_path: Path, output: str) -> None:
    one = write_trace(tmp_path / "a.pftrace", HOST, program(0, 10))
    # JSON knows no lanes, so a viewer bends what overlaps, in a merged file as in the profiler's own.
    overlapping = output == "all.pftrace"
    two = kineto(tmp_path / "k.json", [e for e in KINETO if overlapping or e["name"] != "late"])
    outcome = merge((str(one), str(two)), str(tmp_path / output))
    assert outcome.problems == []
    drawn = Drawn(tmp_path / output)
    ours = set(times(Drawn(one)))
    start = BASE + HOST.boottime_ns
    found = {(s.name, s.ts - start, s.dur) for s in drawn.slices} - {(n, t - start, d) for n, t, d, _, _ in ours}
    wanted = {
        ("aten::mm", 5_000, 9_500),
        ("launch", 6_000, 1_250),
        ("gemm", 20_000, 30_000),
        ("PyTorch Profiler (0)", 0, 90_000),
        ("Record Window End", 90_000, 0),
    }
    assert wanted <= found
    assert (("late", 40_000, 25_000) in found) == overlapping
    [launch], [gemm] = drawn.named("launch"), drawn.named("gemm")
    assert launch.flows_to == [gemm.id]
    assert launch.depth == 1
    # The program's thread is one: its ops are drawn where its spans are.
    [op] = drawn.named("aten::mm")
    assert op.track[0] == next(s for s in drawn.slices if s.name == "step").track[0]
    assert op.args["Ev Idx"] == 1


def test_overlapping_slices_come_out_whole_and_beside_one_another(tmp_path: Path) -> None:
    events = [
        {"ph": "X", "name": f"{n}", "pid": 5, "tid": 5, "ts": at(n * 1_000), "dur": 3.5, "args": {"n": n}}
        for n in range(40)
    ]
    path = kineto(tmp_path / "k.json", events)
    outcome = merge((str(path),), str(tmp_path / "all.pftrace"))
    assert outcome.problems == []
    assert [note for note in outcome.notes if "overlap" in note]
    drawn = Drawn(tmp_path / "all.pftrace")
    assert sorted((int(s.name or ""), s.dur, s.depth) for s in drawn.slices) == [(n, 3_500, 0) for n in range(40)]


def test_times_since_1970_keep_their_nanoseconds(tmp_path: Path) -> None:
    path = tmp_path / "old.json"
    path.write_text(
        '{"schemaVersion": 1, "traceName": "x", "traceEvents": ['
        '{"ph": "X", "name": "a", "pid": 5, "tid": 5, "ts": 1790000000123456.789, "dur": 1.001},\n'
        '{"ph": "X", "name": "b", "pid": 5, "tid": 5, "ts": 1790000000123458.001, "dur": 0.003}]}'
    )
    for output in ("all.pftrace", "all.json"):
        assert merge((str(path),), str(tmp_path / output)).problems == []
        drawn = Drawn(tmp_path / output)
        a, b = drawn.named("a")[0], drawn.named("b")[0]
        assert (b.ts - a.ts, a.dur, b.dur) == (1_212, 1_001, 3)
        assert a.ts == 1_790_000_000_123_456_789


def test_async_events_and_counters_of_other_tools(tmp_path: Path) -> None:
    events = [
        {"ph": "b", "cat": "req", "id": 1, "name": "request", "pid": 5, "tid": 5, "ts": at(1_000), "args": {"k": [1]}},
        {"ph": "b", "cat": "req", "id": 2, "name": "request", "pid": 5, "tid": 5, "ts": at(2_000)},
        {"ph": "e", "cat": "req", "id": 1, "name": "request", "pid": 5, "tid": 5, "ts": at(5_000)},
        {"ph": "e", "cat": "req", "id": 2, "name": "request", "pid": 5, "tid": 5, "ts": at(4_000)},
        {"ph": "C", "name": "mem", "pid": 5, "tid": 5, "ts": at(1_000), "args": {"a": 1, "b": 2.5}},
        {"ph": "C", "name": "mem", "pid": 5, "tid": 5, "ts": at(2_000), "args": {"a": 3, "b": 4.5}},
    ]
    path = kineto(tmp_path / "k.json", events)
    assert merge((str(path),), str(tmp_path / "all.pftrace")).problems == []
    drawn = Drawn(tmp_path / "all.pftrace")
    assert sorted((s.dur, s.depth) for s in drawn.named("request")) == [(2_000, 0), (4_000, 0)]
    assert sorted((path[-1], [v for _, v in samples]) for path, samples in drawn.counters.items()) == [
        ("mem a", [1, 3]),
        ("mem b", [2.5, 4.5]),
    ]


def test_begins_and_ends_in_any_order_of_threads(tmp_path: Path) -> None:
    events = [
        {"ph": "B", "name": "outer", "pid": 5, "tid": 5, "ts": at(0)},
        {"ph": "B", "name": "other", "pid": 5, "tid": 6, "ts": at(500)},
        {"ph": "B", "name": "inner", "pid": 5, "tid": 5, "ts": at(0)},
        {"ph": "E", "pid": 5, "tid": 5, "ts": at(700), "args": {"why": "done"}},
        {"ph": "E", "pid": 5, "tid": 5, "ts": at(700)},
        {"ph": "E", "pid": 5, "tid": 6, "ts": at(900)},
        {"ph": "B", "name": "open", "pid": 5, "tid": 6, "ts": at(950)},
        {"ph": "E", "pid": 5, "tid": 99, "ts": at(950)},
    ]
    path = kineto(tmp_path / "k.json", events)
    outcome = merge((str(path),), str(tmp_path / "all.pftrace"))
    assert outcome.problems == [f"{path}: 1 ends of slices have no beginning"]
    found = sorted((s.name, s.dur, s.depth) for s in Drawn(tmp_path / "all.pftrace").slices)
    assert found == [("inner", 700, 1), ("open", -1, 0), ("other", 400, 0), ("outer", 700, 0)]


def test_two_profiles_keep_their_gpus_apart(tmp_path: Path) -> None:
    events = [event for event in KINETO if event["name"] != "late"]
    first = kineto(tmp_path / "k0.json", events)
    second = kineto(tmp_path / "k1.json", json.loads(json.dumps(events).replace('"pid": 10', '"pid": 11')))
    for output in ("all.json", "all.pftrace"):
        merge((str(first), str(second)), str(tmp_path / output))
        drawn = Drawn(tmp_path / output)
        kernels = drawn.named("gemm")
        assert len({s.track_id for s in kernels}) == 2
        by_id = {s.id: s for s in drawn.slices}
        for launch in drawn.named("launch"):
            assert [by_id[id].name for id in launch.flows_to] == ["gemm"]
