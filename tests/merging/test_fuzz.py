"""Damaged traces of every kind: whatever the bytes, a merge tells what is wrong and writes what any reader can read."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

from gputrace.merging.merge import Options, merge
from gputrace.reading.fields import well_formed
from gputrace.reading.packets import frame
from tests.engine import Engine
from tests.merging.making import program, write_trace
from tests.merging.test_chrome import KINETO, kineto
from tests.merging.test_protobuf import HOST, OTHER


def system_trace(path: Path) -> Path:
    """A trace with what a tracing service adds: snapshots of many clocks, ftrace, packed packets, ids at the end."""
    trace = pb.Trace()
    packet = trace.packet.add(trusted_packet_sequence_id=1)
    for clock in (6, 3, 1, 2, 4, 5):
        packet.clock_snapshot.clocks.add(clock_id=clock, timestamp=7_031_000_000_579 + clock)
    bundle = trace.packet.add(trusted_packet_sequence_id=2).ftrace_events
    bundle.cpu = 1
    for n in range(20):
        event = bundle.event.add(timestamp=7_031_000_000_579 + n * 1_000, pid=4242)
        event.sched_switch.prev_pid, event.sched_switch.next_pid = 4242, 10 + n
        event.sched_switch.prev_comm, event.sched_switch.next_comm = "python", f"other {n}"
    path.write_bytes(trace.SerializeToString())
    return path


def originals(folder: Path) -> list[bytes]:
    paths = [
        write_trace(folder / "a.pftrace", HOST, program(0, 10)),
        write_trace(folder / "b.pftrace.gz", OTHER, program(0, 10), number=1),
        write_trace(folder / "c.json", OTHER, program(0, 10), number=2),
        kineto(folder / "k.json", KINETO),
        system_trace(folder / "s.pftrace"),
    ]
    return [path.read_bytes() for path in paths]


def harmed(chance: random.Random, data: bytes) -> bytes:
    out = bytearray(gzip.decompress(data) if data[:2] == b"\x1f\x8b" and chance.random() < 0.7 else data)
    for _ in range(chance.randrange(1, 6)):
        at = chance.randrange(len(out) or 1)
        kind = chance.randrange(6)
        if kind == 0 and out:
            out[at % len(out)] ^= 1 << chance.randrange(8)
        elif kind == 1:
            del out[at:]
        elif kind == 2:
            del out[at : at + chance.randrange(1, 40)]
        elif kind == 3:
            out[at:at] = chance.randbytes(chance.randrange(1, 20))
        elif kind == 4:
            out[at:at] = out[chance.randrange(len(out) or 1) :][: chance.randrange(1, 300)]
        else:
            out[at : at + 9] = chance.choice(
                [b'"', b"[{", b"1e999", b"null", b"\xff" * 9, b"-1", b"\x0a\x80\x80\x80\x80\x80"]
            )
    return bytes(out)


def check(path: Path, copied: bool) -> None:
    """``copied``: a whole recording may have been taken over, whose packets nobody looked into."""
    data = path.read_bytes()
    if path.suffix == ".json":
        for event in json.loads(data):
            assert isinstance(event, dict)
        return
    found, end, damaged = frame(data)
    assert (end, damaged) == (len(data), False)
    for start, stop in found.spans():
        assert copied or well_formed(data, start, stop)  # or the engine refuses all of it


@settings(max_examples=120, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 1 << 40))
def test_damaged_files(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    chance = random.Random(seed)
    folder = tmp_path_factory.mktemp("fuzz")
    files = originals(folder)
    chosen = chance.sample(range(len(files)), chance.randrange(1, 4))
    paths = []
    for number in chosen:
        path = folder / f"{number}.bin"  # named as nothing in particular: what it is, it says itself
        path.write_bytes(harmed(chance, files[number]) if chance.random() < 0.8 else files[number])
        paths.append(str(path))
    output = folder / chance.choice(["all.pftrace", "all.json"])
    options = Options(align=chance.choice(["clock", "collectives"]))
    outcome = merge(tuple(paths), str(output), options)
    assert bool(outcome.path) == output.exists()
    # What cannot be read is told; a file is merged or told of, and may be both.
    for path in paths:
        assert path in outcome.merged or any(path in problem for problem in outcome.problems)
    if outcome.path:
        check(output, copied=bool({0, 1} & set(chosen)))


def test_what_comes_of_a_few_loads(tmp_path: Path) -> None:
    """In the engine itself, which is slow to start."""
    loaded = 0
    for seed in range(12):
        chance = random.Random(seed)
        folder = tmp_path / str(seed)
        folder.mkdir()
        files = originals(folder)
        (folder / "x").write_bytes(harmed(chance, files[seed % len(files)]))
        outcome = merge((str(folder / "x"), str(folder / "a.pftrace")), str(folder / "all.pftrace"))
        if outcome.path:
            Engine(folder / "all.pftrace")
            loaded += 1
    assert loaded == 12


Harm = Callable[[dict[str, Any]], Any]


@pytest.mark.parametrize(
    "event",
    [
        {"ph": "X", "name": "a", "ts": 1, "dur": -5, "pid": 1, "tid": 1},
        {"ph": "X", "name": ["a"], "ts": "1.5", "dur": "2", "pid": "1", "tid": None},
        {"ph": "X", "name": "a", "ts": 1, "dur": 1, "pid": {"x": 1}, "tid": [2]},
        {"ph": "X", "name": "a", "ts": None, "dur": 1, "pid": 1, "tid": 1},
        {"ph": "X", "ts": 1, "dur": 1},
        {"ph": "X", "name": "a", "ts": 1, "dur": 1, "pid": -3, "tid": 1 << 40},
        {"ph": "X", "name": "a", "ts": 1, "dur": 1, "pid": 1 << 70, "tid": 0.5},
        {"ph": "C", "name": "a", "ts": 1, "pid": 1, "args": {"x": "NaN", "y": [1], "z": True, "w": "7"}},
        {"ph": "C", "name": "a", "ts": 1, "pid": 1, "args": 5},
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": 1, "args": "x"},
        {"ph": "M", "name": "process_sort_index", "pid": 1, "args": {"sort_index": -9}},
        {"ph": "M", "name": "process_sort_index", "pid": 1, "args": {"sort_index": 1 << 60}},
        {"ph": "M", "name": ["x"], "pid": [1], "args": {"name": 5}},
        {"ph": "s", "id": {"a": 1}, "cat": [1], "ts": 1, "pid": 1, "tid": 1},
        {"ph": "b", "id": 1.5, "id2": 7, "name": "a", "ts": 1, "pid": 1},
        {"ph": ["X"], "ts": 1},
        {"ph": "XX", "ts": 1, "pid": 1, "tid": 1},
        {"ph": "", "ts": 1},
        {"ts": 1},
        {"name": "gputrace.recording", "ph": "M", "args": {"id": 5, "base_ns": "x"}},
        {
            "name": "gputrace.recording",
            "ph": "M",
            "args": {"id": "5", "base_ns": 1, "boottime_offset_ns": 0, "clocks": [{"a": 1}]},
        },
        {"name": "gputrace.metadata", "ph": "M", "args": {"gputrace_version": 7, "first_number": "x", "boot_id": 1}},
    ],
)
@pytest.mark.parametrize("output", ["all.pftrace", "all.json"])
def test_odd_events(tmp_path: Path, event: dict[str, Any], output: str) -> None:
    good = {"ph": "X", "name": "good", "ts": 5, "dur": 1, "pid": 1, "tid": 1}
    path = kineto(tmp_path / "k.json", [event, good, event])
    merge((str(path),), str(tmp_path / output))
    engine = Engine(tmp_path / output)
    assert len(engine.query("select * from slice where name = 'good'")) == 1


def test_names_that_are_no_utf_8(tmp_path: Path) -> None:
    one, two = (
        write_trace(tmp_path / "a.pftrace", HOST, program()),
        write_trace(tmp_path / "b.pftrace", OTHER, program(), number=1),
    )
    for path in (one, two):
        data = path.read_bytes()
        for name in (b"train.py", b"MainThread", b"forward", b"error_ns"):
            data = data.replace(name, b"\xff" + name[1:])
        path.write_bytes(data)
    for output in ("all.pftrace", "all.json"):
        assert merge((str(one), str(two)), str(tmp_path / output)).problems == []
        engine = Engine(tmp_path / output)
        assert engine.query("select count(*) as n from slice where name like '%orward'") == [{"n": 12}]
