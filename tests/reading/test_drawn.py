"""Slices are counted in a process's files as the engine draws them: by row, up to where each file counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from gputrace.errors import InputError
from gputrace.model import BEGIN, COUNTER, END, INSTANT, LANE, SLICE, Exporter
from gputrace.reading.drawn import drawn
from tests.engine import Engine, slices
from tests.exporters.recordings import FORMATS, RECORDING, Script, join
from tests.recorded import is_gpu

SUFFIX = {format: f".{name}" for format, name in zip(FORMATS, ("pftrace", "json"), strict=True)}


def script(steps: int = 700) -> Script:
    """A thread, a lane of it, two streams, a counter; names that are new, args, and long pauses; some left open."""
    made = Script(3)
    thread = made.thread()
    lane = made.track(LANE, "tasks", parent=thread, merge_key="tasks")
    streams = [made.stream(), made.stream("stream 8")]
    loss = made.track("counter", "loss")
    for step in range(steps):
        at = step * 3_000_000
        made.add(thread, (at, BEGIN, "step", {"n": step}), (at + 10, SLICE, f"part {step}", None, step + 1, at + 20))
        made.add(thread, (at + 30, INSTANT, "mark"), (at + 2_000_000, END))
        made.add(lane, (at + 1, BEGIN, "task"), (at + 2_900_000, END, None, {"error": "no"}))
        made.add(streams[step % 2], (at + 11, SLICE, f"part {step}", None, step + 1, at + 900))
        made.add(loss, (at, COUNTER, 0.5))
    made.add(thread, (10**12, BEGIN, "open"), (10**12 + 1, BEGIN, "inside", {"a": 1}))
    made.add(lane, (10**12, BEGIN, "waits"))
    made.add(streams[1], (10**12, BEGIN, "runs"))
    return made


@pytest.mark.parametrize("format", FORMATS)
def test_as_the_engine_draws_them(tmp_path: Path, format: type[Exporter]) -> None:
    shard = script().shard(format)
    (tmp_path / "shard").write_bytes(shard)
    found = [each for each in slices(Engine(join(format, [shard]))) if each.name != "mark"]  # an instant
    counted = drawn([(str(tmp_path / "shard"), len(shard))], SUFFIX[format])
    assert counted is not None
    assert (counted.slices, counted.windows) == (len(found), sum(map(is_gpu, found)))
    assert counted.unfinished == sum(each.dur < 0 for each in found) == 4


@pytest.mark.parametrize("format", FORMATS)
def test_up_to_a_length_and_on_in_a_tail(tmp_path: Path, format: type[Exporter]) -> None:
    made = Script()
    thread = made.thread()
    made.add(thread, (0, BEGIN, "ends in the tail"), (5, SLICE, "a", None, 0, 6))
    kept = len(made.shard(format))
    made.add(thread, (8, BEGIN, "beyond"))
    (tmp_path / "shard").write_bytes(made.shard(format) + b"\n\x40")
    with open(tmp_path / "tail", "wb") as file:
        writer = format.resume(file, RECORDING, made.process)
        writer.reopen_track(thread)
        base = made.batches[0][1][0][0]
        writer.write(thread, [(base + 9, SLICE, "b", None, 0, base + 10), (base + 11, END, None, None, 0, 0)])
        writer.close()
    parts = [(str(tmp_path / "shard"), kept), (str(tmp_path / "tail"), (tmp_path / "tail").stat().st_size)]
    counted = drawn(parts, SUFFIX[format])
    assert counted is not None
    assert (counted.slices, counted.windows, counted.unfinished) == (3, 0, 0)


def test_a_format_of_others_is_not_counted(tmp_path: Path) -> None:
    assert drawn([(str(tmp_path / "shard"), 10)], ".tsv") is None


def test_a_file_that_is_gone(tmp_path: Path) -> None:
    for suffix in (".pftrace", ".json"):
        with pytest.raises(InputError):
            drawn([(str(tmp_path / "shard"), 10)], suffix)
