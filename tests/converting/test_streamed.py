"""What is written as it is read is what is written of a trace read whole, whichever part of it that is."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

import gputrace
from gputrace.converting import convert as converting
from gputrace.converting import course
from gputrace.converting.convert import Part, convert
from gputrace.converting.course import Course
from gputrace.model import BEGIN, COUNTER, END, INSTANT, SLICE
from tests.converting.test_convert import rows
from tests.exporters.recordings import Script
from tests.merging.making import Host, write_trace

HOST = Host("h")


def some(chance: random.Random, number: int) -> Script:
    """Threads, a stream that they launch on, and a counter; times often meet, some slices have no length or no end."""
    script = Script(number, 100 + number, f"rank {number}")
    threads = [script.thread(f"T{k}") for k in range(2)]
    stream, counter = script.stream(), script.track("counter", "loss", unit="ns")
    flows = iter(range(1, 1_000))
    pending: list[tuple[int, int]] = []  # launches
    now = {track.id: 0 for track in (*threads, stream)}
    for _ in range(12):
        for track in threads:
            at, depth, edges = now[track.id], 0, list[Any]()
            for _ in range(chance.randrange(12)):
                at += chance.choice((0, 0, 1, 3))
                name, args = chance.choice("abc"), chance.choice((None, {"n": at, "s": "x"}))
                kind = chance.choice((BEGIN, BEGIN, END, END, INSTANT, SLICE))
                if kind == END and (depth or chance.random() < 0.1):
                    edges.append((at, END, None, chance.choice((None, {"late": at}))))
                    depth -= 1
                elif kind == INSTANT:
                    edges.append((at, INSTANT, name, args))
                elif kind == SLICE:
                    flow = next(flows)
                    pending.append((at, flow))
                    edges.append((at, SLICE, name, args, flow, at + 1))
                    at += 1
                elif kind == BEGIN:
                    edges.append((at, BEGIN, name, args))
                    depth += 1
            now[track.id] = at
            script.add(track, *edges)
        for launched, flow in pending:
            begin = max(now[stream.id], launched + 1) + chance.randrange(2)
            now[stream.id] = begin + chance.randrange(1, 4)
            script.add(stream, (begin, SLICE, chance.choice("abc"), None, flow, now[stream.id]))
        pending.clear()
        script.add(counter, (max(now.values()), COUNTER, chance.random()))
    return script


def both(path: Path, output: str, part: Part, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What each way wrote, and what it told."""
    found = []
    for way in ("streamed", "whole"):
        with monkeypatch.context() as patch:
            if way == "whole":
                patch.setattr(converting, "_stream", lambda *_: False)
            outcome = convert(str(path), str(path.with_name(f"{way} {output}")), part)
        trace = gputrace.read(outcome.path)
        paths = sorted({str(trace.tracks[id]) for id in trace.slices.track_id.tolist()})
        found.append((rows(trace), paths, outcome.problems, outcome.notes))
    return found


@pytest.mark.parametrize("seed", range(24))
@pytest.mark.parametrize("output", ["o.json", "o.pftrace"])
def test_any_part_of_any_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, output: str) -> None:
    chance = random.Random(seed)
    monkeypatch.setattr(course, "_CHUNK_BYTES", chance.choice((100, 1_000, 1 << 20)))
    path = write_trace(tmp_path / "t.pftrace", HOST, some(chance, 0), some(chance, 1))
    assert Course(str(path)).is_even
    last = gputrace.read(path).duration_ns
    parts = [] if output == "o.pftrace" else [Part()]
    for _ in range(4):
        start, end = sorted(chance.randrange(last) for _ in range(2))
        parts += [
            Part(start_ns=start, end_ns=end + 1),
            Part(start_ns=start, names=("a", "b")),
            Part(end_ns=end + 1, tracks=chance.choice((("T0",), ("*GPU*", "loss"), ("T*", "*stream*")))),
        ]
    for part in parts:
        streamed, whole = both(path, output, part, monkeypatch)
        assert streamed == whole, vars(part)


def packets(path: Path, *events: tuple[int, int, int, str]) -> Path:
    """Another tool's trace: (time, track, type, name) of each event, on one sequence."""
    trace = pb.Trace()
    for ns, track, type, name in events:
        packet = trace.packet.add(trusted_packet_sequence_id=5, timestamp=ns)
        packet.track_event.track_uuid, packet.track_event.type, packet.track_event.name = track, type, name
    path.write_bytes(trace.SerializeToString())
    return path


def test_what_is_out_of_order_is_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(course, "_CHUNK_BYTES", 20)
    late = [(100, 1, 1, "a"), (200, 1, 2, ""), (10, 1, 1, "b"), (20, 1, 2, "")]
    path = packets(tmp_path / "t.pftrace", *late)
    assert not Course(str(path)).is_even
    assert Course(str(packets(tmp_path / "u.pftrace", *late[:2], (10, 2, 1, "b"), (20, 2, 2, "")))).is_even
    assert convert(str(path), str(tmp_path / "o.json")).problems == []
    slices = gputrace.read(tmp_path / "o.json").slices
    assert list(zip(slices.names, slices.dur_ns.tolist(), strict=True)) == [("b", 10), ("a", 100)]


def test_what_does_not_match_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(course, "_CHUNK_BYTES", 20)
    path = packets(tmp_path / "t.pftrace", (5, 1, 2, ""), (6, 1, 1, "a"), (7, 1, 2, ""), (8, 1, 2, ""), (9, 1, 1, "b"))
    streamed, whole = both(path, "o.json", Part(), monkeypatch)
    assert streamed == whole
    assert streamed[2] == [f"{path}: 2 ends close nothing that is open"]
