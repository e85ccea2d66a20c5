"""What a garbage collection runs of the program's in the middle of our own work: it may ask for anything there.

Finalisers run wherever memory is taken, on the collector's thread, too. Each program asks once at every place that it
comes to.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.hot.twin import ROOT, TWINS, environment

START = """
import gc, os, signal, sys, threading, time
from collections import Counter
from pathlib import Path
import gputrace
from gputrace import tracer
from gputrace.devices.simulated import default_gpu
from gputrace.errors import UsageError
from tests.engine import Engine, slices

folder, places, busy = Path(sys.argv[1]), set(), False

def on_collection(phase, info):
    global busy
    names, place, frame = set(), None, sys._getframe().f_back
    while frame is not None:
        if place is None and "gputrace" in frame.f_code.co_filename:
            place = frame.f_code.co_name, frame.f_lineno
        names.add(frame.f_code.co_name)
        frame = frame.f_back
    if busy or phase != "start" or not names & {"_collect", "_write_out", "_dump", "_end"} or place in places:
        return
    places.add(place)
    busy = True
    act()
    busy = False

gc.callbacks.append(on_collection)

def record(**options):
    "How many spans there were, the summary, and what was drawn, by name."
    recording = gputrace.trace(folder / "t.pftrace", device="simulated", **options).start()
    stream, deadline, count = default_gpu().stream("s"), time.monotonic() + 20, 0
    gc.set_threshold(1)
    while (len(places) < 20 or count < 100) and time.monotonic() < deadline:
        count += 1
        with gputrace.span("mine", stream, n=count):
            thread = threading.Thread(target=gputrace.instant, args=["theirs"])
            thread.start()
            thread.join()
        gputrace.counter("count", count)
        if not count % 10:
            tracer.current().write_now()
    summary = recording.stop()
    gc.set_threshold(700)
    drawn = Counter(s.name for s in slices(Engine(folder / "t.pftrace")))
    assert len(places) >= 20, places
    assert (drawn["mine"], drawn["theirs"]) == (2 * count, count), (count, drawn)
    assert not summary.told and not summary.dropped, summary
    return drawn
"""

SPANS = """
recorded = 0

def act():
    global recorded
    recorded += tracer.current() is not None  # else it is at its end
    with gputrace.span("inside", default_gpu().stream("another"), at=str(places)), gputrace.span("plain"):
        gputrace.instant("moment")
    gputrace.counter("inside", 1)
    gputrace.window("window").close()

drawn = record()
assert [drawn[name] for name in ("inside", "plain", "moment", "window")] == [2 * recorded, *[recorded] * 3], drawn
"""

DUMP = """
answers = set()

def act():
    answers.add(gputrace.dump())

record(last="1h")
assert answers == {""} and (folder / "t.1.pftrace").exists(), answers
"""

WRITE = """
def act():
    for current in running:
        current.write_now()

running = []
start = tracer.Tracer.start
tracer.Tracer.start = lambda self: (running.append(self), start(self))
record()
"""

STOP = """
refused = 0

def act():
    global refused
    for ask in (*running, gputrace.trace(folder / "other.pftrace").start):
        try:
            ask()
        except UsageError as error:
            refused += "neither start nor stop" in str(error)

running = []
start = gputrace.trace.start
gputrace.trace.start = lambda self: (start(self), running.append(self.stop))[0]
record()
assert refused == 2 * len(places), (refused, places)
"""

FORK = """
codes, slow = [], []

def act():
    began = time.monotonic()
    child = os.fork()
    if not child:
        signal.alarm(20)
        with gputrace.span("child"):
            pass
        os._exit(7)
    codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    if time.monotonic() - began > tracer.FORK_DEADLINE_S:
        slow.append(began)

record()
assert set(codes) == {7}, codes
assert len(slow) <= 1, slow  # while another thread of ours is being started, its end is waited for
"""

PROGRAMS = {"spans": SPANS, "dump": DUMP, "write": WRITE, "stop": STOP, "fork": FORK}


@pytest.mark.parametrize("twin", TWINS)
@pytest.mark.parametrize("asked", PROGRAMS)
def test_it_may_ask_for_anything(tmp_path: Path, asked: str, twin: str) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-X",
            "faulthandler",
            "-W",
            "error::ResourceWarning",
            "-W",
            "ignore:This process:DeprecationWarning",  # its fork, beside the main thread
            "-c",
            START + PROGRAMS[asked],
            str(tmp_path),
        ],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=environment(twin),
        timeout=100,
    )
    assert (done.stderr, done.returncode) == ("", 0)
