"""Whenever a process is killed, the trace holds every edge that it committed, once, as if it had not been."""

from __future__ import annotations

import errno
import importlib
import os
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from gputrace.model import LANE, THREAD, Exporter
from gputrace.record.join import join
from gputrace.record.recording import gather, recover
from gputrace.record.salvage import Salvaged, salvage_all
from gputrace.tracks import Tracks
from tests.engine import Engine, assert_clean, counters, slices
from tests.record import rows
from tests.record.programs import BASE, killed, programs, run, start, uncut
from tests.record.rows import Rows
from tests.recorded import EXPORTERS, assert_nested
from tests.ringwriter import EXPLICIT, PID, Core

thorough = settings(max_examples=300, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
in_engine = settings(thorough, max_examples=40)
both = pytest.mark.parametrize("suffix", EXPORTERS)


def load(suffix: str) -> type[Exporter]:
    module, _, name = EXPORTERS[suffix].partition(":")
    exporter: type[Exporter] = getattr(importlib.import_module(module), name)
    return exporter


def salvage(core: Core) -> Salvaged | None:
    return salvage_all(core.folder, type(core.shard.exporter), set()).get(core.number)


def joined(core: Core) -> bytes:
    """The trace of a killed process."""
    exporter, output = type(core.shard.exporter), f"{core.folder.path}/joined"
    salvaged = salvage_all(core.folder, exporter, set())
    size = join(core.folder, output, exporter, gzip=False, metadata={}, salvaged=salvaged)
    return Path(output).read_bytes() if size else b""


def check_rows(path: Path, core: Core) -> None:
    meant = uncut(path, Rows, core)
    trace = joined(core)
    assert [s.key() for s in rows.slices(trace)] == [s.key() for s in rows.slices(meant)]
    assert rows.samples(trace) == rows.samples(meant)
    assert joined(core) == trace  # again, as after a salvage that was killed itself


# --- any program, killed anywhere -------------------------------------------------------------------------------------


@thorough
@given(program=programs(wild=True), share=st.floats(0, 1.1), full=st.booleans())
@example(program=[("commit",), ("commit",), ("instant", 1, 0, "", {}, False), ("commit",)], share=1.0, full=False)
def test_any_program(
    tmp_path_factory: pytest.TempPathFactory, program: list[tuple[Any, ...]], share: float, full: bool
) -> None:
    path = tmp_path_factory.mktemp("any")
    check_rows(path, killed(path, Rows, program, share, full=full))


@both
@in_engine
@given(program=programs(wild=False), share=st.floats(0, 1.1), full=st.booleans())
def test_any_program_in_the_engine(
    tmp_path_factory: pytest.TempPathFactory, suffix: str, program: list[tuple[Any, ...]], share: float, full: bool
) -> None:
    path = tmp_path_factory.mktemp("engine")
    core = killed(path, load(suffix), program, share, full=full, suffix=suffix)
    trace = joined(core)
    meant = uncut(path, Rows, core)
    if not trace:
        assert rows.slices(meant) == []
        return
    engine = Engine(trace)
    assert_clean(engine)
    found = slices(engine)
    assert_nested(found)
    offset = core.folder.recording.boottime_offset_ns if suffix == ".pftrace" else -BASE
    assert sorted(
        (place(s.track), s.ts - offset, s.name, s.dur, s.depth * (len(place(s.track)) == 1), said(s.args))
        for s in found
    ) == sorted(
        (row(s.row), s.ts, s.name, s.dur, s.depth * (s.row[0] == THREAD), said(s.args)) for s in rows.slices(meant)
    )
    values: dict[str, list[tuple[int, float]]] = {}
    for track, samples in counters(engine).items():
        name = track[-1].removesuffix(" ns")
        values.setdefault(name, []).extend((ts - offset, float(value)) for ts, value in samples)
    assert {name: sorted(samples) for name, samples in values.items()} == rows.samples(meant)


def place(track: tuple[str, ...]) -> tuple[Any, ...]:
    """A thread's own row is (tid,); one of its lanes', as far as the format says whose it is, (tid, "tasks")."""
    last = re.sub(r" \d+$", "", track[-1])
    if last == "tasks":
        return ("tasks", "")
    return (last,)


def row(row: tuple[Any, ...]) -> tuple[Any, ...]:
    return ("tasks", "") if row[0] == LANE else (row[2],)


def said(args: dict[str, Any]) -> list[tuple[str, str]]:
    return sorted((name, repr(value)) for name, value in args.items())


def test_every_store(tmp_path: Path) -> None:
    """One program that does everything, killed before each of its stores."""
    program = [
        ("begin", 5, 0, "outer", 0, {"n": 1}, False, True),
        ("begin", 5, 0, "task", 111, {}, True, True),
        ("begin", 5, 0, "window", EXPLICIT, {}, True, False),
        ("sample", 5, 0, "loss", 0.5),
        ("commit",),
        ("begin", 5, 0, "inner", 0, {}, False, True),
        ("begin", 5, 1, "other", 0, {}, False, False),
        ("end", 5, 1, 2, 1, True),  # the window, by another thread
        ("commit",),
        ("end", 5, 0, 0, 2, False),  # outer before inner
        ("end", 5, 0, 1, 0, True),
        ("sample", 5, 1, "loss", 2),
        ("instant", 5, 1, "here", {"text": "größe"}, True),
        ("commit",),
        ("end", 5, 1, 1, 0, True),
        ("begin", 5, 0, "last", 0, {}, False, True),
    ]
    (tmp_path / "dry").mkdir()
    dry = start(tmp_path / "dry", Rows, first=65536 - 128)
    run(dry, program)
    assert dry.ring.steps > 150
    for kill_at in range(dry.ring.steps + 1):
        path = tmp_path / str(kill_at)
        path.mkdir()
        core = start(path, Rows, first=65536 - 128, kill_at=kill_at)
        run(core, program)
        check_rows(path, core)


def test_a_shard_that_lost_its_end(tmp_path: Path) -> None:
    """A machine that went down with a page unwritten: what is there is kept, and the ring's rest comes behind."""
    core = start(tmp_path, Rows)
    thread = core.thread("MainThread", PID)
    core.end(thread, BASE + 2, core.begin(thread, BASE + 1, "early"))
    core.instant(thread, BASE + 2, "lost")
    core.commit()
    core.instant(thread, BASE + 3, "late")
    core.die()
    os.truncate(core.folder.shard_path(core.number), core.written - 3)
    assert [s.name for s in rows.slices(joined(core))] == ["early", "late"]


# --- what belongs together --------------------------------------------------------------------------------------------


def test_scopes_nest_in_the_tail(tmp_path: Path) -> None:
    core = start(tmp_path, Rows)
    thread = core.thread("MainThread", PID)
    core.instant(thread, BASE, "first")
    core.commit()
    outer = core.begin(thread, BASE + 1, "outer", scope=5)
    core.begin(thread, BASE + 2, "another's", scope=6)
    inner = core.begin(thread, BASE + 3, "inner", scope=5)
    core.end(thread, BASE + 4, inner)
    core.end(thread, BASE + 5, outer)
    core.die()
    depths = {s.name: s.depth for s in rows.slices(joined(core))}
    assert depths == {"first": 0, "outer": 0, "another's": 0, "inner": 1}


@both
def test_flows_join_across(tmp_path: Path, suffix: str) -> None:
    """An arrow leads from a slice of the shard to one of the tail."""
    core = start(tmp_path, load(suffix), suffix)
    main, worker = core.thread("MainThread", PID), core.thread("worker", PID + 1)
    number = core.begin(main, BASE + 1, "first", stream=True)
    core.instant(worker, BASE + 2, "worker")
    core.commit()
    core._next = lambda: number
    core.begin(worker, BASE + 20, "second", stream=True)
    core.die()
    engine = Engine(joined(core))
    assert_clean(engine)
    by_name = {s.name: s for s in slices(engine)}
    assert by_name["first"].flows_to == [by_name["second"].id]


@both
def test_a_process_that_never_wrote(tmp_path: Path, suffix: str) -> None:
    """Killed before its first epoch: the tail begins the shard, and says what process it was as well as is known."""
    core = start(tmp_path, load(suffix), suffix)
    thread = core.thread("MainThread", PID)
    core.end(thread, BASE + 9, core.begin(thread, BASE + 1, "only"), {"error": "KeyError"})
    core.die()
    engine = Engine(joined(core))
    assert_clean(engine)
    [found] = slices(engine)
    assert (found.name, found.dur, found.args) == ("only", 8, {"error": "KeyError"})
    assert found.track[0].startswith("python")
    assert found.track[0].endswith(f" {PID}")


@both
def test_more_tracks_than_one_number_holds(tmp_path: Path, suffix: str) -> None:
    """Perfetto's sequences take another shard number then, which a tail cannot know: it takes one of its own."""
    core = start(tmp_path, load(suffix), suffix)
    core.shard.tracks = Tracks(lambda: core.shard.exporter, 9000)
    main, worker = core.thread("MainThread", PID), core.thread("worker", PID + 1)
    first = core.begin(main, BASE + 1, "first")
    second = core.begin(worker, BASE + 2, "second")
    core.commit()
    numbers = core.folder.numbers()
    core.end(main, BASE + 5, first)
    core.end(worker, BASE + 9, second)
    core.die()
    engine = Engine(joined(core))
    assert_clean(engine)
    assert {s.name: s.dur for s in slices(engine)} == {"first": 4, "second": 7}
    assert core.folder.numbers() == numbers


def test_samples_of_two_threads_are_in_order_of_time(tmp_path: Path) -> None:
    core = start(tmp_path, Rows)
    threads = [core.thread("a", PID), core.thread("b", PID + 1)]
    for n in range(10):
        core.sample(threads[n % 2], BASE + n, "loss", n)
    core.die()
    assert rows.samples(joined(core)) == {"loss": [(BASE + n, n) for n in range(10)]}


# --- the recording it belongs to --------------------------------------------------------------------------------------


class Unable(Rows):
    """A third party's format, of before there were tails."""

    resume = Exporter.resume  # type: ignore[assignment]


def cut_short(path: Path, exporter: type[Exporter], suffix: str) -> Core:
    """A process killed with one slice in its shard, one open and one in its ring alone."""
    core = start(path, exporter, suffix)
    thread = core.thread("MainThread", PID)
    core.end(thread, BASE + 2, core.begin(thread, BASE + 1, "early"))
    across = core.begin(thread, BASE + 3, "across")
    core.commit()
    core.end(thread, BASE + 5, core.begin(thread, BASE + 4, "late"))
    core.end(thread, BASE + 6, across)
    core.die()
    return core


@both
def test_a_recording_that_is_recovered(tmp_path: Path, suffix: str) -> None:
    core = cut_short(tmp_path, load(suffix), suffix)
    core.folder.write_report(core.number, {"pid": PID, "slices": 2})
    # Its writer is this very process, which a recovery takes for over.
    summary = recover(core.folder.path, str(tmp_path / f"out{suffix}"))
    assert (summary.slices, summary.cut_short, summary.silent, summary.told) == (3, 1, 0, [])
    engine = Engine(tmp_path / f"out{suffix}")
    assert_clean(engine)
    assert [(s.name, s.dur, s.depth) for s in slices(engine)] == [("early", 1, 0), ("across", 3, 0), ("late", 1, 1)]
    assert os.listdir(tmp_path) == [f"out{suffix}"]


def full(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No file can be made in a folder, as on a full disk."""
    opened = os.open

    def refused(path: str, flags: int, *rest: Any, **more: Any) -> int:
        if flags & os.O_CREAT and str(path).startswith(folder):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return opened(path, flags, *rest, **more)

    monkeypatch.setattr(os, "open", refused)


@both
def test_nothing_is_written_beside_the_shards(tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a trace that is put elsewhere: their disk may be full, as may be why there is something to salvage."""
    core = cut_short(tmp_path, load(suffix), suffix)
    core.folder.write_report(core.number, {"pid": PID, "slices": 2})
    full(core.folder.path, monkeypatch)
    (tmp_path / "elsewhere").mkdir()
    output = tmp_path / "elsewhere" / f"out{suffix}"
    assert gather(core.folder.path, str(output)).slices == 3
    assert os.listdir(output.parent) == [output.name]
    output.unlink()
    assert recover(core.folder.path, str(output)).slices == 3
    assert [s.name for s in slices(Engine(output))] == ["early", "across", "late"]
    assert os.listdir(output.parent) == [output.name]


def test_a_format_that_cannot_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    core = cut_short(tmp_path, Unable, ".json")
    monkeypatch.setattr("gputrace.record.formats.load", lambda _: Unable)
    summary = recover(core.folder.path, str(tmp_path / "out.json"))
    [told] = summary.told
    assert "lacks the last 3 begins and ends" in told
    assert [s.name for s in rows.slices((tmp_path / "out.json").read_bytes())] == ["early", "across"]


def test_a_format_that_cannot_go_on_can_begin(tmp_path: Path) -> None:
    core = start(tmp_path, Unable)
    core.instant(core.thread("MainThread", PID), BASE, "only")
    core.die()
    salvaged = salvage(core)
    assert salvaged is not None
    assert salvaged.lost == 0
    assert [s.name for s in rows.slices(joined(core))] == ["only"]


def test_a_process_that_runs_keeps_its_ring(tmp_path: Path) -> None:
    core = cut_short(tmp_path, Rows, ".rows")
    before = {path.name: path.read_bytes() for path in Path(core.folder.path).iterdir()}
    assert salvage_all(core.folder, Rows, {os.getpid()}) == {}
    assert {path.name: path.read_bytes() for path in Path(core.folder.path).iterdir()} == before


def test_a_shard_is_never_changed(tmp_path: Path) -> None:
    """A process that cannot be seen from here, in a container, may still write to it."""
    core = cut_short(tmp_path, Rows, ".rows")
    kept = [core.folder.shard_path(core.number), core.folder.ring_path(core.number)]
    before = [Path(path).read_bytes() for path in kept]
    assert salvage(core) is not None
    assert [Path(path).read_bytes() for path in kept] == before


def test_a_ring_that_cannot_be_read_costs_no_shard(tmp_path: Path) -> None:
    core = cut_short(tmp_path, Rows, ".rows")
    ring = Path(core.folder.ring_path(core.number))
    ring.rename(tmp_path / "elsewhere")
    ring.symlink_to(tmp_path / "elsewhere")
    assert salvage(core) is None
    assert [s.name for s in rows.slices(joined(core))] == ["early", "across"]


@both
def test_a_span_whose_number_is_garbage(tmp_path: Path, suffix: str) -> None:
    """Its arrow's id would be beyond 64 bits, which cost the trace of every process."""
    core = start(tmp_path, load(suffix), suffix)
    thread = core.thread("MainThread", PID)
    for number, name in ((1, "good"), ((1 << 64) - 1, "garbage"), (1 << 43, "garbage"), (2, "good")):
        core._next = lambda number=number: number  # type: ignore[misc]
        core.end(thread, BASE + 10 + number % 7, core.begin(thread, BASE + 5 + number % 7, name, stream=True))
    core.die()
    engine = Engine(joined(core))
    assert_clean(engine)
    assert [s.name for s in slices(engine)] == ["good", "good"]


@thorough
@given(
    program=programs(wild=False),
    changes=st.lists(st.tuples(st.integers(0, 1 << 30), st.binary(min_size=1, max_size=40)), min_size=1, max_size=6),
    suffix=st.sampled_from(sorted(EXPORTERS)),
)
def test_any_bytes_in_the_ring_cost_no_trace(
    tmp_path_factory: pytest.TempPathFactory, program: list[tuple[Any, ...]], changes: list[Any], suffix: str
) -> None:
    path = tmp_path_factory.mktemp("bytes")
    core = killed(path, load(suffix), program, 1, full=True, suffix=suffix)
    data, places = core.ring.data, [0, 65536, *(piece for _, piece, _ in core.ring.pieces), *core.ring.tables.values()]
    for place_, change in changes:
        at = places[place_ % len(places)] + place_ // 7 % 400
        data[at : at + len(change)] = change
    core.die()
    joined(core)
