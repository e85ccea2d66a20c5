"""What is kept of the last seconds is all that had not ended before them, whole, whatever was removed meanwhile."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

import pytest

from gputrace import keeping
from gputrace.keeping import Keeping, KeptFile
from gputrace.model import (
    BEGIN,
    COUNTER,
    COUNTER_TRACK,
    END,
    GROUP,
    INSTANT,
    LANE,
    SLICE,
    STREAM,
    THREAD,
    Process,
    Recording,
    Track,
)
from gputrace.record.join import join
from gputrace.record.kept import draw_shards
from gputrace.record.recording import gather, recover
from gputrace.record.sizes import LEAST_BYTES
from gputrace.regions import RECORDED
from gputrace.shards import ShardFolder
from gputrace.tracer import load_exporter
from tests.engine import Engine, assert_clean, counters, slices
from tests.record.test_salvage import full
from tests.recorded import EXPORTERS

if TYPE_CHECKING:
    from gputrace.model import Edge

SECOND = 10**9
KEEP = 10 * SECOND
START = 1000 * SECOND
everywhere = pytest.mark.parametrize("suffix", EXPORTERS)


class Clock:
    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock() -> Iterator[Clock]:
    made = Clock()
    with mock.patch.object(keeping, "now_ns", made):
        yield made


class Recorder:
    """One process's `Keeping`, and what it was given."""

    def __init__(self, path: Path, suffix: str, most_bytes: int = 1 << 20, tid: int = 7) -> None:
        path.mkdir(exist_ok=True)
        self.exporter = load_exporter(EXPORTERS[suffix])
        recording = Recording("ab" * 16, 0, 0)
        if (path / "recording").exists():
            self.folder = ShardFolder.open(str(path))
        else:
            options = {"last_ns": KEEP}
            self.folder = ShardFolder.create(str(path), recording, suffix, EXPORTERS[suffix], "host", options=options)
        number = self.number = self.folder.claim()
        self.told: list[str] = []
        file = KeptFile(lambda index: self.folder.kept_path(number, index), KEEP, most_bytes, self.told.append)
        process = Process(number, 4242 + number, "program", ["program"], START, self.folder.claim)
        self.keeping = Keeping(file, recording, process)
        self.thread = Track(1, THREAD, "Main", tid=tid)
        self.lane = Track(2, LANE, "tasks", parent=self.thread, merge_key="tasks")
        gpu = Track(3, GROUP, "GPU 0", labels={"driver": "13"})
        self.stream = Track(4, STREAM, "main", parent=gpu, merge_key="main")
        self.counter = Track(5, COUNTER_TRACK, "loss", unit="bytes")
        for track in (self.thread, self.lane, gpu, self.stream, self.counter):
            self.keeping.open_track(track)

    def write(self, track: Track, *edges: Edge) -> None:
        self.keeping.write(track, edges)

    def read(self, suffix: str) -> Engine | None:
        drawn = draw_shards(self.folder, self.exporter, set())
        output = f"{self.folder.path}/joined{suffix}"
        if not join(self.folder, output, self.exporter, gzip=False, metadata={}):
            return None
        engine = Engine(output)
        assert_clean(engine)
        found = slices(engine)
        assert sum(each.slices for each in drawn.values()) == sum(1 for s in found if s.dur)
        assert sum(each.unfinished for each in drawn.values()) == sum(1 for s in found if s.dur < 0)
        return engine


def begin(ts: int, name: str) -> Edge:
    return ts, BEGIN, name, {"n": 1}, 0, 0


def end(ts: int) -> Edge:
    return ts, END, None, None, 0, 0


@everywhere
@pytest.mark.parametrize("seed", range(8))
def test_random_programs(tmp_path: Path, clock: Clock, suffix: str, seed: int) -> None:
    chance = random.Random(seed)
    program = Recorder(tmp_path / "folder", suffix)
    tracks = [program.thread, program.lane, program.stream]
    open_now: dict[int, list[str]] = {track.id: [] for track in tracks}
    spans: dict[str, list[int | None]] = {}  # begin and end
    instants: list[tuple[str, int]] = []
    samples: list[tuple[int, int]] = []
    last_ns = START
    for step in range(chance.randrange(300)):
        clock.now += chance.choice([10**6, 10**8, 3 * 10**8])
        track = chance.choice(tracks)
        for count, edge in enumerate(
            chance.choices(["begin", "end", "slice", "instant", "sample"], [4, 4, 2, 1, 1], k=3)
        ):
            name = f"s{step}.{count}"
            clock.now += 1
            if edge == "begin" and len(open_now[track.id]) < 20:
                program.write(track, begin(clock.now, name))
                open_now[track.id].append(name)
                spans[name] = [clock.now, None]
            elif edge == "end" and open_now[track.id]:
                spans[open_now[track.id].pop()][1] = clock.now
                program.write(track, end(clock.now))
            elif edge == "slice":
                program.write(track, (clock.now, SLICE, name, None, 0, clock.now + 1000))
                spans[name] = [clock.now, clock.now + 1000]
                clock.now += 1000
            elif edge == "instant":
                program.write(track, (clock.now, INSTANT, name, None, 0, 0))
                instants.append((name, clock.now))
            elif edge == "sample":
                program.write(program.counter, (clock.now, COUNTER, step, None, 0, 0))
                samples.append((clock.now, step))
        if chance.random() < 0.5:
            program.keeping.flush()
        last_ns = clock.now
    program.write(program.thread, (clock.now, INSTANT, "last", None, 0, 0))
    program.keeping.close()
    engine = program.read(suffix)
    assert engine is not None
    from_ns = last_ns - KEEP
    found = {s.name: (s.ts, None if s.dur < 0 else s.ts + s.dur) for s in slices(engine) if s.dur}
    assert found == {name: (ts, over) for name, (ts, over) in spans.items() if over is None or over >= from_ns}
    marks = [(s.name, s.ts) for s in slices(engine) if not s.dur]
    assert marks == [*((name, ts) for name, ts in instants if ts >= from_ns), ("last", clock.now)]
    rows = {path[-1]: values for path, values in counters(engine).items()}
    before = [value for ts, value in samples if ts < from_ns][-1:]
    after = [each for each in samples if each[0] >= from_ns]
    carried = [(from_ns, value) for value in before] if after else []
    assert [v for name, values in rows.items() if name.startswith("loss") for v in values] == [*carried, *after]
    earlier = [ts for ts, _ in found.values() if ts < from_ns]
    recorded = [v for name, values in rows.items() if name.startswith(RECORDED) for v in values]
    assert recorded == ([(min(earlier), 0), (from_ns, 1)] if earlier else [])
    # However long it ran, no more than an eighth and two seconds beyond what was asked for lie there.
    assert len(program.folder.kept_paths(program.number)) <= 13


@everywhere
def test_a_long_run_leaves_few_files_and_what_was_open_all_the_while(tmp_path: Path, clock: Clock, suffix: str) -> None:
    program = Recorder(tmp_path / "folder", suffix)
    program.write(program.thread, begin(clock.now, "main"))
    for n in range(5000):
        program.write(program.thread, begin(clock.now, f"step {n}"))
        clock.now += SECOND // 10
        program.write(program.thread, end(clock.now))
        program.keeping.flush()
        assert len(os.listdir(program.folder.path)) < 20
    engine = program.read(suffix)
    assert engine is not None
    found = slices(engine)
    assert [s.name for s in found] == ["main", *(f"step {n}" for n in range(4899, 5000))]
    assert (found[0].ts, found[0].dur) == (START, -1)
    assert {s.depth for s in found[1:]} == {1}


@everywhere
def test_too_much_is_bounded_and_told(tmp_path: Path, clock: Clock, suffix: str) -> None:
    program = Recorder(tmp_path / "folder", suffix, most_bytes=80_000)
    for n in range(20_000):
        program.write(program.thread, (clock.now, SLICE, f"step {n}", None, 0, clock.now + 10))
        clock.now += SECOND // 10_000
        program.keeping.flush()
    paths = program.folder.kept_paths(program.number)
    assert sum(map(os.path.getsize, paths)) < 100_000
    assert set(program.told) == {
        f"process {os.getpid()} records more in 10 s than it may keep, so less of its last seconds is there: --max-size"
        " (max_size=) lets it keep more"
    }
    engine = program.read(suffix)
    assert engine is not None
    found = [s.name for s in slices(engine)]
    assert found == [f"step {n}" for n in range(20_000 - len(found), 20_000)]


@everywhere
def test_more_than_all_that_may_be_kept_in_one_go(tmp_path: Path, clock: Clock, suffix: str) -> None:
    program = Recorder(tmp_path / "folder", suffix, most_bytes=LEAST_BYTES)
    program.write(program.thread, begin(clock.now, "main"))
    count = 60_000
    clock.now += 2 * count
    steps = ((START + 2 * n, SLICE, f"step {n}", None, 0, START + 2 * n + 1) for n in range(1, count))
    program.write(program.thread, *steps)
    program.keeping.close()
    size = sum(map(os.path.getsize, program.folder.kept_paths(program.number)))
    assert LEAST_BYTES / 2 < size < LEAST_BYTES * 1.25
    engine = program.read(suffix)
    assert engine is not None
    main, *found = [s.name for s in slices(engine)]
    assert main == "main"
    assert len(found) > 10_000
    assert found == [f"step {n}" for n in range(count - len(found), count)]


@everywhere
def test_a_trace_elsewhere_needs_no_room_where_it_is_kept(
    tmp_path: Path, clock: Clock, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = Recorder(tmp_path / "folder", suffix)
    program.write(program.thread, begin(clock.now, "main"), end(clock.now + 10))
    program.keeping.close()
    full(program.folder.path, monkeypatch)
    (tmp_path / "elsewhere").mkdir()
    output = tmp_path / "elsewhere" / f"out{suffix}"
    assert gather(program.folder.path, str(output)).slices == 1
    output.unlink()
    assert recover(program.folder.path, str(output)).slices == 1
    assert [s.name for s in slices(Engine(output))] == ["main"]
    assert os.listdir(output.parent) == [output.name]


@everywhere
@pytest.mark.parametrize("ahead", [True, False])
def test_edges_that_come_late_count_by_their_own_time(tmp_path: Path, clock: Clock, suffix: str, ahead: bool) -> None:
    """Under load they do, by more than all the time that is kept. One of a device's clock that is ahead is from now."""
    program = Recorder(tmp_path / "folder", suffix)
    clock.now += 100 * SECOND
    for n in range(300):
        ts = START + n * SECOND // 10
        program.write(program.thread, (ts, SLICE, f"step {n}", None, 0, ts + 10))
        clock.now += SECOND // 10
        program.keeping.flush()
    if ahead:
        clock.now = START + 30 * SECOND
        program.write(program.stream, (clock.now + 50 * SECOND, INSTANT, "ahead", None, 0, 0))
    program.keeping.close()
    engine = program.read(suffix)
    assert engine is not None
    steps = [f"step {n}" for n in range(200 if ahead else 199, 300)]
    assert [s.name for s in slices(engine)] == [*steps, *(["ahead"] if ahead else [])]


@everywhere
def test_what_was_open_in_a_process_that_is_gone_is_over(tmp_path: Path, clock: Clock, suffix: str) -> None:
    gone, there = (Recorder(tmp_path / "folder", suffix, tid=n) for n in (7, 8))
    gone.write(gone.thread, begin(clock.now, "gone"))
    gone.keeping.flush()
    there.write(there.thread, begin(clock.now, "there"))
    there.keeping.flush()
    for _ in range(12):
        clock.now += SECOND + 1
        there.keeping.flush()  # it says once a second that it is alive
    engine = there.read(suffix)
    assert engine is not None
    assert [s.name for s in slices(engine)] == ["there"]


@everywhere
def test_a_torn_record_ends_what_is_read(tmp_path: Path, clock: Clock, suffix: str) -> None:
    program = Recorder(tmp_path / "folder", suffix)
    program.write(program.thread, begin(clock.now, "a"), end(clock.now + 1))
    program.keeping.flush()
    whole = os.path.getsize(program.folder.kept_path(0, 0))
    program.write(program.thread, begin(clock.now + 2, "b"), end(clock.now + 3))
    program.keeping.close()
    path = Path(program.folder.kept_path(0, 0))
    data = path.read_bytes()
    for length in (whole, whole + 3, whole + 16, whole + 17, len(data) - 1):
        path.write_bytes(data[:length])
        engine = program.read(suffix)
        assert engine is not None
        assert [s.name for s in slices(engine)] == ["a"]


@everywhere
def test_damage_costs_what_follows_in_that_process_and_is_noted(tmp_path: Path, clock: Clock, suffix: str) -> None:
    program, other = (Recorder(tmp_path / "folder", suffix, tid=n) for n in (7, 8))
    for n in range(40):  # two pieces and a little
        for each in (program, other):
            each.write(each.thread, (clock.now, SLICE, f"{each.number} {n}", None, 0, clock.now + 1))
        clock.now += SECOND // 10
        for each in (program, other):
            each.keeping.flush()
    for each in (program, other):
        each.keeping.close()
    whole = program.folder.kept_paths(program.number)
    assert len(whole) == 4
    chance = random.Random(1)
    for path in map(Path, whole):
        data = path.read_bytes()
        for _ in range(6):
            at = chance.randrange(len(data))
            path.write_bytes(data[:at] + bytes([data[at] ^ 1 << chance.randrange(8)]) + data[at + 1 :])
            program.folder.damage.clear()
            program.folder.write_report(program.number, {"ended": 1})
            engine = program.read(suffix)
            assert engine is not None
            found = [s.name or "" for s in slices(engine)]
            mine = [name for name in found if name.startswith("0 ")]
            assert mine == [f"0 {n}" for n in range(len(mine))]
            assert len(mine) < 40 or path == Path(whole[-1])
            assert len(found) - len(mine) == 40
            assert program.folder.damage == {path.name: "is damaged"}
        path.write_bytes(data)


@everywhere
def test_names_and_args_of_any_kind(tmp_path: Path, clock: Clock, suffix: str) -> None:
    class Text(str):
        pass

    class Number(int):
        pass

    program = Recorder(tmp_path / "folder", suffix)
    args = {"text": Text("t"), "number": Number(3), "real": 0.5, "yes": True, "wide": 1 << 62, "odd": "\ud800"}
    program.write(program.thread, (clock.now, SLICE, Text("name"), args, 0, clock.now + 1))
    program.keeping.close()
    engine = program.read(suffix)
    assert engine is not None
    (found,) = slices(engine)
    assert found.name == "name"
    assert found.args == {"text": "t", "number": 3, "real": 0.5, "yes": True, "wide": 1 << 62, "odd": "\ufffd"}


@everywhere
def test_a_pause_within_the_kept_time_is_shown(tmp_path: Path, clock: Clock, suffix: str) -> None:
    program = Recorder(tmp_path / "folder", suffix)
    shown = Track(6, COUNTER_TRACK, RECORDED)
    program.keeping.open_track(shown)
    program.write(program.thread, begin(START, "main"))
    program.write(shown, (START, COUNTER, 1, None, 0, 0))
    clock.now += 20 * SECOND
    program.write(shown, (clock.now - 2 * SECOND, COUNTER, 0, None, 0, 0))
    program.write(shown, (clock.now - SECOND, COUNTER, 1, None, 0, 0))
    program.keeping.close()
    engine = program.read(suffix)
    assert engine is not None
    ((_, values),) = counters(engine).items()
    last = clock.now - SECOND
    assert values == [(START, 0), (last - KEEP, 1), (last - SECOND, 0), (last, 1)]
