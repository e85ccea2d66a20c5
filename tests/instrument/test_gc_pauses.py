"""A garbage collection is a slice on the thread that it stops, and looking at it changes no program."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path

import pytest

import gputrace
from tests.engine import Engine, assert_clean, slices
from tests.hot.twin import TWINS, environment
from tests.record.running import recording

PROGRAM = """
import gc, threading
gc.disable()
import gputrace
with gputrace.span("main"):
    gc.collect(0)
    print(gc.collect(2) >= 0)
def work():
    with gputrace.span("thread"):
        gc.collect(1)
thread = threading.Thread(target=work)
thread.start()
thread.join()
"""
FAULTY = """
import gc
from gputrace import hot
def broken(*args, **kwargs):
    raise LookupError("a fault of ours")
hot.span = broken
gc.collect()
gc.collect()
print(len(gc.callbacks))
"""


def run(path: Path, program: str, output: str, twin: str) -> subprocess.CompletedProcess[bytes]:
    command = recording(sys.executable, "-c", program, output=output)
    command[4:4] = ["--instrument", "python.gc"]
    return subprocess.run(command, capture_output=True, env=environment(twin), cwd=path, timeout=60)


@pytest.mark.parametrize("suffix", [".pftrace", ".json"])
@pytest.mark.parametrize("twin", TWINS)
def test_each_is_a_slice_inside_what_it_stopped(tmp_path: Path, suffix: str, twin: str) -> None:
    done = run(tmp_path, PROGRAM, f"t{suffix}", twin)
    assert (done.returncode, done.stdout) == (0, b"True\n"), done.stderr
    engine = Engine(tmp_path / f"t{suffix}")
    assert_clean(engine)
    found = slices(engine)
    spans = {each.name: each for each in found if each.name in ("main", "thread")}
    inside = {
        name: [
            each.args["generation"]
            for each in found
            if each.name == "garbage collection"
            and (each.track_id, each.depth) == (span.track_id, 1)
            and span.ts <= each.ts
            and each.ts + each.dur <= span.ts + span.dur
        ]
        for name, span in spans.items()
    }
    assert inside == {"main": [0, 2], "thread": [1]}


@pytest.mark.parametrize("twin", TWINS)
def test_a_fault_of_ours_ends_the_patch_and_not_the_program(tmp_path: Path, twin: str) -> None:
    done = run(tmp_path, "import gputrace\nwith gputrace.span('x'): pass\n" + FAULTY, "t.pftrace", twin)
    assert (done.returncode, done.stdout) == (0, b"0\n"), done.stderr
    assert done.stderr.count(b"python.gc does not work here and was switched off") == 1


def test_it_lasts_as_long_as_the_recording_and_only_where_it_is_asked_for(tmp_path: Path) -> None:
    before = list(gc.callbacks)
    with gputrace.trace(tmp_path / "a.pftrace", "host", instrument=["python.gc"]):
        assert len(gc.callbacks) == len(before) + 1
    assert gc.callbacks == before
    with gputrace.trace(tmp_path / "a.pftrace", "host", instrument="python.gc"):
        assert len(gc.callbacks) == len(before) + 1
    with gputrace.trace(tmp_path / "b.pftrace", "host"):
        assert gc.callbacks == before
