"""Writing fails, in every way it can: tracing stops, says so once, and the program goes on."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

import pytest

import gputrace
from gputrace import hot
from gputrace.model import Exporter, Process, Recording, Track
from tests.engine import Engine, assert_clean, slices
from tests.hot.twin import records
from tests.recorded import recording

ROOT = Path(__file__).parents[1]


class Fails(Exporter):
    """Writes lines until it is told to fail: the place is the class's name."""

    def __init__(self, file: IO[bytes], recording: Recording, process: Process) -> None:
        self.file = file
        self.fail("__init__")

    def fail(self, where: str) -> None:
        if where in type(self).__name__:
            raise ZeroDivisionError(f"cannot {where}")

    @classmethod
    def whole(cls, shard: IO[bytes]) -> int:
        return 0

    def open_track(self, track: Track) -> None:
        self.fail("open_track")

    def close_track(self, track: Track) -> None:
        self.fail("close_track")

    def write(self, track: Track, edges: Iterable[Any]) -> None:
        self.fail("write")

    def metadata(self, values: Any) -> None:
        self.fail("metadata")

    def flush(self) -> None:
        self.fail("flush")

    def close(self) -> None:
        self.fail("close")


WHERE = ("__init__", "open_track", "write", "metadata", "flush", "close", "close_track")
for _where in WHERE:
    globals()[f"Fails_{_where}"] = type(f"Fails_{_where}", (Fails,), {})


@pytest.mark.parametrize("where", WHERE)
def test_an_exporter_that_raises(tmp_path: Path, where: str, capfd: pytest.CaptureFixture[str]) -> None:
    import threading

    def work() -> None:
        with gputrace.span("in a thread"):
            pass

    exporter = f"{__name__}:Fails_{where}"
    with recording(tmp_path, suffix=".fails", exporter=exporter, leaked_events=None) as run:
        stream = run.stream()
        with gputrace.span("first", stream):
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
        while not hot.idle() and records():
            pass  # until the collector took all, or gave up
        for n in range(50):
            with gputrace.span("after", stream, n=n):
                gputrace.counter("c", n)
    told = run.report["told"]
    assert told == [f"tracing of process {os.getpid()} stopped: ZeroDivisionError: cannot {where}"]
    assert run.report["stopped"] == 1
    assert capfd.readouterr().err == ""
    with recording(tmp_path) as again, gputrace.span("a new recording works"):
        pass
    assert [s.name for s in again.slices] == ["a new recording works"]


def test_a_folder_that_is_removed_meanwhile(tmp_path: Path) -> None:
    """The program does not notice; what was told has nowhere to go but stderr."""
    program = """
import shutil, sys, time, os
import gputrace
trace = gputrace.trace(sys.argv[1], device="host")
trace.start()
with gputrace.span("x"):
    place = os.path.dirname(sys.argv[1])
    for name in os.listdir(place):
        os.rename(os.path.join(place, name), os.path.join(place, "away"))
    shutil.rmtree(os.path.join(place, "away"))
for _ in range(1000):
    with gputrace.span("y"):
        pass
try:
    trace.stop()
except gputrace.errors.OutputError as error:
    print("told:", error)
print("goes on")
"""
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            program.replace("import gputrace\n", "import gputrace, gputrace.errors\n"),
            str(tmp_path / "t.pftrace"),
        ],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("goes on\n")
    assert "Traceback" not in done.stderr


FULL = """
import resource, sys, time
import gputrace
from gputrace import hot
from tests.hot.twin import records

with gputrace.trace(sys.argv[1], device="host") as trace:
    for n in range(1000):
        with gputrace.span(f"early {n}"):
            pass
    deadline = time.monotonic() + 20
    while not hot.idle() and time.monotonic() < deadline:
        time.sleep(0.001)
    time_to_write = time.monotonic() + 0.2
    while time.monotonic() < time_to_write:
        with gputrace.span("more"):
            time.sleep(0.005)
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
    for n in range(20000):
        with gputrace.span(f"late {n}"):
            pass
    deadline = time.monotonic() + 20
    while records() and time.monotonic() < deadline:
        with gputrace.span("until it is noticed"):
            time.sleep(0.001)
    with gputrace.span("off by now"):
        pass
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print(trace.summary.told)
"""


@pytest.mark.parametrize("suffix", ["pftrace", "json"])
def test_a_disk_that_fills_up(tmp_path: Path, suffix: str) -> None:
    """Nothing already written is lost, and the trace still loads."""
    output = tmp_path / f"t.{suffix}"
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(output), "200000"], capture_output=True, text=True, cwd=ROOT, timeout=90
    )
    assert done.returncode == 0, done.stderr
    assert f"OSError: [Errno {errno.EFBIG}]" in done.stdout
    assert done.stdout.count("stopped") == 1
    engine = Engine(output)
    assert_clean(engine)
    names = [s.name for s in slices(engine)]
    assert [name for name in names if name and name.startswith("early")] == [f"early {n}" for n in range(1000)]
    assert "off by now" not in names


def test_the_trace_cannot_be_put_in_place(tmp_path: Path) -> None:
    """The disk is full for the joined trace alone: the shards stay, and the error says how to go on."""
    program = """
import resource, sys
import gputrace
from gputrace.errors import OutputError
trace = gputrace.trace(sys.argv[1], device="host").start()
for n in range(5000):
    with gputrace.span(f"name {n}"):
        pass
from gputrace import tracer
from gputrace.record import recording
plain = recording.join
def join(*args, **kwargs):
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
    try:
        return plain(*args, **kwargs)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
recording.join = join
try:
    trace.stop()
except OutputError as error:
    print(error)
"""
    output = tmp_path / "t.pftrace"
    done = subprocess.run(
        [sys.executable, "-c", program, str(output)], capture_output=True, text=True, cwd=ROOT, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "gputrace merge " in done.stdout
    assert not output.exists()
    folder = done.stdout.split("gputrace merge ")[1].split(" -o ")[0]
    from gputrace.record.recording import recover

    assert recover(folder, str(output)).slices == 5000
    assert len(slices(Engine(output))) == 5000
