"""`--last`: of real programs, whatever ends them or asks for their last seconds meanwhile."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import gputrace
from gputrace import tracer
from gputrace.regions import RECORDED
from tests.engine import Engine, Slice, assert_clean, counters, slices
from tests.hot.twin import TWINS, environment
from tests.record.running import GPUTRACE, PYTHON, left_behind, wait_for
from tests.recorded import EXPORTERS

pytestmark = pytest.mark.slow
#: Each format and each twin, not each with each: what is kept knows no format.
everywhere = pytest.mark.parametrize(("suffix", "twin"), [*zip(EXPORTERS, [TWINS[-1], TWINS[0]], strict=True)])
KEEP_S = 1.0
#: `spin(seconds)` records a step a millisecond; `wait_until(done)` meanwhile.
START = """
import os, signal, sys, threading, time
import gputrace
from gputrace.devices.simulated import default_gpu
stream = default_gpu().stream("main")
numbers = {}
def wait_until(done, name="step"):
    while not done():
        n = numbers[name] = numbers.get(name, 0) + 1
        with gputrace.span(name, stream=stream, n=n):
            stream.launch(100_000)
            time.sleep(0.001)
def spin(seconds, name="step"):
    end = time.monotonic() + seconds
    wait_until(lambda: time.monotonic() > end, name)
def ready():
    with open("ready", "w") as file:
        file.write(str(os.getpid()))
def there(name):
    return lambda: os.path.exists(name)
"""


@contextmanager
def running(
    folder: Path,
    program: str,
    suffix: str = ".pftrace",
    twin: str = TWINS[-1],
    *words: str,
    python: tuple[str, ...] = (),
) -> Iterator[subprocess.Popen[bytes]]:
    """A recording of a program that goes on."""
    options = ["--last", f"{KEEP_S}s", "--device", "simulated", "-o", f"trace{suffix}", *words]
    command = [*GPUTRACE, "record", *options, "--", PYTHON, *python, "-c", START + program]
    variables = environment(twin)
    with subprocess.Popen(
        command, cwd=folder, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def finished(process: subprocess.Popen[bytes]) -> tuple[str, str]:
    out, err = process.communicate(timeout=60)
    return out.decode(), err.decode()


def until(done: Callable[[], object]) -> None:
    end_s = time.monotonic() + 30
    while not done():
        assert time.monotonic() < end_s
        time.sleep(0.01)


def drawn(path: Path) -> list[Slice]:
    engine = Engine(path)
    assert_clean(engine)
    return slices(engine)


def host(found: list[Slice], name: str) -> list[Slice]:
    return [s for s in found if s.name == name and not any(part.startswith("GPU") for part in s.track)]


def assert_last(found: list[Slice], name: str = "step") -> None:
    """Steps of both kinds are there, for as long as was asked for, without a gap."""
    steps = host(found, name)
    lasted_s = (steps[-1].ts - steps[0].ts) / 1e9
    assert KEEP_S - 0.5 < lasted_s < KEEP_S + 1, lasted_s
    numbers = [s.args["n"] for s in steps]
    assert numbers == [*range(numbers[0], numbers[-1] + 1)]
    assert numbers[0] > 1
    # Windows are drawn once the clock map has come to them, which another anchor brings: a quarter of a second later.
    windows = [s for s in found if s.name == name and s not in steps]
    assert len(windows) > len(steps) / 3
    assert sum(1 for s in steps if s.flows_to) >= len(windows) - 5


@everywhere
def test_at_the_end_the_last_seconds_are_there(tmp_path: Path, suffix: str, twin: str) -> None:
    program = "with gputrace.span('main'):\n    gputrace.instant('early'); spin(1.3); gputrace.instant('late')"
    with running(tmp_path, program, suffix, twin) as process:
        _, err = finished(process)
    found = drawn(tmp_path / f"trace{suffix}")
    assert_last(found)
    (main,) = host(found, "main")  # from its beginning
    assert main.dur > 1.2e9
    assert [s.name for s in found if s.dur == 0] == ["late"]
    (recorded,) = [v for path, v in counters(Engine(tmp_path / f"trace{suffix}")).items() if RECORDED in path[-1]]
    assert [value for _, value in recorded] == [0, 1]
    assert recorded[0][0] == main.ts
    assert f"{len([s for s in found if s.dur]):,} slices" in err
    assert left_behind(tmp_path) == []


@everywhere
def test_a_killed_process_leaves_its_last_seconds(tmp_path: Path, suffix: str, twin: str) -> None:
    program = "with gputrace.span('main'):\n    spin(1.3); os.kill(os.getpid(), signal.SIGKILL)"
    with running(tmp_path, program, suffix, twin) as process:
        _, err = finished(process)
    assert process.returncode == -signal.SIGKILL
    found = drawn(tmp_path / f"trace{suffix}")
    assert_last(found)
    assert [s.dur for s in host(found, "main")] == [-1]
    assert "slices of its last moments may be missing" in err


@everywhere
def test_a_signal_has_them_written_and_the_program_goes_on(tmp_path: Path, suffix: str, twin: str) -> None:
    program = "spin(1.3); ready(); wait_until(there('go')); spin(1.3, 'later'); print('done')"
    with running(tmp_path, program, suffix, twin) as process:
        pid = int(wait_for(tmp_path / "ready"))
        for number in (1, 2):
            os.kill(pid, signal.SIGUSR2)
            until((tmp_path / f"trace.{number}{suffix}").exists)
        (tmp_path / "go").touch()
        out, err = finished(process)
    assert (process.returncode, out) == (0, "done\n")
    for number in (1, 2):
        found = drawn(tmp_path / f"trace.{number}{suffix}")
        assert_last(found)
        assert not host(found, "later")
    assert_last(drawn(tmp_path / f"trace{suffix}"), "later")
    assert re.findall(r"wrote (\S+): ", err) == [f"trace.1{suffix}", f"trace.2{suffix}", f"trace{suffix}"]


def test_with_threads_and_a_main_thread_that_waits(tmp_path: Path) -> None:
    program = """
threads = [threading.Thread(target=wait_until, args=(there("go"), f"thread {n}")) for n in range(3)]
for thread in threads: thread.start()
time.sleep(1.3); ready()
for thread in threads: thread.join()
"""
    with running(tmp_path, program) as process:
        os.kill(int(wait_for(tmp_path / "ready")), signal.SIGUSR2)
        until((tmp_path / "trace.1.pftrace").exists)
        (tmp_path / "go").touch()
        finished(process)
    assert process.returncode == 0
    found = drawn(tmp_path / "trace.1.pftrace")
    for n in range(3):
        assert_last(found, f"thread {n}")


@pytest.mark.parametrize("before", [True, False])
def test_the_programs_own_handler_stays_its_own(tmp_path: Path, before: bool) -> None:
    own = "import signal\nsignal.signal(signal.SIGUSR2, lambda *_: print('mine', flush=True))\n"
    program = "spin(0.1); ready(); wait_until(there('go'))"
    # Started with -I, a program is recorded from its own import of gputrace on.
    path = f"import sys\nsys.path[:0] = {[str(Path(gputrace.__file__).parents[1])]}\n"
    if before:
        words: tuple[str, ...] = ("-I",)
        program = f"exec({(path + own + START + program)!r})"
        command = [*GPUTRACE, "record", "--last", "1s", "--device", "simulated", "--", PYTHON, *words, "-c", program]
    else:
        command = [*GPUTRACE, "record", "--last", "1s", "--device", "simulated", "--", PYTHON, "-c"]
        command.append(START + own + program)
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        pid = int(wait_for(tmp_path / "ready"))
        os.kill(pid, signal.SIGUSR2)
        assert process.stdout is not None
        assert process.stdout.readline() == b"mine\n"
        (tmp_path / "go").touch()
        finished(process)
    assert process.returncode == 0
    assert host(drawn(tmp_path / "trace.pftrace"), "step")
    assert not (tmp_path / "trace.1.pftrace").exists()


def test_without_it_the_signal_is_the_systems(tmp_path: Path) -> None:
    program = START + "print(repr(signal.getsignal(signal.SIGUSR2)), threading.excepthook is threading.__excepthook__)"
    done = subprocess.run([*GPUTRACE, "record", "--", PYTHON, "-c", program], cwd=tmp_path, capture_output=True)
    assert done.stdout.decode().split()[-1] == "True"
    assert b"SIG_DFL" in done.stdout


def test_the_launcher_answers_for_a_program_that_cannot(tmp_path: Path) -> None:
    program = """
import ctypes
spin(0.5)
with gputrace.span("stuck"):
    spin(0.3); ready(); ctypes.PyDLL(None).usleep(3_000_000)
print("done")
"""
    with running(tmp_path, program) as process:
        wait_for(tmp_path / "ready")
        process.send_signal(signal.SIGUSR2)
        until((tmp_path / "trace.1.pftrace").exists)
        assert process.poll() is None
        out, _ = finished(process)
    assert (process.returncode, out) == (0, "done\n")
    (stuck,) = host(drawn(tmp_path / "trace.1.pftrace"), "stuck")
    assert stuck.dur == -1


@everywhere
def test_all_processes_are_in_it(tmp_path: Path, suffix: str, twin: str) -> None:
    program = """
child = os.fork()
if not child:
    wait_until(there("go"), "child"); os._exit(0)
import subprocess
other = subprocess.Popen([sys.executable, "-c", open("other").read()])
spin(1.3)
while not os.path.exists("other is ready"): spin(0.01)
print(gputrace.dump(), flush=True)
wait_until(there("go"))
os.waitpid(child, 0); other.wait()
"""
    (tmp_path / "other").write_text(
        START + "spin(0.2, 'other'); open('other is ready', 'w'); wait_until(there('go'), 'other')"
    )
    with running(tmp_path, program, suffix + ".gz", twin) as process:
        assert process.stdout is not None
        path = Path(process.stdout.readline().decode().strip())
        assert path == tmp_path / f"trace.1{suffix}.gz"
        until(path.exists)
        (tmp_path / "go").touch()
        finished(process)
    found = drawn(path)
    assert_last(found)
    assert len({s.track[0] for name in ("step", "child", "other") for s in host(found, name)}) == 3


def test_an_early_child_is_not_in_it(tmp_path: Path) -> None:
    program = """
child = os.fork()
if not child:
    with gputrace.span("early"): spin(0.2); os.kill(os.getpid(), signal.SIGKILL)
os.waitpid(child, 0)
spin(1.3)
"""
    with running(tmp_path, program) as process:
        finished(process)
    found = drawn(tmp_path / "trace.pftrace")
    assert not host(found, "early")
    assert_last(found)


@pytest.mark.parametrize("main", [True, False])
def test_an_exception_that_ends_a_thread_has_them_written(tmp_path: Path, main: bool) -> None:
    program = """
def fails():
    with gputrace.span("failing"): spin(0.2)
    raise LookupError("no such thing")
def goes_on():
    wait_until(there("go"), "other")
threads = [threading.Thread(target=each) for each in (%s)]
for thread in threads: thread.start()
%s
""" % (("goes_on,", "fails()") if main else ("fails, goes_on", ""))
    with running(tmp_path, program) as process:
        until((tmp_path / "trace.1.pftrace").exists)
        (tmp_path / "go").touch()
        _, err = finished(process)
    assert host(drawn(tmp_path / "trace.1.pftrace"), "failing")
    assert err.count("LookupError: no such thing") == 1
    assert process.returncode == (1 if main else 0)


def test_a_thread_that_exits_is_no_exception(tmp_path: Path) -> None:
    program = "thread = threading.Thread(target=sys.exit); spin(0.1); thread.start(); thread.join(); spin(0.5)"
    with running(tmp_path, program) as process:
        finished(process)
    assert process.returncode == 0
    assert host(drawn(tmp_path / "trace.pftrace"), "step")
    assert not (tmp_path / "trace.1.pftrace").exists()


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_child_answers_too(tmp_path: Path, method: str) -> None:
    program = (
        START
        + f"""
import multiprocessing
def child():
    spin(0.2); ready(); wait_until(there("go"), "child")
    print(repr(signal.getsignal(signal.SIGUSR2)) != repr(signal.SIG_DFL))
if __name__ == "__main__":
    process = multiprocessing.get_context({method!r}).Process(target=child)
    process.start()
    wait_until(there("go"))
    process.join()
    print(process.exitcode)
"""
    )
    (tmp_path / "program.py").write_text(program)
    command = [*GPUTRACE, "record", "--last", "1s", "--device", "simulated", "--", PYTHON, "program.py"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE) as process:
        os.kill(int(wait_for(tmp_path / "ready")), signal.SIGUSR2)
        until((tmp_path / "trace.1.pftrace").exists)
        (tmp_path / "go").touch()
        out, _ = process.communicate(timeout=60)
    assert out == b"True\n0\n"
    found = drawn(tmp_path / "trace.1.pftrace")
    assert host(found, "child")
    assert host(found, "step")


def test_what_was_over_before_is_told(tmp_path: Path) -> None:
    words = ("--counters", "off")
    with running(tmp_path, "spin(0.1); time.sleep(2.5)", ".pftrace", TWINS[-1], *words) as process:
        _, err = finished(process)
    assert "what was recorded was over before the last seconds: a longer one (--last, last=) has it" in err
    assert not (tmp_path / "trace.pftrace").exists()
    assert left_behind(tmp_path) == []


def test_an_exception_that_ends_the_program_needs_one_file(tmp_path: Path) -> None:
    with running(tmp_path, "spin(0.2)\nraise SystemError('over')") as process:
        _, err = finished(process)
    assert process.returncode == 1
    assert "SystemError: over" in err
    assert host(drawn(tmp_path / "trace.pftrace"), "step")
    assert not (tmp_path / "trace.1.pftrace").exists()


def test_a_hook_of_the_program_is_called(tmp_path: Path) -> None:
    program = """
threading.excepthook = lambda args: print("mine", args.exc_type.__name__, flush=True)
def fails(): raise LookupError
thread = threading.Thread(target=fails); spin(0.1); thread.start(); thread.join()
"""
    with running(tmp_path, program) as process:
        out, _ = finished(process)
    assert out == "mine LookupError\n"


@everywhere
def test_from_inside(tmp_path: Path, suffix: str, twin: str) -> None:
    program = f"""
assert gputrace.dump() == ""
recording = gputrace.trace("trace{suffix}", device="simulated", last="{KEEP_S}s").start()
spin(1.3)
path = gputrace.dump()
assert os.path.samefile(path, "trace.1{suffix}"), path
os.kill(os.getpid(), signal.SIGUSR2)
wait_until(there("trace.2{suffix}"))
spin(1.3, "later")
print(recording.stop().path)
assert signal.getsignal(signal.SIGUSR2) == signal.SIG_DFL
assert threading.excepthook is threading.__excepthook__
assert gputrace.dump() == ""
"""
    done = subprocess.run(
        [PYTHON, "-c", START + program], cwd=tmp_path, env=environment(twin), capture_output=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, b"")
    for number in (1, 2):
        assert_last(drawn(tmp_path / f"trace.{number}{suffix}"))
    assert_last(drawn(tmp_path / f"trace{suffix}"), "later")
    assert left_behind(tmp_path) == []


def test_a_launcher_that_died_is_made_up_for(tmp_path: Path) -> None:
    with running(tmp_path, "spin(1.3); ready(); wait_until(there('go'))") as process:
        pid = int(wait_for(tmp_path / "ready"))
        process.kill()
        process.wait()
        os.kill(pid, signal.SIGKILL)
    (folder,) = left_behind(tmp_path)
    command = [*GPUTRACE, "merge", folder, "-o", "trace.pftrace"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert_last(drawn(tmp_path / "trace.pftrace"))


@pytest.mark.parametrize("last", ["0.5s", "soon"])
def test_what_is_no_time_to_keep(tmp_path: Path, last: str) -> None:
    done = subprocess.run(
        [*GPUTRACE, "record", "--last", last, "--", PYTHON, "-c", ""], cwd=tmp_path, capture_output=True
    )
    assert done.returncode == 2
    assert f"--last {last}" in done.stderr.decode().replace("'", "")


def test_nothing_is_asked_where_nothing_records() -> None:
    assert tracer.current() is None
    assert gputrace.dump() == ""
