"""Processes that recorded something and left nothing of it: how many is told, by `record` and in the trace."""

from __future__ import annotations

from pathlib import Path

import pytest

import gputrace
from tests.hot.twin import TWINS, environment
from tests.processes.test_starts import load
from tests.record.running import PYTHON, WRITTEN, recording, run
from tests.ways.program import SUFFIXES

#: A child of each of two kinds. No thread of ours comes to write what it records: nobody takes the GIL from it.
PROGRAM = """
import gputrace, os, signal, sys
way = sys.argv[1]
def child(records):
    pid = os.fork()
    if not pid:
        sys.setswitchinterval(1000)
        if records:
            with gputrace.span("child"):
                pass
        if way == "os._exit":
            os._exit(0)
        elif way == "exec":
            os.execv("/bin/true", ["true"])
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
with gputrace.span("parent"):
    pass
for records in (True, False, True):
    child(records)
"""
ABRUPTLY = "ended without cleaning up (killed, os._exit or exec)"
ABRUPT = ABRUPTLY.replace(")", "; a multiprocessing.Pool ends its workers so)")
SILENT = f"2 processes {ABRUPTLY} within moments of their first span: none of their slices is there"


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("way", ["os._exit", "exec", "SIGKILL"])
@pytest.mark.parametrize("twin", TWINS)
def test_of_a_child_that_is_over_at_once(tmp_path: Path, twin: str, way: str, suffix: str) -> None:
    (tmp_path / "my.py").write_text(PROGRAM)
    trace = tmp_path / f"t{suffix}"
    command = recording(PYTHON, "my.py", way, output=trace)
    done = run(command, tmp_path, env=environment(twin))
    (line,) = done.stderr.decode().splitlines()
    found = [each.name for each in load(trace)]
    silent = gputrace.read(trace).metadata["silent"]
    checked = run([PYTHON, "-m", "gputrace", "check", trace], tmp_path, env=environment(twin))
    if twin == "pure":
        assert found == ["parent"]
        assert SILENT in line
        assert "at least 1 slice," in line
        assert "dropped" not in line
        assert silent == 2
        assert b"processes that left nothing of what they recorded: 2" in checked.stdout
    else:
        assert found == ["parent", "child", "child"]
        assert f"2 processes {ABRUPT}: all their recorded host slices are there" in line
        assert "wrote" in line
        assert " 3 slices, 0 GPU windows, 0 dropped;" in line
        assert silent == 0
        assert checked.returncode == 0


@pytest.mark.parametrize("twin", TWINS)
def test_of_one_that_has_the_last_seconds_kept(tmp_path: Path, twin: str) -> None:
    (tmp_path / "my.py").write_text(PROGRAM)
    command = recording(PYTHON, "my.py", "os._exit", twin)
    command[4:4] = ["--last", "10s"]
    done = run(command, tmp_path, env=environment(twin))
    assert SILENT in done.stderr.decode()


@pytest.mark.parametrize("twin", TWINS)
def test_of_the_only_one(tmp_path: Path, twin: str) -> None:
    program = "import sys; sys.setswitchinterval(1000); import gputrace, os\nwith gputrace.span('x'): pass\nos._exit(3)"
    done = run(recording(PYTHON, "-c", program), tmp_path, env=environment(twin))
    assert done.returncode == 3
    (line,) = done.stderr.decode().splitlines()
    if twin == "pure":
        assert "nothing was traced: one Python process ended before anything was written" in line
    else:
        assert "1 slice," in line


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("twin", TWINS)
def test_of_one_that_stopped_midway_the_trace_says_so(tmp_path: Path, twin: str, suffix: str) -> None:
    """Its shard's file can grow no more: what the process records from then on is nowhere."""
    program = f"""
import gputrace, resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
with gputrace.span("first"):
    pass
{WRITTEN}
resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
with gputrace.span("second"):
    pass
"""
    trace = tmp_path / f"t{suffix}"
    done = run(recording(PYTHON, "-c", program, output=trace), tmp_path, env=environment(twin))
    assert done.returncode == 0
    told, line = done.stderr.decode().splitlines()[-2:]
    assert "File too large" in told
    assert "at least " in line
    assert ", 0 dropped" not in line
    checked = run([PYTHON, "-m", "gputrace", "check", trace], tmp_path, env=environment(twin))
    assert checked.returncode == 1
    assert b"processes that stopped tracing midway: 1" in checked.stdout


@pytest.mark.parametrize("twin", TWINS)
def test_to_say_so_meets_no_limit_of_file_sizes(tmp_path: Path, twin: str) -> None:
    """To exceed one raises SIGXFSZ, which ends a program that does not ignore it as Python does."""
    program = """
import resource, signal, sys
import gputrace
sys.setswitchinterval(1000)
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
before = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
with gputrace.span("x"):
    pass
resource.setrlimit(resource.RLIMIT_FSIZE, before)
"""
    done = run(recording(PYTHON, "-c", program), tmp_path, env=environment(twin))
    assert done.returncode == 0, done.stderr
