"""Spans while the interpreter shuts down: up to our exit hook all are there, and behind it none does harm."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.engine import Engine, assert_clean, slices
from tests.hot.twin import TWINS, environment
from tests.record.running import PYTHON, recording, run
from tests.ways.program import SUFFIXES

PROGRAM = """
import atexit, os, threading, time, weakref
import gputrace
from gputrace import hot

def span(name):
    with gputrace.span(name):
        pass

class Deleted:
    def __del__(self, span=gputrace.span, write=os.write):
        with span("behind the exit hook"):
            write(1, b"deleted")

begun = threading.Event()

def daemon():
    while True:
        span("daemon")
        begun.set()
        time.sleep(0.0001)

def outlives_the_main_thread():
    threading.main_thread().join()
    span("thread")

class Kept:
    pass

kept = Kept()
if hot.TWIN == "compiled":  # what is written in Python has lost its own modules by then
    threading.deleted = Deleted()
threading._register_atexit(span, "threads' exit")
atexit.register(span, "exit")
weakref.finalize(kept, span, "finalize")
threading.Thread(target=daemon, daemon=True).start()
begun.wait()
threading.Thread(target=outlives_the_main_thread).start()
span("main")
"""


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("twin", TWINS)
def test_what_ends_late_is_there(tmp_path: Path, twin: str, suffix: str) -> None:
    (tmp_path / "my.py").write_text(PROGRAM)
    trace = tmp_path / f"t{suffix}"
    done = run(recording(PYTHON, "-X", "faulthandler", "my.py", output=trace), tmp_path, env=environment(twin))
    plain = run([PYTHON, "my.py"], tmp_path, env=environment(twin))
    assert (done.returncode, done.stdout) == (0, plain.stdout), done.stderr
    assert (b"deleted" in plain.stdout) == (twin == "compiled")
    assert b" 0 dropped" in done.stderr
    engine = Engine(trace)
    assert_clean(engine)
    found = Counter(each.name for each in slices(engine))
    assert found.pop("daemon")
    assert found == Counter(["main", "thread", "threads' exit", "exit", "finalize"])
