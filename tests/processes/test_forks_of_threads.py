"""Children that another thread than the main one forked: such a process is over with its last thread, with us too."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.engine import Engine, assert_clean, slices
from tests.hot.twin import TWINS, environment
from tests.record.running import PYTHON, recording, run
from tests.ways.program import SUFFIXES

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")

PROGRAM = """
import os, sys, threading, time
import gputrace
way = sys.argv[1]
def lasts():
    with gputrace.span("lasts"):
        time.sleep(0.3)
def work():
    pid = os.fork()
    if pid:
        print(os.waitpid(pid, 0)[1])
        return
    with gputrace.span("child"):
        pass
    if way == "another thread goes on":
        threading.Thread(target=lasts).start()
    elif way == "sys.exit":
        sys.exit(0)
    elif way == "raises":
        sys.stderr = None
        raise LookupError
thread = threading.Thread(target=work)
thread.start()
thread.join()
"""


@pytest.mark.parametrize("way", ["returns", "sys.exit", "raises", "another thread goes on"])
@pytest.mark.parametrize("twin", TWINS)
def test_it_ends(tmp_path: Path, twin: str, way: str) -> None:
    (tmp_path / "my.py").write_text(PROGRAM)
    plain = subprocess.run([PYTHON, "my.py", way], cwd=tmp_path, env=environment(twin), capture_output=True, timeout=60)
    for suffix in SUFFIXES:
        trace = tmp_path / f"t{suffix}"
        done = run(recording(PYTHON, "my.py", way, output=trace), tmp_path, env=environment(twin))
        assert (done.returncode, done.stdout) == (plain.returncode, plain.stdout)
        assert b"without cleaning up" not in done.stderr
        engine = Engine(trace)
        assert_clean(engine)
        assert sorted(each.name or "" for each in slices(engine)) == ["child", "lasts"][: 1 + way.startswith("another")]


#: A finaliser of the program's may run on any thread, ours too: in a garbage collection there.
FINALISER = """
import os, sys, time
import gputrace
from gputrace import tracer
forked = []
def finaliser():
    if forked:
        return
    forked.append(0)
    pid = os.fork()
    if pid:
        forked[0] = pid
        return
    with gputrace.span("child"):
        pass
ours = {"collector": "_collector", "sampler": "_sampler._thread", "timer": "regions._timer"}[sys.argv[1]]
thread = tracer.current()
for name in ours.split("."):
    thread = getattr(thread, name)
work = thread._work
def work_and_collect_garbage():
    finaliser()
    work()
thread._work = work_and_collect_garbage
with gputrace.span("parent"):
    while not any(forked):
        thread.ring()
        time.sleep(0.01)
assert os.waitpid(forked[0], 0)[1] == 0
"""


@pytest.mark.parametrize("ours", ["collector", "sampler", "timer"])
@pytest.mark.parametrize("twin", TWINS)
def test_it_ends_if_a_thread_of_ours_forked_it(tmp_path: Path, twin: str, ours: str) -> None:
    (tmp_path / "my.py").write_text(FINALISER)
    trace = tmp_path / "t.pftrace"
    options = ["--duration", "1h"] if ours == "timer" else []
    *record, dashes, python, program = recording(PYTHON, "my.py", output=trace)
    done = run([*record, *options, dashes, python, "-W", "ignore", program, ours], tmp_path, env=environment(twin))
    assert (done.returncode, done.stdout) == (0, b""), done.stderr
    engine = Engine(trace)
    assert_clean(engine)
    assert sorted(each.name or "" for each in slices(engine)) == ["child", "parent"]
