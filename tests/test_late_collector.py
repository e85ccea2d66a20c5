"""A recording whose end was given up, and whose collector comes back later: the next recording has nothing of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine import Engine, assert_clean, slices
from tests.hot.twin import TWINS, run_in
from tests.recorded import is_gpu

PROGRAM = """
import sys, threading, time
import gputrace
from gputrace import hot, shardfile, tracer
from gputrace.devices.simulated import default_gpu
from gputrace.errors import UsageError

where, folder = sys.argv[1:]
tracer.STUCK_S = 0.2
tracer.Tracer.stop.__defaults__ = (0.2,)
armed, inside, go = threading.Event(), threading.Event(), threading.Event()

def held(function):
    def call(*arguments):
        if armed.is_set() and threading.current_thread() is not threading.main_thread():
            armed.clear()
            inside.set()
            assert go.wait(60)
        return function(*arguments)
    return call

gpu = default_gpu()
if where == "reading":
    gpu.elapsed_raw = held(gpu.elapsed_raw)
elif where == "writing":
    shardfile.ShardFile.flush = held(shardfile.ShardFile.flush)
elif where == "announcing":
    tracer.Tracer._open_exporter = held(tracer.Tracer._open_exporter)
stream, other = gpu.stream("first"), gpu.stream("second")

def spans(name, count, stream):
    for n in range(count):
        with gputrace.span(name, stream), gputrace.span(name + " inside", n=n):
            pass

def wait(condition):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)

first = gputrace.trace(folder + "/first.pftrace", device="simulated").start()
old = tracer.current()
if where != "announcing":
    spans("early", 50, stream)
    wait(hot.idle)
armed.set()
spans("late", 300, stream)
assert inside.wait(30)
summary = first.stop()
assert any("gave up at the end" in line for line in summary.told), summary

second = gputrace.trace(folder + "/second.pftrace", device="simulated")
try:
    second.start()
except UsageError as error:
    # The collector is inside the core, which it must leave before anything else begins there.
    assert where == "announcing" and hot.TWIN == "compiled" and "cannot start to record" in str(error), error
    go.set()
    wait(lambda: not old._collector.running)
    second.start()
else:
    assert where != "announcing" or hot.TWIN == "pure"
spans("new", 500, other)
go.set()
wait(lambda: not old._collector.running)
spans("new", 500, other)
wait(hot.idle)
spans("new", 500, other)
summary = second.stop()
assert (summary.slices, summary.windows, summary.told) == (4500, 1500, []), summary
assert (summary.dropped, summary.failed, summary.unfinished, summary.clamped) == (0, 0, 0, 0), summary
print("well")
"""


@pytest.mark.parametrize("twin", TWINS)
@pytest.mark.parametrize("where", ["reading", "writing", "announcing"])
def test_it_comes_back_inside_another_recording(tmp_path: Path, where: str, twin: str) -> None:
    done = run_in(twin, PROGRAM, where, tmp_path)
    assert (done.stdout, done.returncode) == ("well\n", 0), done.stderr
    engine = Engine(tmp_path / "second.pftrace")
    assert_clean(engine)
    drawn = slices(engine)
    assert {s.name for s in drawn} == {"new", "new inside"}
    assert all(s.dur >= 0 for s in drawn)
    assert sum(is_gpu(s) for s in drawn) == 1500
