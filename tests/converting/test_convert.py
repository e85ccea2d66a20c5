"""A trace in another format shows the same: every slice, to the nanosecond, in the engine and read back."""

from __future__ import annotations

import csv
import gzip
import json
from collections import Counter as Count
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gputrace
from gputrace.converting.convert import Part, convert
from gputrace.errors import InputError, OutputError, UsageError
from gputrace.model import INSTANT, SLICE
from gputrace.table.trace import Trace
from gputrace.table.tracks import Track
from tests.engine import Engine, assert_clean, slices
from tests.merging.making import Drawn, Host, program, write_trace
from tests.merging.test_chrome import KINETO, kineto

HOST = Host("node0")
REAL_KINETO = Path(__file__).parent.parent / "merging" / "kineto.json"


def rows(trace: Trace) -> Any:
    """What a trace says, whatever its format: names, times, nesting and args; arrows; samples; moments."""
    table = trace.slices
    lines = [
        (
            int(table.ts_ns[k]),
            int(table.dur_ns[k]),
            table.names[k],
            int(table.depth[k]),
            repr(sorted(table.args[k].items())),
        )
        for k, numbers in enumerate(zip(*(c.tolist() for c in (table.ts_ns, table.dur_ns, table.depth)), strict=True))
    ]
    return {
        "slices": Count(lines),
        "arrows": Count(
            zip([lines[k] for k in trace.flows.source], [lines[k] for k in trace.flows.target], strict=True)
        ),
        "samples": Count(zip(trace.counters.ts_ns.tolist(), trace.counters.value.tolist(), strict=True)),
        "instants": Count(zip(trace.instants.ts_ns.tolist(), trace.instants.names, strict=True)),
    }


def drawn(path: Path) -> Count[Any]:
    return Count((s.ts, s.dur, s.name, s.depth) for s in Drawn(path).slices)


def two_programs(path: Path) -> Path:
    first = program(0, 10, steps=5)
    first.add(first.thread("other"), (7, INSTANT, "now", {"n": 1}), (9, SLICE, 'quoted "name" \n', {"s": "é"}, 0, 12))
    return write_trace(path, HOST, first, program(1, 11, steps=4, name="eval.py"))


FORMS = ["t.pftrace", "t.json", "t.pftrace.gz", "t.json.gz"]


@pytest.mark.parametrize("source", FORMS)
@pytest.mark.parametrize("target", FORMS)
def test_every_way_between_formats(tmp_path: Path, source: str, target: str) -> None:
    path = two_programs(tmp_path / source)
    output = tmp_path / f"out-{target}"
    outcome = convert(str(path), str(output))
    assert (outcome.problems, outcome.notes) == ([], [])
    assert (output.read_bytes()[:2] == b"\x1f\x8b") == target.endswith(".gz")
    before, after = gputrace.read(path), gputrace.read(output)
    assert rows(after) == rows(before)
    assert Count((s.ts, s.dur, s.depth) for s in Drawn(output).slices) == Count(
        (s.ts, s.dur, s.depth) for s in Drawn(path).slices
    )
    for kind in ("stream", "thread", "counter"):
        for pid in (10, 11):
            of_before, of_after = (rows(trace.select(tracks=_are(kind, pid))) for trace in (before, after))
            assert of_before == of_after
            assert of_before["slices"] or of_before["samples"]


def _are(kind: str, pid: int) -> Callable[[Track], bool]:
    return lambda track: (track.kind, track.pid) == (kind, pid)


def test_there_and_back_again_many_times(tmp_path: Path) -> None:
    path = two_programs(tmp_path / "0.pftrace")
    for k, suffix in enumerate([".json", ".pftrace", ".json.gz", ".pftrace.gz"], 1):
        convert(str(path), str(tmp_path / f"{k}{suffix}"))
        path = tmp_path / f"{k}{suffix}"
    assert rows(gputrace.read(path)) == rows(gputrace.read(tmp_path / "0.pftrace"))


# --- what other tools wrote -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["t.pftrace", "t.json"])
def test_a_real_torch_profile_comes_out_whole(tmp_path: Path, target: str) -> None:
    output = tmp_path / target
    assert convert(str(REAL_KINETO), str(output)).problems == []
    before, after = gputrace.read(REAL_KINETO), gputrace.read(output)
    assert Count(zip(after.slices.ts_ns, after.slices.dur_ns, after.slices.names, strict=True)) == Count(
        zip(before.slices.ts_ns, before.slices.dur_ns, before.slices.names, strict=True)
    )
    assert len(slices(Engine(output))) == len(before.slices) + len(before.instants)


@pytest.mark.parametrize("target", ["t.pftrace", "t.json"])
@settings(max_examples=15, deadline=None, derandomize=True)
@given(data=st.lists(st.tuples(st.integers(0, 60), st.integers(0, 40), st.integers(1, 2)), min_size=1, max_size=30))
def test_no_overlapping_slice_is_lost_or_bent(
    tmp_path_factory: pytest.TempPathFactory, target: str, data: list[tuple[int, int, int]]
) -> None:
    folder = tmp_path_factory.mktemp("t")
    events = [
        {"ph": "X", "name": f"k{k}", "ts": ts / 10, "dur": dur / 10, "pid": 7, "tid": tid, "args": {"k": k}}
        for k, (ts, dur, tid) in enumerate(data)
    ]
    (folder / "in.json").write_text(json.dumps(events))
    convert(str(folder / "in.json"), str(folder / target))
    meant = Count((f"k{k}", ts * 100, dur * 100, k) for k, (ts, dur, _) in enumerate(data))
    engine = Engine(folder / target)
    assert_clean(engine)
    assert Count((s.name, s.ts, s.dur, s.args["k"]) for s in slices(engine)) == meant
    # A part that is all of it goes another way.
    convert(str(folder / "in.json"), str(folder / f"part-{target}"), Part(tracks=("*",)))
    engine = Engine(folder / f"part-{target}")
    assert_clean(engine)
    assert Count((s.name, s.ts, s.dur, s.args["k"]) for s in slices(engine)) == meant


def test_a_gpu_keeps_its_arrows(tmp_path: Path) -> None:
    path = kineto(tmp_path / "p.json", KINETO)
    convert(str(path), str(tmp_path / "t.pftrace"))
    before, after = gputrace.read(path), gputrace.read(tmp_path / "t.pftrace")
    assert len(after.flows) == len(before.flows) > 0
    assert {t.name for t in after.tracks if t.is_gpu} >= {"stream 7"}


def test_times_below_zero_are_moved_and_told(tmp_path: Path) -> None:
    events = [{"ph": "X", "name": "a", "ts": -5, "dur": 2, "pid": 1, "tid": 1}]
    events += [{"ph": "X", "name": "b", "ts": 1, "dur": 2, "pid": 1, "tid": 1}]
    (tmp_path / "in.json").write_text(json.dumps(events))
    for part in (Part(), Part(tracks=("*",))):
        outcome = convert(str(tmp_path / "in.json"), str(tmp_path / "t.pftrace"), part)
        assert "its times begin at -5,000 ns; no format knows any below 0" in outcome.notes[0]
        assert drawn(tmp_path / "t.pftrace") == Count([(0, 2_000, "a", 0), (6_000, 2_000, "b", 0)])


def test_times_since_1970_keep_their_nanoseconds(tmp_path: Path) -> None:
    (tmp_path / "in.json").write_text('[{"ph":"X","name":"a","ts":1790000000000000.123,"dur":0.001,"pid":1,"tid":1}]')
    for name in ("t.pftrace", "t.json", "again.json"):
        convert(str(tmp_path / ("t.json" if name == "again.json" else "in.json")), str(tmp_path / name))
        assert gputrace.read(tmp_path / name).slices.ts_ns.tolist() == [1_790_000_000_000_000_123]
    [only] = Drawn(tmp_path / "t.json").slices
    assert (only.ts, only.dur) == (1_790_000_000_000_000_123, 1)


# --- a part -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", ["t.pftrace", "t.json"])
@pytest.mark.parametrize("target", ["out.pftrace", "out.json.gz"])
def test_a_part_is_what_select_gives(tmp_path: Path, source: str, target: str) -> None:
    path = two_programs(tmp_path / source)
    before = gputrace.read(path)
    part = Part(start_ns=100_000, end_ns=250_000)
    assert convert(str(path), str(tmp_path / target), part).problems == []
    wanted = before.select(start_ns=before.start_ns + 100_000, end_ns=before.start_ns + 250_000)
    assert 0 < len(wanted.slices) < len(before.slices)
    assert len(wanted.flows) > 0
    after = gputrace.read(tmp_path / target)
    assert rows(after) == rows(wanted)
    Drawn(tmp_path / target)
    assert convert(str(path), str(tmp_path / target), Part(tracks=("*GPU*",), names=("for*",))).problems == []
    gpu = gputrace.read(tmp_path / target)
    assert set(gpu.slices.names) == {"forward"}
    assert len(gpu.slices) == 9


@pytest.mark.parametrize("source", ["t.pftrace", "t.json"])
@pytest.mark.parametrize("target", ["o.json.gz", "o.pftrace", "o.csv"])
@pytest.mark.parametrize(("part", "said"), [(Part(tracks=("nothing",)), "track"), (Part(names=("nothing",)), "name")])
def test_of_a_part_that_holds_nothing_there_is_no_file(
    tmp_path: Path, source: str, target: str, part: Part, said: str
) -> None:
    """By name nothing but counters is left, which names do not choose."""
    path, output = two_programs(tmp_path / source), tmp_path / target
    output.write_bytes(b"of an earlier conversion")
    outcome = convert(str(path), str(output), part)
    told = f"(no {said} fits 'nothing'; it is 0.000461 s long, with tracks like "
    [problem] = outcome.problems
    assert f"nothing in it is of the part that was asked for {told}" in problem
    assert problem.endswith(f": {output} is not written")
    assert outcome.path == ""
    assert output.read_bytes() == b"of an earlier conversion"
    assert sorted(each.name for each in tmp_path.iterdir()) == sorted([source, target])


def test_of_a_part_that_a_table_has_no_row_of_there_is_no_file(tmp_path: Path) -> None:
    """Though other tables have."""
    path, output = str(two_programs(tmp_path / "t.pftrace")), tmp_path / "o.csv"
    stream = Part(tracks=("*stream*",))
    assert convert(path, str(output), stream).path
    output.unlink()
    [problem] = convert(path, str(output), stream, table="counters").problems
    assert "no track fits '*stream*'" in problem
    assert not output.exists()


# --- tables -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("table", ["slices", "instants", "counters", "flows", "tracks"])
def test_tables(tmp_path: Path, table: str) -> None:
    path = two_programs(tmp_path / "t.pftrace")
    wanted = gputrace.read(path).to_arrow(table)
    for suffix in (".parquet", ".arrow", ".csv"):
        assert convert(str(path), str(tmp_path / f"t{suffix}"), table=table).problems == []
    assert pyarrow.parquet.read_table(tmp_path / "t.parquet").to_pylist() == wanted.to_pylist()
    assert pyarrow.ipc.open_file(tmp_path / "t.arrow").read_all().to_pylist() == wanted.to_pylist()
    with open(tmp_path / "t.csv", newline="", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    assert lines == [{k: "" if v is None else str(v) for k, v in row.items()} for row in wanted.to_pylist()]
    assert len(lines) > 0


# --- what cannot be done ----------------------------------------------------------------------------------------------


def test_outputs_that_are_none(tmp_path: Path) -> None:
    path = two_programs(tmp_path / "t.pftrace")
    before = path.read_bytes()
    for output, error, what in [
        ("t.txt", UsageError, r"'.txt' names no trace format. Known are .pftrace, .json.*or .parquet, .arrow, .csv"),
        ("t.pftrace", UsageError, "it is the trace that is read"),
        ("none/t.json", OutputError, "does not exist; make it first"),
    ]:
        with pytest.raises(error, match=what):
            convert(str(path), str(tmp_path / output))
    assert path.read_bytes() == before


@pytest.mark.parametrize("target", ["o.pftrace", "o.json", "o.csv"])
def test_inputs_that_are_none_leave_no_output(tmp_path: Path, target: str) -> None:
    (tmp_path / target).write_text("older")
    for content, what in [
        (b"", "is empty"),
        (b"once upon a time", "is not a trace"),
        (b"PK\x03\x04", "is no trace but a zip archive"),
        (b'{"lr": 0.1}', 'holds no "traceEvents"'),
        (gzip.compress(b"", mtime=0), "is empty"),
    ]:
        (tmp_path / "in.pftrace").write_bytes(content)
        with pytest.raises(InputError, match=what):
            convert(str(tmp_path / "in.pftrace"), str(tmp_path / target))
        assert sorted(p.name for p in tmp_path.iterdir()) == sorted([target, "in.pftrace"])
        assert (tmp_path / target).read_text() == "older"


@pytest.mark.parametrize("target", ["o.pftrace", "o.json", "o.csv"])
@pytest.mark.parametrize("source", FORMS)
def test_of_a_torn_one_what_is_there_is_kept(tmp_path: Path, source: str, target: str) -> None:
    path = two_programs(tmp_path / source)
    path.write_bytes(path.read_bytes()[: -len(path.read_bytes()) // 4])
    outcome = convert(str(path), str(tmp_path / target))
    assert outcome.problems
    assert all(problem.startswith(str(path)) for problem in outcome.problems)
    if not target.endswith(".csv"):
        assert 0 < len(gputrace.read(tmp_path / target).slices) <= 29
