"""What is Perfetto's alone: the layout of tracks, sequences and their state, clocks and metadata, byte for byte."""

from __future__ import annotations

import gc
import io
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf.unknown_fields import UnknownFieldSet
from gputrace.exporters.perfetto import Perfetto
from gputrace.exporters.sequence import NAMES_KEPT
from hypothesis import HealthCheck, given, settings
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

from gputrace.model import (
    BEGIN,
    COUNTER,
    COUNTER_TRACK,
    END,
    GROUP,
    INSTANT,
    LANE,
    SLICE,
    ClockSnapshot,
    Recording,
    Track,
)
from tests.engine import Engine, assert_clean
from tests.exporters.recordings import BASE, RECORDING, SNAPSHOTS, Script, join, write
from tests.exporters.test_both import VALUES, scripts

OFFSET = RECORDING.boottime_offset_ns


def full() -> Script:
    script = Script()
    thread = script.thread()
    group = script.track(GROUP, "GPU 0 · NVIDIA H200", labels={"driver": "570.1", "memory": 141})
    script.stream("stream 7", merge_key="s7", order=1)
    script.stream("stream 7", merge_key="s7", order=1)
    script.stream("stream 13", order=0)
    for i, unit in enumerate(("bytes", "ns", "ppm", "percent", "")):
        script.track(COUNTER_TRACK, f"in {unit}", parent=group, unit=unit, order=10 + i)
    script.track(LANE, "tasks", parent=thread, merge_key="tasks")
    script.track(COUNTER_TRACK, "loss")
    for track in script.tracks:
        if track.kind == COUNTER_TRACK:
            script.add(track, (5, COUNTER, 3))
        elif track is not group:
            script.add(track, (5, BEGIN, "work", {"x": 1}, 0), (9, END))
    return script


def packets(data: bytes) -> list[Any]:
    return list(pb.Trace.FromString(data).packet)


def unknown(message: Any) -> Iterator[str]:
    """Fields of a message, and of all in it, that its descriptor does not know."""
    fields = UnknownFieldSet(message)
    for i in range(len(fields)):
        yield f"{message.DESCRIPTOR.name}.{fields[i].field_number}"
    for field, value in message.ListFields():
        if field.message_type is not None:
            for part in value if field.is_repeated else [value]:
                yield from unknown(part)


def test_the_package_knows_every_field() -> None:
    script = full()
    script.add(script.tracks[0], (10, INSTANT, "mark", VALUES, 7))
    assert list(unknown(pb.Trace.FromString(write(Perfetto, script)))) == []


@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(script=scripts())
def test_decoded_by_the_package(script: Script) -> None:
    """Times and names by the book: each sequence's state is its own, and starts before it is needed."""
    names: dict[int, dict[int, str]] = {}
    now: dict[int, int] = {}
    found: dict[int, list[tuple[int, int, str | None]]] = {}
    for packet in packets(script.shard(Perfetto)):
        id = packet.trusted_packet_sequence_id
        if packet.sequence_flags & 1:
            names[id] = {}
            assert packet.trace_packet_defaults.timestamp_clock_id == 64
        for clock in packet.clock_snapshot.clocks:
            if clock.clock_id == 6:
                assert id not in now  # linked once
                now[id] = clock.timestamp - OFFSET
        if not packet.HasField("track_event"):
            continue
        assert packet.sequence_flags & 2
        names[id] |= {entry.iid: entry.name for entry in packet.interned_data.event_names}
        now[id] += packet.timestamp
        event = packet.track_event
        found.setdefault(id & 0xFFF, []).append((now[id], event.type, names[id].get(event.name_iid)))
    expected: dict[int, list[tuple[int, int, str | None]]] = {}
    for track, edges in script.batches:
        for ts, kind, name, _, _, end_ns in edges:
            text = None if name is None else name.replace("\0", "\u2400")
            expected.setdefault(track.id, []).append((ts, BEGIN if kind == SLICE else kind, text))
            if kind == SLICE:
                expected[track.id].append((end_ns, END, None))
    assert found == expected


def test_sequences() -> None:
    script = full()
    ids = {packet.trusted_packet_sequence_id for packet in packets(script.shard(Perfetto))}
    assert ids == {track.id for track in script.tracks} | {0xFFF}
    script.process.number = 3
    later = {packet.trusted_packet_sequence_id for packet in packets(script.shard(Perfetto))}
    assert later == {3 << 12 | id for id in ids}
    header = {p.trusted_packet_sequence_id for p in packets(Perfetto.header(RECORDING, SNAPSHOTS, {"a": 1}))}
    assert header == {1 << 12}
    assert not header & (ids | later)


def test_a_process_out_of_ids_claims_another_number() -> None:
    script = Script(5)
    for id in (1, 4094, 4095, 8188, 8189):
        script.add(script.thread(f"t{id}", id=id, tid=id), (1, BEGIN, "x"))
    events = [p for p in packets(script.shard(Perfetto)) if p.HasField("track_event")]
    expected = [5 << 12 | 1, 5 << 12 | 4094, 900 << 12 | 1, 900 << 12 | 4094, 901 << 12 | 1]
    assert [p.trusted_packet_sequence_id for p in events] == expected


def test_no_two_tracks_or_flows_are_taken_for_one() -> None:
    """Over processes of one recording, and over recordings."""
    uuids: list[int] = []
    flows: list[int] = []
    for recording in (RECORDING, Recording("0" * 32, BASE, OFFSET), Recording("ab" * 16, BASE, OFFSET)):
        for number in (0, 1, 2, 1 << 12, (1 << 20) - 1):
            script = Script(number)
            script.add(script.thread(), *((i, BEGIN, "x", None, i + 1) for i in range(50)))
            for _ in range(50):
                script.stream()
            for packet in packets(script.shard(Perfetto, recording)):
                uuids += [packet.track_descriptor.uuid] * packet.HasField("track_descriptor")
                flows += packet.track_event.flow_ids
    assert 0 not in uuids
    assert len(set(uuids)) == len(uuids) > 750
    assert len(set(flows)) == len(flows) == 750


def test_counters_of_one_name_are_rows_apart_but_for_what_a_killed_process_left() -> None:
    script = Script()
    for at, track in enumerate([script.track("counter", "loss"), script.track("counter", "loss", unit="ns")]):
        script.add(track, (at, COUNTER, at))
    tail = io.BytesIO()
    writer = Perfetto.resume(tail, RECORDING, script.process)
    late = Track(9, "counter", "loss")
    writer.open_track(late)
    writer.write(late, [(BASE + 5, COUNTER, 5, None, 0, 0)])
    writer.flush()
    engine = Engine(join(Perfetto, [script.shard(Perfetto) + tail.getvalue()]))
    assert_clean(engine)
    rows = engine.query("select track_id, group_concat(cast(value as int)) as v from counter group by track_id")
    assert sorted(row["v"] for row in rows) == ["0,5", "1"]


def test_layout() -> None:
    """Rows by the engine's own account: what hangs where, in what order, and what is drawn as one."""
    engine = Engine(write(Perfetto, full(), Script(1, 5151)))
    rows = engine.query(
        "select t.name, t.track_group_id as row, p.name as parent,"
        " extract_arg(t.source_arg_set_id, 'sibling_order_rank') as rank,"
        " extract_arg(t.source_arg_set_id, 'child_ordering') as ordering,"
        " extract_arg(t.source_arg_set_id, 'description') as description"
        " from track t left join track p on t.parent_id = p.id where t.name is not null order by t.id"
    )
    by_name: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_name.setdefault(row["name"], []).append(row)
    [group] = by_name["GPU 0 · NVIDIA H200"]
    assert group["ordering"] == "explicit"
    assert group["description"] == "driver: 570.1\nmemory: 141"
    first, second = by_name["stream 7"]
    assert first["row"] == second["row"] is not None
    assert {row["parent"] for row in (first, second, *by_name["stream 13"], *by_name["in ppm"])} == {group["name"]}
    assert [by_name[name][0]["rank"] or 0 for name in ("stream 13", "stream 7", "in bytes")] == [0, 1, 10]
    assert by_name["loss"][0]["parent"] is None
    units = {row["name"]: row["unit"] for row in engine.query("select name, unit from counter_track")}
    assert units == {"in bytes": "bytes", "in ns": "ns", "in ppm": "ppm", "in percent": "%", "in ": None, "loss": None}
    processes = engine.query("select pid, name, start_ts from process where pid > 0 order by pid")
    assert processes == [{"pid": pid, "name": "train.py", "start_ts": BASE - 50 + OFFSET} for pid in (4242, 5151)]


def test_clocks_and_metadata() -> None:
    """Snapshots are sorted and told once; metadata of the recording and of each process can be queried."""
    wobbling = [*SNAPSHOTS, SNAPSHOTS[0], ClockSnapshot(BASE + OFFSET + 5, BASE + 5, 17)]
    facts = {"text": 'a "b"', "int": -3, "wide": 1 << 70, "float": 0.5, "yes": True, "list": ["a", 'b"']}
    file = io.BytesIO()
    writer = Perfetto(file, RECORDING, Script(2).process)
    writer.metadata({"dropped": 0})
    writer.metadata({"dropped": 12})
    engine = Engine(Perfetto.header(RECORDING, wobbling, facts) + file.getvalue())
    assert_clean(engine)
    rows = engine.query("select name, coalesce(str_value, int_value) as value from metadata")
    metadata = {row["name"]: row["value"] for row in rows}
    assert metadata["trace_uuid"].replace("-", "") == RECORDING.id
    assert metadata["trace_time_clock_id"] == 6
    told = {name.removeprefix("cr-"): value for name, value in metadata.items() if name.startswith("cr-")}
    assert told == {
        "text": 'a "b"',
        "int": -3,
        "wide": str(1 << 70),
        "float": "0.5",
        "yes": 1,
        "list": '["a","b\\""]',
        "2-process.2.pid": 4242,
        "2-process.2.name": "train.py",
        "2-process.2.command_line": '["python","train.py"]',
        "3-process.2.dropped": 0,
        "4-process.2.dropped": 12,
    }
    clocks = engine.query("select snapshot_id, clock_id, clock_value from clock_snapshot order by snapshot_id, id")
    assert [(row["snapshot_id"], row["clock_id"]) for row in clocks] == [(i, c) for i in range(3) for c in (6, 3, 1)]
    boottimes = [row["clock_value"] for row in clocks if row["clock_id"] == 6]
    assert boottimes == sorted({snapshot.boottime_ns for snapshot in wobbling})


def test_snapshots_move_no_slice() -> None:
    """A recording over a suspend: MONOTONIC falls behind and REALTIME goes back, and slices stay where they were."""
    script = Script()
    thread = script.thread()
    for i in range(50):
        script.add(thread, (i * 10**9, BEGIN, "x"), (i * 10**9 + 5, END))
    snapshots = [
        ClockSnapshot(BASE + OFFSET + i * 10**10, BASE + i * 10**10 - (i > 2) * 10**9, 10**18 - i) for i in range(5)
    ]
    engine = Engine(Perfetto.header(RECORDING, snapshots, {}) + script.shard(Perfetto))
    assert_clean(engine)
    times = [(row["ts"], row["dur"]) for row in engine.query("select ts, dur from slice order by ts")]
    assert times == [(BASE + OFFSET + i * 10**9, 5) for i in range(50)]


def test_names_are_forgotten_in_time() -> None:
    script = Script()
    thread = script.thread()
    for i in range(2 * NAMES_KEPT + 10):
        script.add(thread, (i, BEGIN, f"n{i}"), (i, END))
    found = packets(script.shard(Perfetto))
    assert sum(p.sequence_flags & 1 for p in found) == 3
    assert max(e.iid for p in found for e in p.interned_data.event_names) == NAMES_KEPT
    assert sum(len(p.clock_snapshot.clocks) for p in found) == 2


@pytest.mark.parametrize(("flows", "most"), [(False, 15), (True, 22)])
def test_bytes_an_event(flows: bool, most: int) -> None:
    """Slices of 3 us: the budget of the format, with a flow on each begin."""
    script = Script()
    thread = script.thread()
    edges: list[Any] = []
    for i in range(5000):
        edges += [(6000 * i, BEGIN, f"kernel {i % 50}", None, i + 1 if flows else 0), (6000 * i + 3000, END)]
    script.add(thread, *edges)
    assert len(script.shard(Perfetto)) / len(edges) < most


def test_memory_is_flat_and_goes_with_the_track() -> None:
    """New names all along, in a sequence that lives long; and threads that come and go."""

    def kept(names: int) -> int:
        gc.collect()
        tracemalloc.start()
        writer = Perfetto(open("/dev/null", "wb"), RECORDING, Script().process)  # noqa: SIM115
        script = Script()
        for id in range(1, 4):
            track = script.thread(id=id)
            writer.open_track(track)
            for i in range(0, names, 100):
                edges: list[Any] = [(BASE + i, SLICE, str(i + j), None, 0, BASE + i) for j in range(100)]
                writer.write(track, edges)
            if id > 1:
                writer.close_track(track)
        size = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        writer.close()
        return size

    kept(100)  # the tables
    assert kept(3 * NAMES_KEPT - 100) < kept(NAMES_KEPT - 100) * 1.5


class Reluctant(io.RawIOBase):
    """A file without a buffer, which takes what it has room for."""

    def __init__(self, room: int, step: int) -> None:
        self.data = b""
        self.room = room
        self.step = step

    def write(self, data: Any) -> int:
        taken = bytes(data[: min(self.step, self.room)])
        if not taken:
            raise OSError(28, "No space left on device")
        self.room -= len(taken)
        self.data += taken
        return len(taken)


def test_short_writes_are_finished() -> None:
    file = Reluctant(1 << 30, 7)
    script = full()
    writer = Perfetto(file, RECORDING, script.process)
    for track in script.tracks:
        writer.open_track(track)
    for track, edges in script.batches:
        writer.write(track, edges)
    assert file.data == script.shard(Perfetto)


def test_nothing_follows_a_torn_record() -> None:
    """A disk that was full has room again: what is written must not be read as the rest of what was not."""
    script = full()
    shard = script.shard(Perfetto)
    file = Reluctant(len(shard) - 20, 1 << 20)
    writer = Perfetto(file, RECORDING, script.process)
    for track in script.tracks:
        writer.open_track(track)
    *most, last = script.batches
    for track, edges in most:
        writer.write(track, edges)
    with pytest.raises(OSError, match="No space"):
        writer.write(*last)
    file.room = 1 << 20
    with pytest.raises(OSError, match="torn"):
        writer.metadata({"dropped": 1})
    assert shard.startswith(file.data)
    assert_clean(Engine(join(Perfetto, [file.data])))


def test_what_it_imports() -> None:
    """A traced program pays for each module before its first line runs."""
    code = (
        "import sys, gputrace.model; b = set(sys.modules); import gputrace.exporters.{}; print(*set(sys.modules) - b)"
    )
    for module in ("perfetto", "chrome"):
        out = subprocess.run([sys.executable, "-c", code.format(module)], capture_output=True, text=True, check=True)
        ours = {name for name in out.stdout.split() if not name.startswith("gputrace")}
        assert ours <= {"struct", "_struct", "_json"}
