"""A process that forks while it is traced: the parent's trace stays whole, the child is harmed in nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gputrace import hot
from tests.engine import Engine, Slice, assert_clean, slices
from tests.hot.twin import TWINS, run_in

ROOT = Path(__file__).parents[1]

START = """
import gc, multiprocessing, os, sys, threading, time, warnings
import gputrace
from gputrace import hot, tracer
from gputrace.devices.simulated import default_gpu

def wait(pid, seconds=20):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.0005)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    return "hangs"
"""


def run(program: str, output: Path, *options: str, twin: str = hot.TWIN) -> str:
    """Run a program to its end; what it printed."""
    done = run_in(twin, START + program, output, options=options)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def load(output: Path) -> list[Slice]:
    engine = Engine(output)
    assert_clean(engine)
    return slices(engine)


def test_a_loop_of_forks_while_the_collector_works(tmp_path: Path) -> None:
    output = tmp_path / "t.pftrace"
    program = """
stream = default_gpu().stream()
with gputrace.trace(sys.argv[1], device="simulated") as trace:
    for n in range(60):
        for _ in range(200):
            with gputrace.span("x", stream):
                pass
        with gputrace.span(f"fork {n}", stream):
            pid = os.fork()
            if not pid:
                with gputrace.span("child", stream):
                    stream.launch(10)
                os._exit(7)
        assert wait(pid) == 7, n
print(trace.summary.slices, trace.summary.windows, trace.summary.unfinished, trace.summary.told)
"""
    assert run(program, output) == f"{2 * 60 * 201} {60 * 201} 0 []\n"
    drawn = load(output)
    assert len(drawn) == 2 * 60 * 201
    assert "child" not in {s.name for s in drawn}
    assert all(s.dur >= 0 for s in drawn)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="the warning came with 3.12")
def test_no_warning_of_threads_because_of_us(tmp_path: Path) -> None:
    """The collector is gone from the operating system too when the process forks, and back with the next span."""
    program = """
with gputrace.trace(sys.argv[1], device="host") as trace:
    for n in range(30):
        with gputrace.span("x"):
            pass
        pid = os.fork()
        if not pid:
            os._exit(0)
        assert wait(pid) == 0
        with gputrace.span("y"):
            pass
        deadline = time.monotonic() + 10
        while not hot.idle() and time.monotonic() < deadline:
            time.sleep(0.001)
        assert hot.idle(), "the collector did not come back"
print(trace.summary.slices)
"""
    assert run(program, tmp_path / "t.pftrace", "-W", "error::DeprecationWarning") == "60\n"


def test_the_collector_comes_back_with_the_next_span(tmp_path: Path) -> None:
    program = """
stream = default_gpu().stream()
with gputrace.trace(sys.argv[1], device="simulated") as trace:
    for make in (lambda: gputrace.span("host"), lambda: gputrace.span("gpu", stream)):
        with make():
            pass
        pid = os.fork()
        if not pid:
            os._exit(0)
        wait(pid)
        with make():
            pass
        deadline = time.monotonic() + 10
        while not hot.idle() and time.monotonic() < deadline:
            time.sleep(0.001)
        assert hot.idle()
print("well")
"""
    assert run(program, tmp_path / "t.pftrace") == "well\n"


@pytest.mark.parametrize("end", ["return", "os._exit(0)", "sys.exit()", "raise SystemExit(0)"])
def test_a_child_that_leaves_the_block(tmp_path: Path, end: str) -> None:
    """However a child ends, it neither fails nor touches its parent's recording."""
    output = tmp_path / "t.pftrace"
    program = f"""
def main():
    with gputrace.trace(sys.argv[1], device="simulated") as trace:
        with gputrace.span("around"):
            pid = os.fork()
            if not pid:
                with gputrace.span("child"):
                    pass
                {end}
            assert wait(pid) == 0
        with gputrace.span("after"):
            pass
    print(trace.summary.slices)

main()
"""
    assert run(program, output) == "2\n"
    assert [s.name for s in load(output)] == ["around", "after"]
    assert os.listdir(tmp_path) == ["t.pftrace"]


def test_a_child_records_for_itself(tmp_path: Path) -> None:
    program = """
with gputrace.trace(sys.argv[1] + ".parent.pftrace", device="simulated"):
    with gputrace.span("parent"):
        pass
    pid = os.fork()
    if not pid:
        stream = default_gpu().stream()
        with gputrace.trace(sys.argv[1] + ".child.pftrace", device="simulated"):
            with gputrace.span("child", stream):
                pass
        os._exit(0)
    assert wait(pid) == 0
"""
    run(program, tmp_path / "t")
    assert [s.name for s in load(tmp_path / "t.parent.pftrace")] == ["parent"]
    assert {s.name for s in load(tmp_path / "t.child.pftrace")} == {"child"}


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_multiprocessing(tmp_path: Path, method: str) -> None:
    script = tmp_path / "program.py"
    script.write_text(
        START
        + """
def square(n):
    with gputrace.span("square", n=n):
        return n * n

if __name__ == "__main__":
    warnings.simplefilter("ignore")
    with gputrace.trace(sys.argv[1], device="simulated") as trace:
        with gputrace.span("around"), multiprocessing.get_context(sys.argv[2]).Pool(2) as pool:
            assert pool.map(square, range(20)) == [n * n for n in range(20)]
        with gputrace.span("after"):
            pass
    print(trace.summary.slices)
"""
    )
    output = tmp_path / "t.pftrace"
    done = subprocess.run(
        [sys.executable, str(script), str(output), method],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "2\n", "")
    assert [s.name for s in load(output)] == ["around", "after"]


def test_a_thread_that_forks(tmp_path: Path) -> None:
    program = """
warnings.simplefilter("ignore")
codes = []

def work():
    with gputrace.span("thread"):
        pid = os.fork()
        if not pid:
            with gputrace.span("child"):
                pass
            os._exit(5)
        codes.append(wait(pid))

with gputrace.trace(sys.argv[1], device="host") as trace:
    with gputrace.span("main"):
        for _ in range(5):
            t = threading.Thread(target=work)
            t.start()
            t.join()
print(codes, trace.summary.slices)
"""
    assert run(program, tmp_path / "t.pftrace") == "[5, 5, 5, 5, 5] 6\n"


@pytest.mark.parametrize("twin", TWINS)
def test_what_is_raised_inside_a_fork_s_own_hooks(tmp_path: Path, twin: str) -> None:
    """By a signal's handler. Nothing is let go of that is not held, there or in a handler's own fork."""
    output = tmp_path / "t.pftrace"
    program = """
from gputrace.collector import Collector

warnings.simplefilter("ignore")  # such a fork may leave our thread running, and Python says so

class Interrupt(BaseException):
    pass

class Once:
    armed = None
    def __call__(self, collector, timeout_s):
        armed, Once.armed = Once.armed, None
        if armed == "fork":
            fork()
        if armed == "raise":
            raise Interrupt
        return stop(collector, timeout_s)

def fork():
    pid = os.fork()
    if not pid:
        os._exit(7)
    assert wait(pid) == 7

ignored = []
sys.unraisablehook = lambda said: ignored.append(said.exc_type)
stop = Collector.stop
once = Once()
Collector.stop = lambda *arguments: once(*arguments)
with gputrace.trace(sys.argv[1], device="host") as trace:
    for armed in (None, "raise", "fork", None):
        with gputrace.span("x"):
            Once.armed = armed
            fork()
print(trace.summary.slices, trace.summary.told, [each.__name__ for each in ignored])
"""
    assert run(program, output, twin=twin) == "4 [] ['Interrupt']\n"
    assert len(load(output)) == 4
