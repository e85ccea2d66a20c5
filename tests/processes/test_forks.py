"""Forks from many threads at once, while spans are opened on all of them: no child hangs, and each is traced."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.engine import Engine, problems, slices
from tests.record.running import PYTHON, recording, run
from tests.ways.program import SUFFIXES

FORKS_A_THREAD = 20
FORKING, OPENING = 4, 8

PROGRAM = f"""
import gputrace, os, signal, sys, threading, time, warnings
from gputrace.devices.simulated import default_gpu
warnings.simplefilter("ignore")  # of threads and forks, from 3.12 on
gpu = default_gpu()
hung, over = [], threading.Event()

def child(n):
    signal.alarm(20)  # where it hangs, this kills it
    stream = gpu.stream()
    with gputrace.span("child", stream, n=n):
        stream.launch(1000)
    threads = [threading.Thread(target=gputrace.instant, args=("in a thread of the child",)) for _ in range(2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    sys.exit(0)

def fork(first):
    for n in range(first, first + {FORKS_A_THREAD}):
        with gputrace.span("fork", n=n):
            pid = os.fork()
            if not pid:
                try:
                    child(n)
                except SystemExit:
                    from gputrace import tracer
                    tracer._at_exit()  # what Python does at the end of a main thread
                    os._exit(0)
            status = os.waitpid(pid, 0)[1]
            if status:
                hung.append((n, status))

def open_spans():
    while not over.is_set():
        stream = gpu.stream()  # a new one each time: the tracer's own locks are taken
        for _ in range(20):
            with gputrace.span("opened", stream):
                stream.launch(1000)
                gputrace.counter("n", 1)
        gputrace.window("abandoned", stream).abandon()
        time.sleep(0.005)  # new streams are rare, and each of them stays

opening = [threading.Thread(target=open_spans) for _ in range({OPENING})]
forking = [threading.Thread(target=fork, args=(k * {FORKS_A_THREAD},)) for k in range({FORKING})]
for each in opening + forking:
    each.start()
for each in forking:
    each.join()
over.set()
for each in opening:
    each.join()
print(hung)
"""


@pytest.mark.slow
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_many_threads_and_many_forks(tmp_path: Path, suffix: str) -> None:
    done = run(recording(PYTHON, "-c", PROGRAM, output=f"t{suffix}", device="simulated"), tmp_path)
    assert (done.returncode, done.stdout) == (0, b"[]\n"), done.stderr
    engine = Engine(tmp_path / f"t{suffix}")
    # With so many threads an anchor may be milliseconds wide, and a window be placed before the slice that opened it:
    # of an arrow between these the engine may complain.
    assert [each for each in problems(engine) if not each["name"].startswith("flow_no_enclosing_slice")] == []
    found = slices(engine)
    forks = FORKING * FORKS_A_THREAD
    numbers = Counter(each.args["n"] for each in found if each.name == "child")
    assert numbers == dict.fromkeys(range(forks), 2), "each on its thread and on its stream"
    assert sorted(each.args["n"] for each in found if each.name == "fork" and each.dur >= 0) == list(range(forks))
    assert len([each for each in found if each.name == "in a thread of the child"]) == 2 * forks
    assert sys.version_info < (3, 12) or b"DeprecationWarning" not in done.stderr
