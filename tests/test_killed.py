"""A process killed at a random moment, or ended past every exit handler, loses no span that was over.

Its program prints the number of each span once that is over, which outlives the process as the ring does.
GPUTRACE_KILLS says how many processes SIGKILL ends.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gputrace.record.recording import finish_recording, start_recording
from gputrace.record.tally import Summary
from tests.engine import Engine, Slice, assert_clean, slices
from tests.hot.twin import TWINS, environment
from tests.record.running import recording, run

KILLS = int(os.environ.get("GPUTRACE_KILLS", "150"))
#: So many processes a recording, two at a time.
AT_ONCE, GROUP = 2, 20
SUFFIXES = [".pftrace", ".json"]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(60 + 3 * KILLS),
    pytest.mark.skipif("compiled" not in TWINS, reason="the pure twin promises less"),
]

#: worker, the number after which it ends itself (-1: it is killed), and the statement that ends it.
PROGRAM = """
import ctypes, os, sys, threading
import gputrace
worker, last, end = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
texts = ["", "short", "a text of some length " * 5, "x" * 3000, "\\u00e4\\u4e16"]
lock = threading.Lock()
def spans(first):
    n = first
    while True:
        with gputrace.span("numbered", worker=worker, n=n, text=texts[n % 5]):
            with gputrace.span(f"name {n % 40}"):
                pass
        os.write(1, b"%d\\n" % n)
        n += 2
        if last >= 0 and n >= last:
            exec(end)
with gputrace.span("open", worker=worker):
    threading.Thread(target=spans, args=(1,), daemon=True).start()
    spans(0)
"""
ENDS = {
    "os._exit": ("os._exit(3)", 3),
    "abort": ("os.abort()", -signal.SIGABRT),
    "segfault": ("ctypes.string_at(0)", -signal.SIGSEGV),
    "SIGKILL by itself": ("os.kill(os.getpid(), 9)", -signal.SIGKILL),
}


def killed(folder: Path, worker: int, moment: random.Random) -> set[int]:
    """Run the program, kill it at a moment, and return the numbers it printed."""
    after = round(10 ** moment.uniform(0, 4))  # lines
    command = [sys.executable, "-c", PROGRAM, str(worker), "-1", ""]
    with subprocess.Popen(command, cwd=folder, env=recorded(folder), stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        said = b""
        while said.count(b"\n") < after:
            more = os.read(process.stdout.fileno(), 1 << 16)
            assert more, f"worker {worker} ended before it was killed: {process.wait()}"
            said += more
        until_ns = time.perf_counter_ns() + moment.randrange(2_000_000)
        while time.perf_counter_ns() < until_ns:
            pass
        process.kill()
        said += process.stdout.read()
    assert process.returncode == -signal.SIGKILL
    return printed(said)


def ended(folder: Path, worker: int, moment: random.Random, end: str, code: int) -> set[int]:
    """Run the program until it ends itself, and return the numbers it printed."""
    command = [sys.executable, "-c", PROGRAM, str(worker), str(round(10 ** moment.uniform(0, 4))), end]
    done = subprocess.run(command, cwd=folder, env=recorded(folder), stdout=subprocess.PIPE, timeout=60)
    assert done.returncode == code
    return printed(done.stdout)


def recorded(folder: Path) -> dict[str, str]:
    return environment("compiled") | {"GPUTRACE_RECORD": str(folder)}


def printed(said: bytes) -> set[int]:
    lines = said.split(b"\n")[:-1]
    numbers = {int(line) for line in lines}
    assert len(numbers) == len(lines)
    return numbers


def check(found: list[Slice], told: dict[int, set[int]]) -> None:
    """Each span that a worker told of is there once and whole; none is there twice; at most one a thread is new."""
    whole = Counter((s.args["worker"], s.args["n"]) for s in found if s.name == "numbered" and s.dur >= 0)
    cut = Counter((s.args["worker"], s.args["n"]) for s in found if s.name == "numbered" and s.dur < 0)
    owed = {(worker, n) for worker, numbers in told.items() for n in numbers}
    assert sorted(owed - whole.keys()) == [], "lost"
    assert [key for key, times in (whole + cut).items() if times > 1] == [], "twice"
    unsaid = Counter(worker for worker, _ in (whole + cut).keys() - owed)
    assert all(n <= 2 for n in unsaid.values()), unsaid
    assert sorted(s.args["worker"] for s in found if s.name == "open") == sorted(told)
    inner = Counter(s.name for s in found if s.name and s.name.startswith("name ") and s.dur >= 0)
    assert sum(inner.values()) >= len(owed)


def record(folder: Path, suffix: str, workers: int, run: object, seed: str) -> Summary:
    """Record some processes, each ended by ``run(folder, worker, moment)``, and look at their trace."""
    assert callable(run)
    session = start_recording(str(folder / f"t{suffix}"), "host", ["program"])
    shards = Path(session.folder.path)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        jobs = [pool.submit(run, shards, n, random.Random(f"{seed} {n}")) for n in range(workers)]
        told = {n: job.result() for n, job in enumerate(jobs)}
    summary = finish_recording(session)
    assert summary.told == []
    engine = Engine(folder / f"t{suffix}")
    assert_clean(engine)
    check(slices(engine), told)
    return summary


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_killed_at_a_random_moment(tmp_path: Path, suffix: str) -> None:
    left, group = KILLS // len(SUFFIXES), 0
    while left > 0:
        workers = min(left, GROUP)
        folder = tmp_path / str(group)
        folder.mkdir()
        summary = record(folder, suffix, workers, killed, f"{suffix} {group}")
        assert summary.cut_short == workers
        assert summary.dropped == 0
        left -= workers
        group += 1


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("name", ENDS)
def test_ended_past_every_exit_handler(tmp_path: Path, name: str, suffix: str) -> None:
    end, code = ENDS[name]
    summary = record(tmp_path, suffix, 5, lambda *given: ended(*given, end, code), name)
    assert summary.cut_short == 5


AT_ONCE_OVER = """
import os, sys, threading
import gputrace
def work():
    sys.setswitchinterval(1000)  # no thread of ours comes to see this one
    with gputrace.span("worker"):
        pass
    os._exit(0)
with gputrace.span("parent"):
    pass
for thread in (False, True):
    pid = os.fork()
    if not pid:
        if not thread:
            work()
        threading.Thread(target=work, name="a worker").start()
        threading.Event().wait()
    os.waitpid(pid, 0)
"""


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_thread_that_nobody_came_to_see_has_its_name(tmp_path: Path, suffix: str) -> None:
    (tmp_path / "my.py").write_text(AT_ONCE_OVER)
    trace = tmp_path / f"t{suffix}"
    done = run(recording(sys.executable, "my.py", output=trace), tmp_path, env=environment("compiled"))
    assert done.returncode == 0, done.stderr
    found = sorted((each.name, each.track[-1].rpartition(" ")[0]) for each in slices(Engine(trace)))
    assert found == [("parent", "MainThread"), ("worker", "MainThread"), ("worker", "a worker")]
