"""Files that are no trace, or a broken one: told by name and place, and what can be read is read."""

from __future__ import annotations

import gzip
import json
import random
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from gputrace.exporters import sequence
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

import gputrace
from gputrace.converting.convert import convert
from gputrace.errors import InputError
from gputrace.reading.stream import Limits
from gputrace.table.trace import Trace
from tests.merging.making import Host, program, write_trace
from tests.merging.test_fuzz import harmed

REAL_KINETO = Path(__file__).parent.parent / "merging" / "kineto.json"


def event(phase: str, **more: Any) -> dict[str, Any]:
    return {"ph": phase, "name": "e", "ts": 1, "pid": 1, "tid": 1, **more}


def reading(path: Path, content: str | bytes) -> Trace:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    trace = gputrace.read(path)
    assert all(str(problem).startswith(f"{path}: ") for problem in trace.problems)
    return trace


def kinds(trace: Trace) -> dict[str, int]:
    return {problem.kind: problem.count for problem in trace.problems}


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"", "is empty"),
        (b"once upon a time", "is not a trace"),
        (b"\x28\xb5\x2f\xfd1234", "compressed by zstd"),
        (b"[1, 2", "is cut short"),
        (b'{"a": 1}', "holds no .traceEvents."),
        (gzip.compress(b"hello", mtime=0), "is not a trace"),
        (b"\x1f\x8b\x08", "cut short"),
    ],
)
@pytest.mark.parametrize("name", ["t.pftrace", "t.json", "t"])
def test_no_trace(tmp_path: Path, content: bytes, what: str, name: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=what) as failure:
        gputrace.read(tmp_path / name)
    assert failure.value.path == str(tmp_path / name)


def test_a_wrong_suffix_does_not_matter(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "t.pftrace", Host("h"), program())
    path.rename(tmp_path / "t.json")
    assert len(gputrace.read(tmp_path / "t.json").slices) == 9


def test_times_and_durations_that_are_none(tmp_path: Path) -> None:
    events = [
        *(event("X", ts=ts, dur=1) for ts in ("soon", None, [1], 1e300, "1e5", True)),
        *(event("X", dur=dur) for dur in (-1, "long", {"a": 1}, 1e300)),
        event("C", ts="x", args={"v": 1}),
        event("C", args={"v": "much"}),
        event("X", ts=7, dur=2),
        event("X", ts=-3, dur="0.5"),
    ]
    trace = reading(tmp_path / "t", json.dumps(events).replace("null", "NaN"))
    assert (trace.slices.ts_ns.tolist(), trace.slices.dur_ns.tolist()) == ([-3_000, 7_000], [500, 2_000])
    assert kinds(trace) == {"bad time": 7, "bad duration": 4, "bad value": 1}
    assert "the first: 'e' with ts soon" in str(trace.problems[0])


def test_begins_and_ends_that_do_not_match(tmp_path: Path) -> None:
    events = [event("E"), event("B", ts=2), event("E", ts=3), event("E", ts=4), event("B", ts=5), event("?"), event("")]
    trace = reading(tmp_path / "t", json.dumps(events))
    assert trace.slices.dur_ns.tolist() == [1_000, -1]
    assert kinds(trace) == {"no begin": 2, "unknown phase": 2}


def test_damaged_text(tmp_path: Path) -> None:
    good = json.dumps(event("X", dur=1)).encode()
    broken = [b'{"ph":"X","name":"\xff\xfe","ts":1,"dur":1,"pid":1,"tid":1}', b'{"ph":"X",,}', b"7", good]
    trace = reading(tmp_path / "t", b"[" + b",".join([good, *broken]) + b"]")
    assert trace.slices.names.tolist() == ["e", "\ufffd\ufffd", "e"]
    assert [p.kind for p in trace.problems] == ["damaged", "unreadable"]
    assert "the event at byte" in str(trace.problems[0])
    trace = reading(tmp_path / "t", b"[" + b",".join([good] * 5)[:-9])
    assert len(trace.slices) == 4
    assert "is cut short" in str(trace.problems[0])


def test_values_where_texts_belong(tmp_path: Path) -> None:
    events = [
        event("X", dur=1, name=5, cat=None),
        event("X", dur=1, name=["a"], pid={"b": 1}, tid=[2]),
        event("X", dur=1, name=None, pid=None, tid=1.5, args="text"),
        event("M", name="process_name", args=[1]),
        event("s", id={"a": 1}),
        event("b", id=[1], id2="x"),
    ]
    trace = reading(tmp_path / "t", json.dumps(events))
    assert sorted(trace.slices.names) == ["", "5", "['a']", "e"]
    assert trace.select(names="5").slices.names.tolist() == ["5"]


def test_a_value_larger_than_any_record(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text("[" + json.dumps(event("X", dur=1, name="x" * 3_000_000)) + "]")
    with pytest.raises(InputError, match="one value takes over 1,000,000 bytes"):
        gputrace.read(tmp_path / "t.json", limits=Limits(most_record_bytes=1_000_000))
    assert len(gputrace.read(tmp_path / "t.json").slices) == 1


def test_nested_deep_and_on_many_tracks(tmp_path: Path) -> None:
    deep = [event("B", ts=k) for k in range(30_000)] + [event("E", ts=40_000 + k) for k in range(30_000)]
    slices = reading(tmp_path / "t", json.dumps(deep)).slices
    assert slices.depth.tolist() == list(range(30_000))
    assert slices.parent.tolist() == list(range(-1, 29_999))
    wide = [event("X", dur=1, tid=k) for k in range(100_000)]
    trace = reading(tmp_path / "t", json.dumps(wide))
    assert len(trace.tracks) == len(trace.slices) == 100_000
    assert set(trace.slices.depth.tolist()) == {0}


def test_packets_that_build_on_what_is_missing(tmp_path: Path) -> None:
    trace = pb.Trace()
    for known in (True, False):
        packet = trace.packet.add(trusted_packet_sequence_id=5 + known, timestamp=9)
        packet.sequence_flags = 3 if known else 2
        packet.track_event.type, packet.track_event.name, packet.track_event.track_uuid = 3, "i", 1
    trace.packet.add(trusted_packet_sequence_id=6, timestamp=9, timestamp_clock_id=77).track_event.type = 3
    trace.packet.add().ftrace_events.cpu = 1
    found = reading(tmp_path / "t", trace.SerializeToString())
    assert found.instants.names.tolist() == ["i"]
    assert kinds(found) == {"no state": 1, "undated": 1, "ftrace_events": 1}
    assert all(problem.place > 0 for problem in found.problems)


@pytest.mark.parametrize("seed", range(60))
def test_whatever_is_done_to_a_trace(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    sources = [
        write_trace(tmp_path / name, Host("h"), program(steps=4)) for name in ("a.pftrace", "b.json", "c.json.gz")
    ]
    (tmp_path / "t").write_bytes(harmed(chance, chance.choice([*sources, REAL_KINETO]).read_bytes()))
    trace, refused = None, ""
    try:
        trace = gputrace.read(tmp_path / "t")
    except InputError as error:
        refused = str(error)
    if trace is None:
        assert str(tmp_path / "t") in refused
        return
    for table in (trace.slices, trace.instants):
        assert all(isinstance(args, dict) for _, args in table.args.items())
    trace.select(names="*", tracks="*", start_ns=trace.start_ns, end_ns=trace.end_ns)
    for suffix in (".pftrace", ".json", ".csv"):
        convert(str(tmp_path / "t"), str(tmp_path / f"out{suffix}"))


class Far(dict[str, int]):
    """Names whose numbers begin high: the next one's is the length and 1."""

    first = 0

    def __len__(self) -> int:
        return self.first + super().__len__()


@pytest.mark.parametrize("first", [3, 900_000, 1 << 40])
def test_names_under_high_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: int) -> None:
    whole, bytes_of_whole = reading_takes(write_trace(tmp_path / "t.pftrace", Host("h"), program()))
    begin = sequence.Sequence.__init__

    def begin_high(self: sequence.Sequence, *args: Any) -> None:
        begin(self, *args)
        self._names = Far()

    monkeypatch.setattr(sequence.Sequence, "__init__", begin_high)
    monkeypatch.setattr(sequence, "NAMES_KEPT", 1 << 62)
    monkeypatch.setattr(Far, "first", first)
    found, bytes_of_found = reading_takes(write_trace(tmp_path / "high.pftrace", Host("h"), program()))
    assert [*found.slices.names] == [*whole.slices.names]
    assert found.problems == []
    assert bytes_of_found < bytes_of_whole + (1 << 20)


@pytest.mark.parametrize("iid", [90, 900_000, 1 << 31, 1 << 40, (1 << 64) - 1])
def test_a_name_that_nothing_uses_under_any_number(tmp_path: Path, iid: int) -> None:
    """As a flipped bit makes one: a table as long as the number is large took all memory there is."""
    path = write_trace(tmp_path / "t.pftrace", Host("h"), program())
    whole, bytes_of_whole = reading_takes(path)
    trace = pb.Trace.FromString(path.read_bytes())
    id = next(packet.trusted_packet_sequence_id for packet in trace.packet if packet.interned_data.event_names)
    more = pb.Trace()
    more.packet.add(trusted_packet_sequence_id=id).interned_data.event_names.add(iid=iid, name="never used")
    path.write_bytes(path.read_bytes() + more.SerializeToString())
    found, bytes_of_found = reading_takes(path)
    assert [*found.slices.names] == [*whole.slices.names]
    assert found.problems == []
    assert bytes_of_found < bytes_of_whole + (1 << 20)


def reading_takes(path: Path) -> tuple[Trace, int]:
    """A trace, and the most memory that reading it took, in bytes."""
    tracemalloc.start()
    trace = gputrace.read(path)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return trace, peak_bytes
