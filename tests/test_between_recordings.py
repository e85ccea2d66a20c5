"""What a thread records just as one recording is over and the next has not begun takes nothing from the next."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from gputrace.record.recording import recover
from tests.engine import Engine, counters, slices
from tests.hot.twin import TWINS, run_in

#: Its threads are held in objects of the program's while the recording that they began to record in ends. They go on
#: when all is forgotten, before the next has begun, which meets the same names again and is killed.
PROGRAM = """
import glob, os, signal, sys, threading, time
from pathlib import Path
import gputrace

folder = Path(sys.argv[1])
held, between = threading.Semaphore(0), threading.Event()

class Value:
    def __float__(self):
        held.release()
        between.wait(20)
        return 1.0

class Stream:
    def __hash__(self):
        held.release()
        between.wait(20)
        return 1

threads = [
    threading.Thread(target=gputrace.counter, args=("counted", Value(), "bytes")),
    threading.Thread(target=lambda: gputrace.window("window", Stream(), key=1).close()),
    threading.Thread(target=lambda: gputrace.span("span", Stream(), key=1).__enter__()),
]

def on_return(frame, event, argument):
    if event == "return" and frame.f_code.co_name == "forget_everything" and not between.is_set():
        between.set()
        for thread in threads:
            thread.join()

first = gputrace.trace(folder / "first.pftrace", device="simulated").start()
for thread in threads:
    thread.start()
    assert held.acquire(timeout=20)
first.stop()
sys.setprofile(on_return)
gputrace.trace(folder / "second.pftrace", device="simulated").start()
sys.setprofile(None)
assert between.is_set()
gputrace.counter("counted", 2, "bytes")
with gputrace.span("span", key=2):
    gputrace.window("window", key=2).close()
if os.environ.get("GPUTRACE_PURE"):  # which keeps what is written alone
    while not any(b"window" in Path(shard).read_bytes() for shard in glob.glob(f"{folder}/.*/*.shard")):
        time.sleep(0.01)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("twin", TWINS)
def test_names_met_in_between(tmp_path: Path, twin: str) -> None:
    done = run_in(twin, PROGRAM, tmp_path)
    assert (done.returncode, done.stderr) == (-signal.SIGKILL, "")
    (left,) = (path for path in tmp_path.iterdir() if path.name.startswith("."))
    recover(str(left), str(tmp_path / "second.pftrace"))
    engine = Engine(tmp_path / "second.pftrace")
    found = sorted((s.name, s.args) for s in slices(engine) if s.args.get("key") == 2 or s.name == "?")
    assert found == [("span", {"key": 2}), ("window", {"key": 2})]
    assert [name for _, name in counters(engine)] == ["counted"]
