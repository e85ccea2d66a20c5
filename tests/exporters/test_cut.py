"""A shard torn anywhere: `whole` keeps every complete record of it, and what it keeps loads, other shards behind it."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator

import pytest
from google.protobuf.internal import decoder
from gputrace.exporters import chrome, wire
from gputrace.exporters.perfetto import Perfetto
from hypothesis import given, settings
from hypothesis import strategies as st
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

from gputrace.model import BEGIN, COUNTER, COUNTER_TRACK, END, SLICE, Exporter
from tests.engine import Engine, assert_clean, slices
from tests.exporters.recordings import FORMATS, Script, join

pytestmark = pytest.mark.parametrize("exporter", FORMATS, ids=lambda exporter: exporter.__name__)
Format = type[Exporter]


def small(number: int = 0) -> Script:
    script = Script(number, 4000 + number)
    thread, stream = script.thread(), script.stream()
    memory = script.track(COUNTER_TRACK, "allocated", parent=stream.parent, unit="bytes")
    script.add(thread, (1, BEGIN, "step\n", {"x": 1, "y": "a long } \n text " * 20}), (2, BEGIN, "launch", None, 1))
    script.add(stream, (5, BEGIN, "kernel", None, 1), (30_000, END), (30_000, BEGIN, "kernel"), (3_000_000, END))
    script.add(memory, (5, COUNTER, 12))
    script.add(thread, (2, SLICE, "leaf", None, 0, 3), (3, SLICE, "leaf", None, 0, 4))
    script.add(thread, (4, END), (9, END))
    return script


def records(exporter: Format, shard: bytes) -> Iterator[tuple[int, bool]]:
    """(end, is a begin) of every record, found without the exporters' code."""
    end = 0
    if exporter is Perfetto:
        for packet in pb.Trace.FromString(shard).packet:
            length, body = decoder._DecodeVarint(shard, end + 1)  # type: ignore[attr-defined]
            end = body + length
            yield end, packet.track_event.type == pb.TrackEvent.TYPE_SLICE_BEGIN
    else:
        for line in shard.splitlines(keepends=True):
            end += len(line)
            yield end, json.loads(line[:-2])["ph"] == "B"


def whole(exporter: Format, data: bytes) -> int:
    return exporter.whole(io.BytesIO(data))


def test_cut_at_every_byte(exporter: Format) -> None:
    shard = small().shard(exporter)
    ends = {0: 0}
    for end, begins in records(exporter, shard):
        ends[end] = max(ends.values()) + begins
    assert max(ends) == len(shard)
    for cut in range(len(shard) + 1):
        assert whole(exporter, shard[:cut]) == max(end for end in ends if end <= cut)
    for end, begun in ends.items():
        engine = Engine(join(exporter, [shard[:end]]))
        assert_clean(engine)
        assert len(slices(engine)) == begun


def test_the_next_shard_is_unharmed(exporter: Format) -> None:
    first, second = small(0).shard(exporter), small(1).shard(exporter)
    both = slices(Engine(join(exporter, [first, second])))
    for cut in range(len(first) - 40, len(first), 3):
        engine = Engine(join(exporter, [first[:cut], second]))
        assert_clean(engine)
        found = [(s.name, s.ts, s.dur, s.track) for s in slices(engine) if "4001" in s.track[0]]
        assert found == [(s.name, s.ts, s.dur, s.track) for s in both if "4001" in s.track[0]]


@pytest.mark.parametrize("size", [1, 2, 9, 10, 11, 12, 4096, 200_000])
def test_a_tail_of_zeros_goes(exporter: Format, size: int) -> None:
    """Space set aside and never written."""
    shard = small().shard(exporter)
    assert whole(exporter, shard + bytes(size)) == len(shard)
    assert whole(exporter, bytes(size)) == 0


def test_a_record_that_zeros_completed(exporter: Format) -> None:
    """A machine that went down leaves a file of its full length whose last blocks are zeros, from any byte on.

    A record is kept if it still reads as one: what it lost inside, the engine counts, and the trace still loads.
    """
    shard = small().shard(exporter)
    ends = [0, *(end for end, _ in records(exporter, shard))]
    odd = []
    for cut in range(len(shard)):
        zeroed = shard[:cut] + bytes(len(shard) - cut)
        before, after = max(end for end in ends if end <= cut), min(end for end in ends if end > cut)
        length = whole(exporter, zeroed)
        assert length in (before, after)
        if length == after:
            odd.append(zeroed)
    for zeroed in odd[::20]:
        Engine(join(exporter, [zeroed]))


@pytest.mark.parametrize("chunk", [12, 13, 64, 100])
def test_records_across_chunks(exporter: Format, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is looked at in one step is smaller than a record, or ends inside one, at any byte of it."""
    monkeypatch.setattr(wire, "CHUNK", chunk)
    monkeypatch.setattr(chrome, "CHUNK", chunk)
    shard = small().shard(exporter)
    ends = [0, *(end for end, _ in records(exporter, shard))]
    for cut in range(0, len(shard) + 1, 3):
        assert whole(exporter, shard[:cut]) == max(end for end in ends if end <= cut)
    for end in ends:
        assert whole(exporter, shard[:end] + bytes(5)) == end


def test_a_shard_larger_than_a_chunk(exporter: Format) -> None:
    script = Script()
    thread = script.thread()
    script.add(thread, (0, BEGIN, "x" * 3_000_000), (1, END))
    script.add(thread, *((2 + i // 2, BEGIN + i % 2, None if i % 2 else "step") for i in range(200_000)))
    shard = script.shard(exporter)
    assert whole(exporter, shard) == len(shard)
    assert len(shard) - 100 < whole(exporter, shard[:-1]) < len(shard)
    assert whole(exporter, shard[:2_000_000]) < 2_000


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    data=st.one_of(
        st.binary(max_size=200), st.lists(st.sampled_from(b"\x0a\x00\x01\x80\xff},\n"), max_size=40).map(bytes)
    )
)
def test_any_bytes(exporter: Format, data: bytes) -> None:
    """Whatever stands there, a length comes back, the same for what it keeps; and good records before it stay."""
    length = whole(exporter, data)
    assert 0 <= length <= len(data)
    assert whole(exporter, data[:length]) == length
    shard = small().shard(exporter)
    assert len(shard) <= whole(exporter, shard + data) <= len(shard) + len(data)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(tails=st.lists(st.binary(min_size=1, max_size=30), min_size=1, max_size=4))
def test_whatever_follows_a_good_record_the_trace_loads(exporter: Format, tails: list[bytes]) -> None:
    """Bytes at random, and bytes at random in a record's clothes."""
    shard = small().shard(exporter)
    dressed = b"".join(b"\x0a" + bytes((len(tail),)) + tail for tail in tails)
    for garbage in (b"".join(tails), dressed):
        Engine(join(exporter, [shard + garbage]))
