"""Traces of our own, read back: every slice as the engine draws it, in either format."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
from gputrace.exporters.chrome import Chrome
from gputrace.exporters.perfetto import Perfetto
from hypothesis import HealthCheck, given, settings

import gputrace
from gputrace.model import BEGIN, END, INSTANT, SLICE, Exporter
from gputrace.reading import packets as packets_module
from tests.engine import Engine
from tests.exporters.recordings import BASE, RECORDING, Script, write
from tests.exporters.test_both import scripts
from tests.merging.making import Host, program, write_trace
from tests.table.rows import of_engine, of_trace, paths_of_engine, paths_of_trace

BOTH = pytest.mark.parametrize("exporter", [Perfetto, Chrome])
OFFSET_NS = RECORDING.boottime_offset_ns


def check(path: Path, exporter: type[Exporter], *made: Script) -> gputrace.table.trace.Trace:
    path.write_bytes(write(exporter, *made))
    trace = gputrace.read(path)
    engine = Engine(path)
    base_ns = 0 if exporter is Perfetto else BASE + OFFSET_NS
    assert of_trace(trace, base_ns) == of_engine(engine)
    assert [p for p in trace.problems if p.kind not in ("no begin", "no slice")] == []
    if exporter is Perfetto:
        assert paths_of_trace(trace) == paths_of_engine(engine)
    return trace


@BOTH
@settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, *HealthCheck],
)
@given(script=scripts(), other=scripts(number=1))
def test_any_program(tmp_path: Path, exporter: type[Exporter], script: Script, other: Script) -> None:
    check(tmp_path / "t", exporter, script, other)


@BOTH
def test_what_a_program_draws(tmp_path: Path, exporter: type[Exporter]) -> None:
    trace = check(tmp_path / "t", exporter, program(0, 10, steps=9), program(1, 11, name="rank 3 · node1 · 11"))
    assert trace.tool == "gputrace"
    assert trace.clock == "boottime"
    kinds = {(track.kind, track.name, track.pid) for track in trace.tracks if track.kind in ("thread", "stream")}
    assert kinds == {
        (kind, name, pid) for pid in (10, 11) for kind, name in (("thread", "MainThread"), ("stream", "stream 7"))
    }
    paths = {str(track) for track in trace.tracks if track.kind == "stream"}
    assert paths == {"train.py/GPU 0 · NVIDIA H200/stream 7", "rank 3 · node1 · 11/GPU 0 · NVIDIA H200/stream 7"}
    assert {(track.pid, track.rank, track.host) for track in trace.tracks} == {(10, -1, ""), (11, 3, "node1")}
    assert [str(track) for track in trace.tracks if track.kind == "counter"] == [
        "train.py/loss",
        "rank 3 · node1 · 11/loss",
    ]


def test_both_formats_of_a_recording_are_read_alike(tmp_path: Path) -> None:
    tables = []
    for exporter in (Perfetto, Chrome):
        (tmp_path / "t").write_bytes(write(exporter, program(steps=20)))
        trace = gputrace.read(tmp_path / "t")
        slices = trace.slices
        rows = zip(slices.ts_ns, slices.dur_ns, slices.names, slices.depth, slices.parent, strict=True)
        tables.append(([*rows], [slices.args[k] for k in range(len(slices))], trace.flows.source.tolist()))
        assert trace.clocks.boottime_ns.tolist() == [BASE + OFFSET_NS, BASE + OFFSET_NS + 10_000_000_000]
    assert tables[0] == tables[1]


def test_gzipped_and_merged(tmp_path: Path) -> None:
    plain = write_trace(tmp_path / "a.pftrace", Host("h"), program(steps=50))
    (tmp_path / "b").write_bytes(gzip.compress(plain.read_bytes()))
    one, two = gputrace.read(plain), gputrace.read(tmp_path / "b")
    assert one.slices.ts_ns.tolist() == two.slices.ts_ns.tolist()
    assert of_trace(one) == of_trace(two)


def test_pieces_of_any_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names, times and arrows reach over from one piece of the file to the next."""
    script = program(steps=1)
    track, other = script.thread(), script.thread()
    for k in range(400):
        script.add(
            track, (k * 10_000_000, BEGIN, f"name {k % 30}", {"k": k}), (k * 10_000_000 + 50, END, None, {"end": k})
        )
        script.add(other, (k * 100, SLICE, f"other {k % 7}", None, 0, k * 100 + 50), (k * 100 + 60, INSTANT, "here"))
    path = tmp_path / "t"
    whole = check(path, Perfetto, script)
    for size in (1 << 10, 5_000, 1 << 14):
        monkeypatch.setattr(packets_module.packets, "__defaults__", (size,))
        assert of_trace(gputrace.read(path)) == of_trace(whole)


@BOTH
def test_more_names_than_are_kept(tmp_path: Path, exporter: type[Exporter]) -> None:
    script = Script()
    script.add(script.thread(), *((k * 10, SLICE, f"name {k}", {f"key {k}": k}, 0, k * 10 + 5) for k in range(9_000)))
    (tmp_path / "t").write_bytes(write(exporter, script))
    slices = gputrace.read(tmp_path / "t").slices
    assert slices.names.tolist() == [f"name {k}" for k in range(9_000)]
    assert [slices.args[k] for k in (0, 4_095, 4_096, 8_999)] == [{f"key {k}": k} for k in (0, 4_095, 4_096, 8_999)]


@BOTH
def test_self_time_and_the_unfinished(tmp_path: Path, exporter: type[Exporter]) -> None:
    script = Script()
    script.add(
        script.thread(), (0, BEGIN, "out"), (10, SLICE, "in", None, 0, 30), (40, SLICE, "in", None, 0, 45), (50, END)
    )
    script.add(script.thread(), (0, BEGIN, "lost"), (5, SLICE, "in", None, 0, 9), (20, INSTANT, "last"))
    slices = check(tmp_path / "t", exporter, script).slices
    by_name = dict(zip(slices.names, slices.self_ns.tolist(), strict=True))
    assert by_name["out"] == 25
    assert slices.names[slices.unfinished].tolist() == ["lost"]
    assert by_name["lost"] == 0


@BOTH
def test_a_part_of_it(tmp_path: Path, exporter: type[Exporter]) -> None:
    (tmp_path / "t").write_bytes(write(exporter, program(steps=10)))
    whole = gputrace.read(tmp_path / "t")
    gpu = gputrace.read(tmp_path / "t", tracks="*/GPU 0*/*")
    assert set(gpu.slices.names) == {"forward"}
    assert len(gpu.slices) == 10
    assert len(gpu.flows) == 0
    inner = gputrace.read(tmp_path / "t", names=["for*"])
    assert len(inner.slices) == 20
    assert len(inner.flows) == 10
    assert set(inner.slices.parent.tolist()) == {-1}
    assert [inner.slices.args[k] for k in inner.flows.target.tolist()] == [{"error_ns": 7}] * 10
    start_ns = whole.start_ns
    middle = whole.select(start_ns=start_ns + 200_000, end_ns=start_ns + 300_000)
    assert len(middle.slices) == 3
    assert middle.slices.args[0] == {"number": 2}
    assert len(middle.counters) == 1
    # What lies across an edge of the range is in it.
    assert whole.select(start_ns=start_ns + 4_999, end_ns=start_ns + 5_000).slices.names.tolist() == ["step", "forward"]
    assert whole.select(start_ns=start_ns + 5_000, end_ns=start_ns + 5_001).slices.names.tolist() == ["forward"]
    assert np.array_equal(whole.select().slices.parent, whole.slices.parent)
