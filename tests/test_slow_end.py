"""A recording's end that takes its time: as long as anything moves, it is not given up."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine import Engine, counters, slices
from tests.hot.twin import TWINS, run_in

MANY = 500

#: What it records takes longer to write than the end has patience, though each row and each slice is soon written.
PROGRAM = """
import sys, time
import gputrace
from gputrace import shardfile, tracer
from tests.test_slow_end import MANY

tracer.STUCK_S = 1.0
tracer.Tracer.stop.__defaults__ = (0.1,)
write, slow = shardfile.ShardFile.write, []

def at_leisure(file, data):
    if slow:
        time.sleep(2.5 / MANY)
    return write(file, data)

shardfile.ShardFile.write = at_leisure
what, output = sys.argv[1:]
recording = gputrace.trace(output, device="host").start()
for n in range(MANY):
    if what == "counters":
        gputrace.counter(f"counter {n}", n)
    else:
        with gputrace.span("slice", **{f"key {n}": n}):
            pass
slow.append(True)
summary = recording.stop()
assert summary.told == [] and not summary.cut_short, summary
"""


@pytest.mark.parametrize("twin", TWINS)
@pytest.mark.parametrize("what", ["counters", "slices"])
def test_what_moves_is_waited_for(tmp_path: Path, what: str, twin: str) -> None:
    trace = tmp_path / "t.pftrace"
    done = run_in(twin, PROGRAM, what, trace)
    assert (done.returncode, done.stderr) == (0, "")
    engine = Engine(trace)
    assert len(counters(engine) if what == "counters" else slices(engine)) == MANY
