"""Programs and their tests replace what a tracer needs: clocks, sleep, open, argv, privileges. The trace stands."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import gputrace
from gputrace import hot
from tests.engine import Engine, assert_clean, slices
from tests.hot.twin import TWINS, environment
from tests.recorded import recording

ROOT = Path(__file__).parents[1]


def freezing() -> list[Any]:
    """What tools that freeze time do: replace the functions of `time` in every module that holds them."""
    real = {id(getattr(time, name)) for name in ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter_ns")}
    return [
        mock.patch.object(module, name, return_value=1577836800000000000)
        for module in list(sys.modules.values())
        if getattr(module, "__name__", "").startswith(("time", "gputrace"))
        for name in dir(module)
        if id(getattr(module, name, None)) in real
    ]


def test_time_stands_still(tmp_path: Path) -> None:
    with recording(tmp_path) as run:
        before = time.monotonic_ns()
        patches = freezing()
        for each in patches:
            each.start()
        with gputrace.span("frozen", stream=run.stream()):
            pass
        for each in patches:
            each.stop()
        with gputrace.span("after"):
            pass
        after = time.monotonic_ns()
    for name in ("frozen", "after"):
        for each in run.named(name):
            assert before <= each.ts <= each.ts + each.dur <= after + 10_000_000
    assert len(run.device) == 1


def test_sleep_and_open_are_mocks(tmp_path: Path) -> None:
    with (
        recording(tmp_path, "host") as run,
        mock.patch("time.sleep", side_effect=AssertionError) as sleep,
        mock.patch("builtins.open", mock.mock_open()) as opened,
    ):
        for _ in range(3000):
            with gputrace.span("x"):
                pass
        deadline = time.monotonic() + 20
        while not hot.idle():
            assert time.monotonic() < deadline
    assert sleep.call_count == opened.call_count == 0
    assert len(run.named("x")) == 3000


def record(output: Path, program: str, *arguments: str, twin: str = hot.TWIN) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gputrace.cli.main", "record", "--device", "host", "-o", str(output), "--"]
    command += [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment(twin), timeout=60)


@pytest.mark.parametrize("argv", ["[3]", "[b'prog', 3]", "[]", "[None]"])
def test_any_argv(tmp_path: Path, argv: str) -> None:
    output = tmp_path / "t.pftrace"
    done = record(output, f"import sys, gputrace\nsys.argv = {argv}\nwith gputrace.span('x'): pass")
    assert done.returncode == 0
    assert [each.name for each in slices(Engine(output))] == ["x"]


PRIVILEGES = """
import os, sys, time
import gputrace
from gputrace import tracer

path = tracer.current().folder.shard_path(tracer.current().number)
with gputrace.span("as root"):
    deadline = time.monotonic() + 20
    while not os.stat(path).st_size:
        assert time.monotonic() < deadline
        time.sleep(0.01)
os.setgid(65534)
os.setuid(65534)
for _ in range(5):
    with gputrace.span("as nobody"):
        time.sleep(0.1)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has privileges to give up")
def test_privileges_given_up(tmp_path: Path) -> None:
    output = tmp_path / "t.pftrace"
    done = record(output, PRIVILEGES)
    assert done.returncode == 0, done.stderr
    engine = Engine(output)
    assert_clean(engine)
    names = [each.name for each in slices(engine)]
    assert names == ["as root"] + ["as nobody"] * 5
    assert "PermissionError" not in done.stderr


#: What takes a process the means to open a file of ours, before its first span.
TAKEN = {
    "root": "os.chroot(sys.argv[1]); os.chdir('/')",
    "privileges": "os.setgid(65534); os.setuid(65534)",
    "descriptors": """
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
while True:
    try:
        os.open("/dev/null", os.O_RDONLY)
    except OSError:
        break
""",
}


@pytest.mark.parametrize("suffix", [".pftrace", ".json"])
@pytest.mark.parametrize("twin", TWINS)
@pytest.mark.parametrize("what", TAKEN)
def test_nothing_is_left_to_open_a_file_with(tmp_path: Path, what: str, twin: str, suffix: str) -> None:
    if what != "descriptors" and os.geteuid() != 0:
        pytest.skip("only root has privileges to give up")
    program = f"""
import os, resource, sys
import gputrace
{TAKEN[what]}
for _ in range(100):
    with gputrace.span("x"):
        pass
"""
    output = tmp_path / f"t{suffix}"
    done = record(output, program, str(tmp_path), twin=twin)
    assert done.returncode == 0, done.stderr
    assert [each.name for each in slices(Engine(output))] == ["x"] * 100


@pytest.mark.parametrize("twin", TWINS)
def test_killed_with_every_descriptor_in_use(tmp_path: Path, twin: str) -> None:
    program = f"""
import os, resource, signal, sys
import gputrace
{TAKEN["descriptors"]}
sys.setswitchinterval(1000)
for _ in range(2):
    with gputrace.span("x"):
        pass
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = record(tmp_path / "t.pftrace", program, twin=twin)
    assert done.returncode == -signal.SIGKILL
    # Of what a thread of ours came to write meanwhile, the last line says that more may be missing.
    assert re.search("one Python process ended before anything was written|1 process ended without", done.stderr)
    assert "opened no span" not in done.stderr


def test_an_emptied_environment(tmp_path: Path) -> None:
    output, inner = tmp_path / "t.pftrace", tmp_path / "inner.pftrace"
    program = f"""
import os, gputrace
os.environ.clear()
with gputrace.trace({str(inner)!r}, device="host"), gputrace.span("x"):
    pass
"""
    done = record(output, program)
    assert done.returncode == 0, done.stderr
    assert [each.name for each in slices(Engine(output))] == ["x"]
    assert not inner.exists()


def test_modules_of_the_program_s_own_with_names_of_the_library_s(tmp_path: Path) -> None:
    """A script's folder comes first where modules are looked for: nothing of ours may find its files there."""
    for name in ("struct", "fcntl", "functools", "weakref", "contextlib", "enum", "math", "errno"):
        (tmp_path / f"{name}.py").write_text(f"print('imported the program's own {name}')")
    script = tmp_path / "main.py"
    script.write_text("import gputrace\nwith gputrace.span('x'): pass\n")
    for suffix in (".pftrace", ".json"):
        output = tmp_path / f"t{suffix}"
        command = [sys.executable, "-m", "gputrace.cli.main", "record", "--device", "host", "-o", str(output), "--"]
        command += [sys.executable, str(script)]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=60)
        assert done.stdout == "", done.stderr
        assert [each.name for each in slices(Engine(output))] == ["x"]


def test_every_descriptor_in_use_for_a_while(tmp_path: Path) -> None:
    program = """
import os, resource, time
import gputrace
from gputrace import tracer
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
path = tracer.current().folder.shard_path(tracer.current().number)
os.closerange(3, 1000)  # ours too
taken = []
while True:
    try:
        taken.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        break
for _ in range(6):
    with gputrace.span("none left"):
        time.sleep(0.05)
for each in taken:
    os.close(each)
with gputrace.span("after"):
    pass
"""
    output = tmp_path / "t.pftrace"
    done = record(output, program)
    assert done.returncode == 0, done.stderr
    assert [each.name for each in slices(Engine(output))] == ["none left"] * 6 + ["after"]
    assert "stopped" not in done.stderr
