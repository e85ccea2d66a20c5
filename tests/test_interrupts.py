"""A signal's handler may raise between any two steps of ours: Ctrl-C, a timeout. Nesting is whole again right after."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import random, signal, sys, time
from pathlib import Path

import gputrace
from gputrace import hot
from tests.recorded import recording

class Interrupt(BaseException):
    pass

def handler(*_):
    raise Interrupt

dice = random.Random(1)
with recording(Path(sys.argv[1]), leaked_events=None) as run:
    stream = run.stream() if sys.argv[2] == "gpu" else None
    with gputrace.span("first", stream):  # a first stream brings imports, longer than any of these timers
        pass
    signal.signal(signal.SIGALRM, handler)
    for _ in range(1500):
        try:
            signal.setitimer(signal.ITIMER_REAL, dice.uniform(2e-6, 80e-6))
            for _ in range(300):  # an interrupt inside a finaliser is swallowed by Python: do not wait for it
                with gputrace.span("a", stream):
                    with gputrace.span("b", stream), gputrace.span("c"):
                        pass
        except Interrupt:
            pass
        try:
            signal.setitimer(signal.ITIMER_REAL, 0)
        except Interrupt:
            pass
    for _ in range(2):  # two whole cycles of the collector
        with gputrace.span("settle"):
            pass
        deadline = time.monotonic() + 10
        while not hot.idle() and time.monotonic() < deadline:
            time.sleep(0.001)
    with gputrace.span("last"), gputrace.span("last inside", stream):
        pass

depths = {s.name: s.depth for s in run.host if s.name.startswith("last")}
assert depths == {"last": 0, "last inside": 1}, depths
assert run.report["told"] == [], run.report
open_still = [s for s in run.slices if s.dur < 0]
assert not open_still, open_still
assert len(run.host) > 1500, len(run.host)
print("well")
"""


@pytest.mark.slow
@pytest.mark.parametrize("where", ["host", "gpu"])
def test_interrupts_at_every_step(tmp_path: Path, where: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path), where],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[1],
        timeout=60,
    )
    assert done.stdout == "well\n", done.stderr
    assert "gputrace" not in done.stderr


BLOCKED = """
import os, signal, sys, threading, time
import gputrace

def alarm(*_):
    raise KeyboardInterrupt

signal.signal(signal.SIGINT, alarm)
with gputrace.trace(sys.argv[1], device="host") as trace:
    try:
        with gputrace.span("interrupted"):
            threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
            time.sleep(30)
    except KeyboardInterrupt:
        pass
    with gputrace.span("after"):
        pass
assert trace.summary.slices == 2
"""


def test_ctrl_c_inside_a_span(tmp_path: Path) -> None:
    from tests.engine import Engine, assert_clean, slices

    output = tmp_path / "t.pftrace"
    root = Path(__file__).parents[1]
    subprocess.run([sys.executable, "-c", BLOCKED, str(output)], check=True, timeout=30, cwd=root)
    engine = Engine(output)
    assert_clean(engine)
    drawn = [(s.name, s.depth, s.args.get("error")) for s in slices(engine)]
    assert drawn == [("interrupted", 0, "KeyboardInterrupt"), ("after", 0, None)]
