"""What is JSON's alone: a file any JSON reader takes, times without a float, ids that no system gives."""

from __future__ import annotations

import io
import json
import math
from typing import Any

import pytest
from gputrace.exporters.chrome import FLOWS_KEPT, Chrome
from hypothesis import HealthCheck, given, settings

from gputrace.model import BEGIN, COUNTER, COUNTER_TRACK, END, GROUP, INSTANT, SLICE, THREAD, Recording, Track
from tests.engine import Engine, assert_clean, counters, slices
from tests.exporters.recordings import BASE, RECORDING, SNAPSHOTS, Script, join, write
from tests.exporters.test_both import NAMES, VALUES, scripts


def events(data: bytes) -> list[dict[str, Any]]:
    def no_constant(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    found: list[dict[str, Any]] = json.loads(data, parse_constant=no_constant)
    return found


@settings(max_examples=50, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(script=scripts(), other=scripts(number=1))
def test_any_program_is_json(script: Script, other: Script) -> None:
    """One event a line, and each value as it was given."""
    data = write(Chrome, script, other)
    assert data.count(b"\n") == len(events(data)) + 2
    begun = [e for e in events(data) if e["ph"] == "B"]
    meant = [edge for s in (script, other) for _, edges in s.batches for edge in edges if edge[1] in (BEGIN, SLICE)]
    assert len(begun) == len(meant)
    for event, (ts, _, name, args, *_) in zip(begun, meant, strict=True):
        assert event["name"] == name.replace("\0", "\u2400")
        assert round(event["ts"] * 1000) == ts - BASE
        for key, value in (args or {}).items():
            if isinstance(value, float) and math.isfinite(value):
                assert event["args"][key] == value


def test_names_and_values_read_back() -> None:
    script = Script()
    thread = script.thread()
    script.add(thread, *((i, INSTANT, name, VALUES) for i, name in enumerate(NAMES)))
    read = [e for e in events(write(Chrome, script)) if e["ph"] == "i"]
    for event, name in zip(read, NAMES, strict=True):
        assert event["name"] == "".join("\ufffd" if 0xD800 <= ord(c) < 0xE000 else c for c in name).replace(
            "\0", "\u2400"
        )
    args = read[0]["args"]
    assert args["tiny"] == 5e-324
    assert args["2^53 + 1"] == (1 << 53) + 1
    assert args["2^63"] == "0x8000000000000000"
    assert (args["nan"], args["inf"], args["-inf"]) == ("NaN", "Infinity", "-Infinity")
    assert args["true"] is True


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0.000"),
        (1, "0.001"),
        (999, "0.999"),
        (1000, "1.000"),
        (86_400_000_000_001, "86400000000.001"),
        (-7, "0.000"),
    ],
)
def test_times_are_made_of_integers(ns: int, text: str) -> None:
    """Three decimals always; before the base, 0: the engine drops what is negative."""
    script = Script()
    script.add(script.thread(), (ns, BEGIN, "x"))
    assert f'"name":"x","ts":{text}}},\n'.encode() in script.shard(Chrome)


def test_ids() -> None:
    """Below 2^32 and never 0, at the largest process number too; made-up ones meet no real one and not each other."""
    rows: set[tuple[int, int]] = set()
    for number in (0, 1, (1 << 20) - 1):
        script = Script(number, (1 << 22) - number % 7)
        for i in range(3):
            group = script.track(GROUP, f"GPU {i}")
            for _ in range(2):
                script.add(script.track("stream", "s", parent=group), (1, BEGIN, "k"))
        script.add(script.thread(tid=0), (1, BEGIN, "a thread whose id nobody knows"))
        script.add(script.thread(tid=77), (1, BEGIN, "x"))
        begun = [(e["pid"], e["tid"]) for e in events(write(Chrome, script)) if e["ph"] == "B"]
        assert len(set(begun)) == 8
        assert not rows & set(begun)
        rows |= set(begun)
        for event in events(write(Chrome, script)):
            assert 0 < event["pid"] < 1 << 32
            assert 0 < event.get("tid", 1) < 1 << 32
            assert ("tid" in event) == (event["ph"] in "BE" or event["name"].startswith("thread_"))


def test_header_and_footer() -> None:
    facts = {"command": ["python", 'a "b".py'], "count": 3, "rate": 0.5, "ok": True, "wide": 1 << 80}
    data = join(Chrome, [Script().shard(Chrome)], facts)
    recording, metadata = events(data)[:2]
    assert recording["name"] == "gputrace.recording"
    assert recording["args"]["id"] == RECORDING.id
    assert recording["args"]["base_ns"] == BASE
    assert recording["args"]["boottime_offset_ns"] == RECORDING.boottime_offset_ns
    assert [c["monotonic_ns"] for c in recording["args"]["clocks"]] == sorted(s.monotonic_ns for s in SNAPSHOTS)
    assert metadata["args"] == {**facts, "wide": hex(1 << 80)}
    assert data.startswith(b"[\n")
    assert data.endswith(b"}\n]\n")


def test_an_array_that_was_never_closed_loads() -> None:
    script = Script()
    script.add(script.thread(), (1, BEGIN, "x"), (2, END))
    engine = Engine(Chrome.header(RECORDING, SNAPSHOTS, {}) + script.shard(Chrome))
    assert [(s.name, s.ts, s.dur) for s in slices(engine)] == [("x", 1, 1)]
    assert_clean(engine)


def test_counters_of_one_name_stay_apart() -> None:
    """JSON tells counters apart by process and name alone."""
    script = Script()
    groups = [script.track(GROUP, f"GPU {i}") for i in range(2)]
    for i, parent in enumerate((*groups, groups[0], None)):
        script.add(script.track(COUNTER_TRACK, "allocated", parent=parent, unit="bytes"), (1, COUNTER, i))
    found = {path: [value for _, value in samples] for path, samples in counters(Engine(write(Chrome, script))).items()}
    made_up = 1 << 31
    assert found == {
        (f"GPU 0 (train.py 4242) {made_up}", "allocated bytes"): [0],
        (f"GPU 1 (train.py 4242) {made_up + 1}", "allocated bytes"): [1],
        (f"GPU 0 (train.py 4242) {made_up}", "allocated (2) bytes"): [2],
        ("train.py 4242", "allocated bytes"): [3],
    }


def test_no_name_on_an_end_and_args_where_they_belong() -> None:
    script = Script()
    script.add(script.thread(), (1, BEGIN, "x", {"a": 1}), (2, END, None, {"b": 2}), (3, BEGIN, "x"), (4, END))
    told = [{k: e[k] for k in ("ph", "name", "args") if k in e} for e in events(write(Chrome, script))]
    assert [e for e in told if e["ph"] in "BE"] == [
        {"ph": "B", "name": "x", "args": {"a": 1}},
        {"ph": "E", "args": {"b": 2}},
        {"ph": "B", "name": "x"},
        {"ph": "E"},
    ]


def test_process_metadata() -> None:
    file = io.BytesIO()
    writer = Chrome(file, RECORDING, Script(3).process)
    writer.open_track(Track(1, THREAD, "main", tid=4242))
    writer.metadata({"dropped": 3, "told": ["a"]})
    read = {e["name"]: e for e in events(join(Chrome, [file.getvalue()])) if e["pid"] == 4242}
    assert read["gputrace.metadata"]["args"] == {"dropped": 3, "told": ["a"]}
    assert read["gputrace.process"]["args"]["number"] == 3
    assert read["gputrace.process"]["args"]["command_line"] == ["python", "train.py"]
    assert read["process_name"]["args"] == {"name": "train.py"}


def test_flows_with_one_end_are_forgotten() -> None:
    """Half-open ones, were they kept, would grow with the program."""
    script = Script()
    thread, stream = script.thread(), script.stream()
    script.add(thread, *((i, INSTANT, "launch", None, i + 1) for i in range(FLOWS_KEPT + 5)))
    script.add(stream, (FLOWS_KEPT + 9, BEGIN, "kernel", None, FLOWS_KEPT), (FLOWS_KEPT + 9, BEGIN, "old", None, 1))
    phases = [e["ph"] for e in events(write(Chrome, script)) if e["ph"] in "sf"]
    assert phases == ["s"] * (FLOWS_KEPT + 5) + ["f", "s"]


def test_another_recordings_base() -> None:
    script = Script()
    script.add(script.thread(), (2_000, BEGIN, "x"))
    shard = script.shard(Chrome, Recording(RECORDING.id, BASE + 500, 0))
    assert b'"ts":1.500}' in shard


@pytest.mark.parametrize("whole", [True, False])
def test_an_arrow_to_a_window_drawn_before_its_own_launch(whole: bool) -> None:
    """Within its uncertainty a window may seem to begin first: the engine drops an arrow that leads back in time."""
    script = Script()
    window = [(4_000, SLICE, "gpu", None, 1, 9_000)]
    if not whole:
        window = [(4_000, BEGIN, "gpu", None, 1), (9_000, END)]  # type: ignore[list-item]
    script.add(script.thread(), (5_000, SLICE, "host", None, 1, 6_000))
    script.add(script.stream(), *window)
    engine = Engine(write(Chrome, script))
    arrows = engine.query(
        "select o.name as a, i.name as b from flow join slice o on o.id = slice_out join slice i on i.id = slice_in"
    )
    assert [{*arrow.values()} for arrow in arrows] == [{"host", "gpu"}], (
        "which way it leads, the engine decides by time"
    )
    (gpu,) = (each for each in slices(engine) if each.name == "gpu")
    assert gpu.dur == 5_000
