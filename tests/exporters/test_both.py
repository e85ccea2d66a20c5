"""Every format, loaded by the real engine: each slice is where it was meant, and the engine repaired nothing."""

from __future__ import annotations

import io
import math
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gputrace.model import BEGIN, COUNTER, COUNTER_TRACK, END, INSTANT, LANE, SLICE, Exporter
from tests.engine import Engine, assert_clean, counters, slices
from tests.exporters.recordings import FORMATS, RECORDING, Script, join, meant, samples_meant, samples_seen, seen, write

pytestmark = pytest.mark.parametrize("exporter", FORMATS, ids=lambda exporter: exporter.__name__)
Format = type[Exporter]


def check(exporter: Format, *scripts: Script) -> Engine:
    engine = Engine(write(exporter, *scripts))
    assert seen(exporter, engine) == meant(exporter, *scripts)
    assert_clean(engine)
    return engine


def test_nesting_and_neighbours(exporter: Format) -> None:
    script = Script()
    thread = script.thread()
    script.add(
        thread,
        (10, BEGIN, "step"),
        (20, BEGIN, "forward"),
        (30, END),
        (30, BEGIN, "backward"),
        (45, END),
        (60, END),
        (60, BEGIN, "step"),
        (99, END),
    )
    check(exporter, script)


def test_zero_length_windows_and_equal_timestamps(exporter: Format) -> None:
    script = Script()
    thread = script.thread()
    script.add(
        thread,
        (5, BEGIN, "outer"),
        (5, BEGIN, "inner"),
        (5, BEGIN, "empty"),
        (5, END),
        (5, BEGIN, "empty again"),
        (5, END),
        (9, END),
        (9, BEGIN, "next"),
        (9, END),
        (9, END),
        (9, BEGIN, "alone and empty"),
        (9, END),
        (9, BEGIN, "last"),
        (10, END),
    )
    check(exporter, script)


def test_slices_in_one_piece(exporter: Format) -> None:
    """Inside others and beside them, with args and flows, new and known, short and long; and one that ends too soon."""
    script = Script()
    thread, stream = script.thread(), script.stream()
    script.add(thread, (0, BEGIN, "step"))
    for i, length in enumerate((0, 1, 16_383, 16_384, 2_097_151, 2_097_152, 1 << 40)):
        start, flow = i << 41, i + 1
        script.add(thread, (start, SLICE, "new" + str(i), None, 0, start), (start, SLICE, "known", {}, 0, start + 9))
        script.add(thread, (start + 9, SLICE, "launch", None, flow, start + 9 + length))
        script.add(thread, (start + length + 9, SLICE, "args", {"i": i}, 0, start + length + 9 + length))
        script.add(stream, (start + 20, SLICE, "kernel", {"grid": "1x1"} if i % 2 else None, flow, start + 20 + length))
    script.add(thread, (1 << 45, END))
    engine = check(exporter, script)
    assert len(slices(engine)) == 1 + 7 * 5

    odd, clamped = Script(), Script()
    odd.add(odd.thread(), (10, SLICE, "x", None, 0, 5), (8, SLICE, "x", None, 0, 9), (20, SLICE, "x", None, 0, 30))
    clamped.add(clamped.thread(), (10, SLICE, "x", None, 0, 10), (10, SLICE, "x", None, 0, 10))
    clamped.add(clamped.tracks[0], (20, SLICE, "x", None, 0, 30))
    assert seen(exporter, Engine(write(exporter, odd))) == meant(exporter, clamped)


def test_512_levels(exporter: Format) -> None:
    script = Script()
    thread = script.thread()
    script.add(thread, *((i, BEGIN, f"level {i}") for i in range(512)), *((600 + i, END) for i in range(512)))
    check(exporter, script)


@pytest.mark.parametrize("gap", [0, 1, 127, 128, 16_383, 16_384, (1 << 21) - 1, 1 << 21, 1 << 28, 3_600_000_000_000])
def test_every_width_of_a_time(exporter: Format, gap: int) -> None:
    """A known and an unknown name, with a flow and without, `gap` ns apart."""
    script = Script()
    thread, stream = script.thread(), script.stream()
    times = iter(range(0, gap * 100 + 1, gap) if gap else [0] * 100)
    for i in range(6):
        flow = i + 1 if i % 2 else 0
        script.add(thread, (next(times), BEGIN, "launch", None, flow), (next(times), END))
        script.add(stream, (next(times), BEGIN, "kernel", None, flow), (next(times), END))
    check(exporter, script)


NAMES = [
    "",
    " ",
    "quotes \" and ' and \\ and \\u0041 and \\n",
    "two\nlines\r\n\tand a tab",
    "control \x01\x07\x08\x0b\x0c\x1b\x1f\x7f\x85\u2028",
    "nul \0 in the middle",
    "emoji 🚀 and 漢字 and e\u0301",
    "half a pair \ud83d and the other \udc80",
    "\ud83d\ude00 as two halves",
    "C:\\",
    "two \\\\",
    'a quote \\" and an end \\',
    "\\n is no newline",
    "</script><b>&amp;%s{}",
    "x" * 100_000,
    "é" * 70,
    "a" * 127,
    "a" * 128,
]


def test_names(exporter: Format) -> None:
    script = Script()
    thread = script.thread()
    for round in range(3):  # new, known, and fast
        for i, name in enumerate(NAMES):
            script.add(thread, (100 * round + i, BEGIN, name), (100 * round + i, END))
    check(exporter, script)


def test_names_of_tracks(exporter: Format) -> None:
    script = Script(name='train "🚀".py')
    for i, name in enumerate(NAMES[2:5] + NAMES[6:8]):
        stream = script.stream(name, order=i)
        script.add(stream, (i, BEGIN, "kernel"), (i + 10, END))
    check(exporter, script)


VALUES: dict[str, Any] = {
    "true": True,
    "false": False,
    "zero": 0,
    "one": 1,
    "minus one": -1,
    "2^31": 1 << 31,
    "2^53 + 1": (1 << 53) + 1,
    "2^63 - 1": (1 << 63) - 1,
    "2^63": 1 << 63,
    "2^64 - 1": (1 << 64) - 1,
    "2^64": 1 << 64,
    "-2^63": -(1 << 63),
    "-2^63 - 1": -(1 << 63) - 1,
    "a wide one": -(7**9000),
    "half": 0.5,
    "three": 3.0,
    "tiny": 5e-324,
    "huge": -1.7976931348623157e308,
    "minus zero": -0.0,
    "nan": math.nan,
    "inf": math.inf,
    "-inf": -math.inf,
    "empty": "",
    "text": 'a "b"\n🚀 \ud800 \0',
    "a.b[0]": "a path",
    "ключ": "значение",
}


def test_args(exporter: Format) -> None:
    script = Script()
    thread = script.thread()
    script.add(
        thread,
        (1, BEGIN, "first", VALUES),
        (2, BEGIN, "known", {"x": 1}),
        (3, END, None, {"y": "told at the end", "z": 2}),
        (3, INSTANT, "mark", VALUES),
        (4, END, None, {"done": True}),
        (5, BEGIN, "first", {}),
        (6, END),
    )
    check(exporter, script)


def test_instants_and_counters(exporter: Format) -> None:
    script = Script()
    thread = script.thread()
    stream = script.stream()
    memory = script.track(COUNTER_TRACK, "allocated", parent=stream.parent, unit="bytes", order=9)
    skew = script.track(COUNTER_TRACK, "clock skew", parent=stream.parent, unit="ppm", order=10)
    loss = script.track(COUNTER_TRACK, "loss")
    script.add(thread, (1, INSTANT, "alone"), (2, BEGIN, "step"), (2, INSTANT, "inside"), (9, END))
    script.add(stream, (3, INSTANT, "on a stream", {"error": "launch failed"}))
    script.add(memory, (1, COUNTER, 0), (2, COUNTER, 1 << 40), (20_000, COUNTER, -3), (3_000_000, COUNTER, 5))
    script.add(skew, (1, COUNTER, 12.25), (2, COUNTER, -1e-7), (3, COUNTER, math.inf), (4, COUNTER, -math.inf))
    script.add(loss, (1, COUNTER, 1e300), (2, COUNTER, 1 << 62), (3, COUNTER, -(1 << 200)), (4, COUNTER, True))
    engine = check(exporter, script)
    assert samples_seen(exporter, engine) == samples_meant(exporter, script)


def test_a_counter_without_a_name(exporter: Format) -> None:
    script = Script()
    script.add(script.track("counter", ""), (10, COUNTER, 7), (20, COUNTER, 0.5))
    engine = Engine(write(exporter, script))
    assert_clean(engine)
    assert [value for samples in counters(engine).values() for _, value in samples] == [7, 0.5]


def test_a_counter_may_be_nan(exporter: Format) -> None:
    script = Script()
    loss = script.track(COUNTER_TRACK, "loss")
    script.add(loss, (1, COUNTER, 0.5), (2, COUNTER, math.nan), (3, COUNTER, 0.25))
    [samples] = samples_seen(exporter, check(exporter, script)).values()
    assert [math.isnan(value) for _, value in samples] == [False, True, False]


def test_flows(exporter: Format) -> None:
    """From a thread to a stream, to another thread, and from a slice that began at another's very time."""
    script = Script()
    main, worker, stream = script.thread(), script.thread("worker"), script.stream()
    script.add(
        main,
        (1, BEGIN, "launch", None, 1),
        (1, BEGIN, "inner"),
        (1, END),
        (2, END),
        (3, BEGIN, "launch", None, 2),
        (3, END),
        (3, BEGIN, "send", {"to": "worker"}, 3),
        (4, END),
        (5, INSTANT, "mark", None, 4),
    )
    script.add(stream, (4, BEGIN, "kernel", None, 1), (4, END), (4, BEGIN, "kernel", {"grid": "1x1"}, 2), (9, END))
    script.add(
        worker, (6, BEGIN, "receive", None, 3), (6, BEGIN, "copy"), (7, END), (8, END), (8, INSTANT, "m", None, 4)
    )
    check(exporter, script)


def test_what_was_open_at_the_end(exporter: Format) -> None:
    script = Script()
    thread, stream = script.thread(), script.stream()
    script.add(thread, (1, BEGIN, "main"), (2, BEGIN, "step"), (3, BEGIN, "done"), (4, END))
    script.add(stream, (5, BEGIN, "kernel", {"x": 1}))
    check(exporter, script)


def test_lanes(exporter: Format) -> None:
    """Slices that overlap without nesting: each lane is a track of its own, and none bends another's."""
    script = Script()
    thread = script.thread()
    first = script.stream(merge_key="stream 7")
    second = script.stream(merge_key="stream 7")
    tasks = [script.track(LANE, "tasks", parent=thread, merge_key="tasks") for _ in range(3)]
    script.add(first, (1, BEGIN, "a"), (6, END))
    script.add(second, (3, BEGIN, "b"), (9, END))
    for i, task in enumerate(tasks):
        script.add(task, (i, BEGIN, f"task {i}"), (i + 10, END))
    script.add(thread, (0, BEGIN, "loop"), (30, END))
    check(exporter, script)


def test_more_names_than_are_kept(exporter: Format) -> None:
    script = Script()
    thread = script.thread()
    script.add(thread, (0, BEGIN, "all"))
    for i in range(9000):
        name = f"step {i}" if i % 3 else "again"
        script.add(thread, (10 * i, BEGIN, name, {f"arg {i}": i} if i % 7 == 0 else None), (10 * i + 9, END))
    script.add(thread, (90_001, END))
    check(exporter, script)


def test_more_tracks_than_a_number_holds(exporter: Format) -> None:
    script = Script()
    for i in range(4200):
        script.add(script.thread(f"t{i}", tid=10_000 + i), (i, BEGIN, f"on {i}"), (i + 5, END))
    check(exporter, script)


def test_two_processes_that_look_alike(exporter: Format) -> None:
    """Same names, same track ids, same flow ids, same times; and one took its pid over from another by exec."""
    scripts = [Script(0, 4242), Script(1, 5151), Script(2, 6000, "other.py")]
    for script in scripts:
        thread, stream = script.thread(), script.stream()
        memory = script.track(COUNTER_TRACK, "allocated", parent=stream.parent, unit="bytes")
        loss = script.track(COUNTER_TRACK, "loss")
        lane = script.track(LANE, "tasks", parent=thread, merge_key="tasks")
        pid = script.process.pid
        script.add(thread, (1, BEGIN, "launch", {"pid": pid}, 1), (4, END))
        script.add(stream, (2, BEGIN, "kernel", {"pid": pid}, 1), (3, END))
        script.add(lane, (2, BEGIN, "task", {"pid": pid}), (3, END))
        script.add(memory, (1, COUNTER, pid))
        script.add(loss, (1, COUNTER, -pid))
    engine = check(exporter, *scripts)
    assert samples_seen(exporter, engine) == samples_meant(exporter, *scripts)


def test_an_image_after_exec_keeps_its_pid(exporter: Format) -> None:
    """exec keeps pid and tid, so the engine draws both images on one thread; neither loses a slice."""
    before, after = Script(0), Script(1, name="after.py")
    for at, script in ((0, before), (100, after)):
        script.process.name = "after.py"  # the engine keeps the last name that a pid was given
        script.add(script.thread(), (at, BEGIN, "work", {"at": at}), (at + 50, END))
    check(exporter, before, after)


def test_a_track_that_closed_and_one_that_came_late(exporter: Format) -> None:
    script = Script()
    first, second = script.thread("first"), script.thread("second")
    script.add(first, (1, BEGIN, "a"), (2, END))
    script.add(second, (3, BEGIN, "a"), (4, END))
    file = io.BytesIO()
    writer = exporter(file, RECORDING, script.process)
    for track, (_, edges) in zip((first, second), script.batches, strict=True):
        writer.open_track(track)
        writer.write(track, edges)
        writer.close_track(track)
    writer.flush()
    engine = Engine(join(exporter, [file.getvalue()]))
    assert seen(exporter, engine) == meant(exporter, script)
    assert_clean(engine)


def test_a_time_that_goes_back_is_moved_up(exporter: Format) -> None:
    script, clamped = Script(), Script()
    thread = script.thread()
    script.add(thread, (10, BEGIN, "a"), (8, BEGIN, "b"), (20_000, END), (19_000, END), (30_000, BEGIN, "c"))
    script.add(thread, (29_000, END))
    clamped.add(clamped.thread(), (10, BEGIN, "a"), (10, BEGIN, "b"), (20_000, END), (20_000, END))
    clamped.add(clamped.tracks[0], (30_000, BEGIN, "c"), (30_000, END))
    engine = Engine(write(exporter, script))
    assert seen(exporter, engine) == meant(exporter, clamped)
    assert_clean(engine)


def test_a_trace_without_slices_loads(exporter: Format) -> None:
    script = Script()
    script.thread()
    script.stream()
    assert_clean(Engine(write(exporter, script)))
    assert_clean(Engine(join(exporter, [])))
    assert_clean(Engine(join(exporter, [b"", script.shard(exporter), b""])))


def test_closing_twice(exporter: Format) -> None:
    file = io.BytesIO()
    writer = exporter(file, RECORDING, Script().process)
    writer.close()
    writer.close()
    assert file.closed


# --- any program ------------------------------------------------------------------------------------------------------

NAME = st.one_of(st.sampled_from(["a", "b", "kernel", ""]), st.text(max_size=12))
VALUE = st.one_of(st.booleans(), st.integers(), st.floats(), st.text(max_size=8))
ARGS = st.one_of(st.none(), st.dictionaries(st.sampled_from(["x", "y", "größe"]), VALUE, max_size=3))
STEP = st.sampled_from([0, 0, 1, 3, 200, 16_383, 16_384, 2_097_151, 2_097_152, 1 << 33])


@st.composite
def scripts(draw: st.DrawFn, number: int = 0) -> Script:
    """Random trees of slices on a few tracks, written in batches of any size, in time order where flows need it."""
    script = Script(number, 4000 + number)
    tracks = [script.thread(), script.thread("worker"), script.stream(merge_key="s"), script.stream(merge_key="s")]
    now = dict.fromkeys(range(len(tracks)), 0)
    depth = dict.fromkeys(range(len(tracks)), 0)
    for _ in range(draw(st.integers(1, 12))):
        i = draw(st.integers(0, len(tracks) - 1))
        edges: list[Any] = []
        for _ in range(draw(st.integers(1, 8))):
            now[i] += draw(STEP)
            if depth[i] and draw(st.booleans()):
                edges.append((now[i], END, None, draw(ARGS)))
                depth[i] -= 1
                continue
            # Where the engine draws two lanes as one row, it stacks the instants that meet there.
            kinds = [BEGIN, BEGIN, SLICE, SLICE] + [INSTANT] * (tracks[i] is not tracks[-1])
            kind = draw(st.sampled_from(kinds))
            start = now[i]
            now[i] += draw(STEP) if kind == SLICE else 0
            edges.append((start, kind, draw(NAME), draw(ARGS), 0, now[i]))
            depth[i] += kind == BEGIN
        script.add(tracks[i], *edges)
    _join_some(draw, script)
    return script


def _join_some(draw: st.DrawFn, script: Script) -> None:
    """Give pairs of slices on different tracks a flow; the first in the file is the first in time."""
    places = [
        (b, e, edge[0], track.id)
        for b, (track, edges) in enumerate(script.batches)
        for e, edge in enumerate(edges)
        if edge[1] in (BEGIN, SLICE)
    ]
    flow = 1
    while len(places) > 1 and draw(st.booleans()):
        first = places.pop(draw(st.integers(0, len(places) - 1)))
        later = [p for p in places if p[:2] > first[:2] and p[2] > first[2] and p[3] != first[3]]
        if later:
            second = draw(st.sampled_from(later))
            places.remove(second)
            for b, e, _, _ in (first, second):
                edges = script.batches[b][1]
                edges[e] = (*edges[e][:4], flow, edges[e][5])
            flow += 1


@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(script=scripts(), other=scripts(number=1))
def test_any_program(exporter: Format, script: Script, other: Script) -> None:
    check(exporter, script, other)
