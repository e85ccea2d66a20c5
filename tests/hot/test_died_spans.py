"""Spans that nobody can close any more, as a signal's handler raised before their block's end, and one that raises just
as such a span dies: each ends where it died, and the program has what its handler raised.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.engine import Engine, assert_clean, slices
from tests.hot.twin import ROOT, TWINS, environment

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="sends signals by pidfd")

#: The signal is sent by a callable in C that is a finaliser itself: Python runs the handler at the next of its lines,
#: which is in the finaliser of what dies right after, if that has one.
PROGRAM = """
import os, signal, sys, time
from functools import partial
import gputrace
from gputrace import hot
from gputrace.devices.simulated import default_gpu

class Interrupt(BaseException):
    pass

def handler(*_):
    raise Interrupt

class Sends:
    __del__ = staticmethod(partial(signal.pidfd_send_signal, os.pidfd_open(os.getpid()), signal.SIGUSR1))

def settle():
    while not hot.idle():
        time.sleep(0.001)

signal.signal(signal.SIGUSR1, handler)
told = []
sys.unraisablehook = told.append
with gputrace.trace(sys.argv[1], device="simulated") as trace:
    stream = default_gpu().stream("main") if sys.argv[2] == "gpu" else None
    for _ in range(3):
        left = gputrace.span("left", stream)
        left.__enter__()
        settle()
        dying = [left, Sends()]  # a list lets go of its last first
        del left
        gputrace.instant("dying")
        interrupted = False
        try:
            dying.clear()
            dying.sort()
            dying.sort()
        except Interrupt:
            interrupted = True
        told.append(interrupted)
        for _ in range(2):
            with gputrace.span("outer", stream):
                with gputrace.span("inner", stream):
                    pass
        settle()
print(*told)
"""


@pytest.mark.parametrize("twin", TWINS)
@pytest.mark.parametrize("where", ["host", "gpu"])
def test_a_handler_raises_as_a_span_dies(tmp_path: Path, where: str, twin: str) -> None:
    output = tmp_path / "t.pftrace"
    command = [sys.executable, "-c", PROGRAM, str(output), where]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment(twin), timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "True True True\n", "")
    engine = Engine(output)
    assert_clean(engine)
    drawn = sorted(slices(engine), key=lambda s: s.ts)
    sides = [[s for s in drawn if ("main" in " ".join(s.track)) is on_stream] for on_stream in (False, True)]
    order = ["left", "dying", "outer", "inner", "outer", "inner"] * 3
    assert [s.name for s in sides[0]] == order
    assert [s.name for s in sides[1]] == ([name for name in order if name != "dying"] if where == "gpu" else [])
    for side in sides:
        for left, *after in (side[i : i + len(side) // 3] for i in range(0, len(side), len(side) // 3 or 1)):
            assert left.args["ended"] == "never closed"
            first = next(s for s in after if s.name == "outer")
            assert left.ts <= left.ts + left.dur <= first.ts
            assert [s.depth for s in after if s.name != "dying"] == [0, 1, 0, 1]
            assert all(s.dur >= 0 for s in after)
            assert all(s.ts <= left.ts + left.dur for s in after if s.name == "dying")
