"""Both twins write the same bytes: any program, step by step on one clock, in both formats."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Any

import pytest
from gputrace.exporters.chrome import Chrome
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

from tests.engine import Engine, Slice, slices
from tests.hot.programs import Outcome, Step, run
from tests.hot.twin import BUILT, TWINS

pytestmark = pytest.mark.skipif(not BUILT, reason="there is one twin here")

PLACE = re.compile(r'\{"ph":"."(?:,"(?:s|bp)":".")*,"pid":(\d+),(?:"tid":(\d+),)?')
STEPS = (
    *("open", "open", "leaf", "close", "close", "close", "hand_over", "window", "end_window", "end_window", "instant"),
    *("counter", "failure", "use_stream", "shared", "again", "call", "generator", "generator", "tasks", "launch"),
    *("capture", "fail", "misread", "lose", "end_thread", "wait", "cycle", "cycle", "names"),
)
numbers = st.integers(0, 60)
steps = st.lists(st.tuples(st.sampled_from(STEPS), st.sampled_from([0, 0, 0, 1, 2]), numbers, numbers), max_size=40)


def fields(data: bytes) -> list[bytes]:
    """The packets of a trace, each as it stands there."""
    found, at = [], 0
    while at < len(data):
        assert data[at] == 0x0A
        at, size, shift = at + 1, 0, 0
        while True:
            byte = data[at]
            size |= (byte & 0x7F) << shift
            at, shift = at + 1, shift + 7
            if byte < 0x80:
                break
        found.append(data[at : at + size])
        at += size
    return found


def sequences(shard: bytes) -> dict[int, list[bytes]]:
    """Packets by sequence, real threads numbered in the order they come."""
    found: dict[int, list[bytes]] = defaultdict(list)
    tids: dict[int, int] = {}
    for data in fields(shard):
        packet = pb.TracePacket.FromString(data)
        if packet.HasField("track_descriptor"):
            described = packet.track_descriptor
            if described.HasField("thread"):
                described.thread.tid = tids.setdefault(described.thread.tid, len(tids))
            data = packet.SerializeToString(deterministic=True)
        found[packet.trusted_packet_sequence_id].append(data)
    return found


def lines(shard: bytes) -> dict[str, list[str]]:
    """Lines by process and thread, real threads numbered in the order they come."""
    found: dict[str, list[str]] = defaultdict(list)
    numbers: dict[str, int] = {}
    for line in shard.decode().splitlines():
        place = PLACE.match(line)
        assert place is not None, line
        tid = place[2] or ""
        if tid and int(tid) < 1 << 31:
            tid = f"T{numbers.setdefault(tid, len(numbers))}"
            line = line[: place.start(2)] + tid + line[place.end(2) :]
        found[f"{place[1]} {tid}"].append(line)
    return found


def same(program: list[Step], suffix: str) -> Outcome:
    pure, compiled = run("pure", program, suffix), run("compiled", program, suffix)
    assert (pure.error, compiled.error) == ("", "")
    of: Any = sequences if suffix == ".pftrace" else lines
    ours, theirs = of(pure.shard), of(compiled.shard)
    assert list(ours) == list(theirs)
    for key in ours:
        for one, other in zip(ours[key], theirs[key], strict=False):
            assert said(one) == said(other), key
            assert one == other, key
        assert len(ours[key]) == len(theirs[key]), key
    for outcome in (pure, compiled):  # whose real threads' ids may not be equally long
        assert outcome.report.pop("shard_bytes") == len(outcome.shard)
    assert pure.report == compiled.report
    return pure


def drawn(shard: bytes, suffix: str) -> list[Slice]:
    return slices(Engine(shard if suffix == ".pftrace" else b"[\n" + shard + Chrome.footer()))


def said(packet: Any) -> str:
    return packet if isinstance(packet, str) else str(pb.TracePacket.FromString(packet))


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps)
@example([("open", 0, 0, 3), ("launch", 0, 1, 1)])  # a window that ends beyond the clock map's piece that it begins on
def test_any_program_in_perfetto_s_format(program: list[Step]) -> None:
    same(program, ".pftrace")


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps)
def test_any_program_in_chrome_s_format(program: list[Step]) -> None:
    same(program, ".json")


@pytest.mark.parametrize("suffix", [".pftrace", ".json"])
def test_more_names_than_are_kept(suffix: str) -> None:
    """A sequence forgets its names at 4,096; the core keeps 16,384 and writes others out each time."""
    program = [("flood", 0, stream, 9000) for stream in (0, 2)] + [("flood", 0, 0, 300), ("open", 0, 1, 2)]
    same(program, suffix)


@pytest.mark.parametrize("suffix", [".pftrace", ".json"])
def test_a_span_left_open_and_dropped(suffix: str) -> None:
    """Its end comes in one twin when it is dropped, in the other when it is collected; what it says is the same."""
    program = [("drop", 0, 0, 0), ("leaf", 0, 1, 3), ("cycle", 0, 0, 0), ("wait", 0, 5, 5)]
    found = []
    for twin in TWINS:
        outcome = run(twin, program, suffix)
        assert outcome.error == ""
        found.append({(s.name, s.dur >= 0, s.args.get("ended")) for s in drawn(outcome.shard, suffix)})
    assert found[0] == found[1]
    assert ("dropped", True, "never closed") in found[0]
