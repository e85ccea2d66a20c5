"""Shards with rot in their middle: what can be read before and after is in the trace as it was, what cannot is told."""

from __future__ import annotations

import errno
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gputrace.cli.outcome import recount
from gputrace.errors import OutputError
from gputrace.model import BEGIN, COUNTER, END, INSTANT, SLICE, Exporter
from gputrace.reading.mending import mend
from gputrace.record.recording import Summary, recover
from gputrace.shards import ShardFolder
from gputrace.textfiles import append_line
from tests.engine import Slice
from tests.exporters.recordings import FORMATS, RECORDING, SNAPSHOTS, Script
from tests.merging.making import Drawn
from tests.record.running import GPUTRACE, run

Whole = tuple[Path, ShardFolder, Drawn]

STEPS = 60
#: Of each process.
COUNTS = {"slices": 4 * STEPS + STEPS // 2, "windows": STEPS}
ENDED = "the recording is damaged here"
formats = pytest.mark.parametrize("exporter", FORMATS, ids=["perfetto", "chrome"])


def script(number: int) -> Script:
    """Two threads with nested slices, arrows to a stream, args; a third thread that begins late."""
    made = Script(number, 100 + number, f"process{number}.py")
    main, other = made.thread(), made.thread("other")
    stream = made.stream()
    late = made.thread("late")
    for step in range(STEPS):
        at = step * 1000
        made.add(
            main,
            (at, BEGIN, f"step {step}", {"number": step}, 0),
            (at + 10, SLICE, "forward", None, step + 1, at + 300),
            (at + 400, INSTANT, "mark", {"loss": 0.5}),
            (at + 900, END),
        )
        made.add(other, (at + 5, SLICE, "fetch", None, 0, at + 800))
        made.add(stream, (at + 100, SLICE, "forward", {"error_ns": 7}, step + 1, at + 950))
        if step >= STEPS // 2:
            made.add(late, (at + 7, SLICE, f"late {step}", None, 0, at + 500))
    return made


def left(path: Path, exporter: type[Exporter]) -> ShardFolder:
    path.mkdir()
    suffix = ".pftrace" if exporter is FORMATS[0] else ".json"
    name = f"{exporter.__module__}:{exporter.__qualname__}"
    folder = ShardFolder.create(str(path), RECORDING, suffix, name, "simulated")
    for snapshot in SNAPSHOTS:
        folder.add_snapshot(snapshot)
    for number in range(2):
        shard = script(number).shard(exporter)
        Path(folder.shard_path(number)).write_bytes(shard)
        append_line(f"{folder.path}/writers", f"{number} {100 + number} 5 /usr/bin/python3")
        folder.write_report(number, {**COUNTS, "pid": 100 + number, "shard_bytes": len(shard), "ended": 1})
    return folder


def merged(folder: ShardFolder) -> tuple[Summary, Drawn]:
    output = f"{folder.path}{folder.suffix}"
    summary = recover(folder.path, output, None, recount, mend)
    return summary, Drawn(Path(output))


def key(each: Slice) -> tuple[object, ...]:
    """Not how deep it lies: what is around it may be lost."""
    return (each.track, each.name, each.ts, each.dur, repr(sorted(each.args.items())))


@pytest.fixture(scope="module", params=FORMATS, ids=["perfetto", "chrome"])
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Whole:
    path = tmp_path_factory.mktemp("whole")
    pristine = left(path / "pristine", request.param)
    shutil.copytree(pristine.path, path / "one")
    summary, drawn = merged(ShardFolder.open(str(path / "one")))
    assert not summary.told
    return path, pristine, drawn


def rotted(whole: Whole, change: Callable[[bytes], bytes]) -> tuple[Summary, Drawn]:
    path, pristine, _ = whole
    shutil.rmtree(path / "one", ignore_errors=True)
    shutil.copytree(pristine.path, path / "one")
    shard = path / "one" / "0.shard"
    shard.write_bytes(change(shard.read_bytes()))
    return merged(ShardFolder.open(str(path / "one")))


def check(whole: Whole, summary: Summary, drawn: Drawn) -> list[Slice]:
    """Nothing is drawn that was not, or elsewhere, or longer; the other process is all there; a loss is told. Returns
    what is drawn of the damaged process.
    """
    meant = {key(each) for each in whole[2].slices}
    cut = [each for each in drawn.slices if each.args.get("ended") == ENDED]
    there = {key(each) for each in drawn.slices if each not in cut}
    assert there <= meant, sorted(map(str, there - meant))[:5]
    assert {each for each in meant if "process1.py" in str(each)} <= there
    begun = {(each.track, each.name, each.ts): each.dur for each in whole[2].slices}
    for each in cut:
        assert begun[each.track, each.name, each.ts] >= each.dur >= 0
    [line] = [line for line in summary.told if "0.shard" in line]
    assert line.startswith("one/0.shard (process 100) is damaged, and ")
    assert summary.slices == len([each for each in drawn.slices if each.name != "mark"])
    assert summary.damaged
    return [each for each in drawn.slices if "process0.py" in str(each.track)]


def block(at: float, size: int, put: Callable[[int], bytes] = bytes) -> Callable[[bytes], bytes]:
    """Puts other bytes over some of a shard, from a share of its length on."""

    def change(data: bytes) -> bytes:
        start = int(len(data) * at)
        return data[:start] + put(size) + data[start + size :]

    return change


@pytest.mark.parametrize("at", [0.1, 0.3, 0.6, 0.9])
def test_a_block_of_zeros(whole: Whole, at: float) -> None:
    mine = check(whole, *rotted(whole, block(at, 200)))
    steps = {int(each.name.split()[1]) for each in mine if each.name and each.name.startswith("step")}
    assert {*range(int(STEPS * at) - 8)} <= steps, "all before it"
    late = {each.name for each in mine if each.name and each.name.startswith("late")}
    assert len(late) >= STEPS // 2 - 3 if at < 0.4 else late or at > 0.4, "what began after it"


@pytest.mark.parametrize(("at", "rows"), [(0.2, 3), (0.7, 4)])
@pytest.mark.parametrize("whole", [FORMATS[0]], indirect=True, ids=["perfetto"])
def test_rows_that_end_at_it_are_counted(whole: Whole, at: float, rows: int) -> None:
    """In this format an event says how long after the one before it is: a row that has lost any ends, as is told."""
    summary, drawn = rotted(whole, block(at, 200))
    mine = check(whole, summary, drawn)
    [line] = [line for line in summary.told if "0.shard" in line]
    assert f" cannot be used; {rows} of its rows end at the damage: " in line
    last = {each.track[-1]: max(s.ts for s in mine if s.track == each.track) for each in mine}
    meant = [each for each in whole[2].slices if "process0.py" in str(each.track)]
    stopped = {each.track[-1] for each in meant if each.ts > last[each.track[-1]]}
    assert len(stopped) == rows


@pytest.mark.parametrize("whole", [FORMATS[1]], indirect=True, ids=["chrome"])
def test_lines_go_on_right_behind_it(whole: Whole) -> None:
    """JSON states each time as it is: all but the slices that touch the damage are there."""
    mine = check(whole, *rotted(whole, block(0.4, 300)))
    lost = len([each for each in whole[2].slices if "process0.py" in str(each.track)]) - len(mine)
    assert 0 < lost <= 8


def test_a_piece_that_is_gone_and_one_that_was_put_in(whole: Whole) -> None:
    check(whole, *rotted(whole, lambda data: data[:4000] + data[4333:]))
    check(whole, *rotted(whole, lambda data: data[:4000] + b'\n\x07garbage{}[]"\n' * 9 + data[4000:]))


def test_several(whole: Whole) -> None:
    def change(data: bytes) -> bytes:
        for at in (0.2, 0.21, 0.5, 0.8):
            data = block(at, 90, lambda size: random.Random(4).randbytes(size))(data)
        return data

    assert check(whole, *rotted(whole, change))


def test_a_torn_end_is_no_rot(whole: Whole, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is anything written for it beside it: it is what a full disk leaves."""

    def full(path: str, flags: int) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("gputrace.record.mended.private", full)
    path, pristine, _ = whole
    shutil.rmtree(path / "one", ignore_errors=True)
    shutil.copytree(pristine.path, path / "one")
    folder = ShardFolder.open(str(path / "one"))
    shard = Path(folder.shard_path(0))
    data = shard.read_bytes()
    shard.write_bytes(data[:-11])
    folder.write_report(0, {"pid": 100, "shard_bytes": len(data) // 2})  # it was killed a while after it
    summary, _ = merged(folder)
    assert not summary.damaged
    with pytest.raises(OutputError, match="No space left"):
        rotted(whole, block(0.5, 20))


TEXT = st.text(max_size=6)
ARGS = st.dictionaries(TEXT, st.one_of(st.booleans(), st.integers(), st.floats(), st.text(max_size=200)), max_size=3)
EDGE = st.tuples(st.integers(0, 1 << 40), TEXT, ARGS, st.integers(0, 3), st.integers(0, 1 << 22))


@formats
@given(st.lists(EDGE, max_size=40), TEXT)
@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), database=None)
def test_nothing_is_found_in_what_is_whole(
    tmp_path: Path, exporter: type[Exporter], edges: list[tuple[int, str, dict[str, Any], int, int]], name: str
) -> None:
    made = Script(3, name=name)
    thread, stream, loss = made.thread(name), made.stream(), made.track("counter", name)
    for ns, text, args, flow, dur in sorted(edges, key=lambda edge: edge[0]):
        for track in (thread, stream):
            made.add(track, (ns, SLICE, text, args, flow, ns + dur), (ns + dur, INSTANT, text, args, flow))
        made.add(loss, (ns, COUNTER, dur if flow else dur / 7))
    path = tmp_path / "3.shard"
    path.write_bytes(made.shard(exporter))
    suffix = ".pftrace" if exporter is FORMATS[0] else ".json"
    assert mend(str(path), path.stat().st_size, suffix, lambda _: (tmp_path / "mended").open("wb"), {3}) == (0, 0)


def test_any_damage(whole: Whole) -> None:
    """A byte that makes another good record cannot be seen; whatever comes, the trace loads, with all of the others."""

    @settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), database=None)
    @given(
        st.lists(st.tuples(st.floats(0, 1), st.sampled_from(["flip", "zero", "cut", "random"])), min_size=1, max_size=3)
    )
    def one(hits: list[tuple[float, str]]) -> None:
        def change(data: bytes) -> bytes:
            for share, kind in hits:
                at = min(int(len(data) * share), len(data) - 1)
                if kind == "flip":
                    data = data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :]
                elif kind == "cut":
                    data = data[:at] + data[at + 1 + at % 700 :]
                else:
                    put = bytes if kind == "zero" else random.Random(at).randbytes
                    data = data[:at] + put(min(128, len(data) - at)) + data[at + 128 :]
            return data

        summary, drawn = rotted(whole, change)
        other = {key(each) for each in whole[2].slices if "process1.py" in str(each.track)}
        assert other <= {key(each) for each in drawn.slices}
        if any(kind in ("zero", "random") for _, kind in hits):
            assert summary.damaged

    one()


@formats
def test_by_the_command_line(tmp_path: Path, exporter: type[Exporter]) -> None:
    folder = left(tmp_path / "left", exporter)
    shard = Path(folder.shard_path(0))
    shard.write_bytes(block(0.5, 100)(shard.read_bytes()))
    for inputs in (["left"], ["left", "left"]):
        done = run([*GPUTRACE, "merge", *inputs, "-o", f"t{folder.suffix}", "--strict"], tmp_path)
        assert done.returncode == 1
        assert b"left/0.shard (process 100) is damaged, and " in done.stderr
        assert Drawn(tmp_path / f"t{folder.suffix}").named("step 0")
