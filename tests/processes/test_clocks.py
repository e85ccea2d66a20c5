"""Processes whose clocks are not the recording's (time namespaces, as containers may have): told, not misplaced."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.hot.twin import TWINS, environment
from tests.processes.test_starts import load
from tests.record.running import PYTHON, recording, run

AHEAD = "1000"
TOLD = b"its clocks are not the recording's (a time namespace): record it there, and merge the traces"

CHILD = "import gputrace\nwith gputrace.span('child'): pass\nprint('ran')"

#: How a program comes to have such a child.
STARTS = {
    "by a command": f"subprocess.run(['unshare', '-T', '--monotonic', {AHEAD!r}, sys.executable, '-c', {CHILD!r}])",
    "by fork": f"""
assert not ctypes.CDLL(None, use_errno=True).unshare(0x80), "CLONE_NEWTIME"
with open("/proc/self/timens_offsets", "w") as offsets:
    offsets.write("monotonic {AHEAD} 0")
pid = os.fork()
if not pid:
    exec({CHILD!r})
    sys.exit()
os.waitpid(pid, 0)
""",
}


@pytest.fixture(autouse=True)
def _may_unshare() -> None:
    if not shutil.which("unshare") or subprocess.run(["unshare", "-T", "true"], capture_output=True).returncode:
        pytest.skip("needs the right to make namespaces")


@pytest.mark.parametrize("twin", TWINS)
@pytest.mark.parametrize("start", STARTS)
def test_a_child_with_clocks_of_its_own(tmp_path: Path, start: str, twin: str) -> None:
    program = f"""
import ctypes, os, subprocess, sys, gputrace
with gputrace.span("before"):
    pass
sys.stdout.flush()
{STARTS[start]}
with gputrace.span("after"):
    pass
"""
    trace = tmp_path / "t.pftrace"
    done = run(recording(PYTHON, "-c", program, output=trace), tmp_path, env=environment(twin))
    assert (done.returncode, done.stdout) == (0, b"ran\n")
    assert TOLD in done.stderr, done.stderr
    assert [each.name for each in load(trace)] == ["before", "after"]


@pytest.mark.parametrize("twin", TWINS)
def test_a_recording_of_such_a_process_by_itself(tmp_path: Path, twin: str) -> None:
    trace = tmp_path / "t.pftrace"
    command = ["unshare", "-T", "--monotonic", AHEAD, *recording(PYTHON, "-c", CHILD, output=trace)]
    done = run(command, tmp_path, env=environment(twin))
    assert (done.returncode, done.stdout) == (0, b"ran\n")
    assert TOLD not in done.stderr
    assert [each.name for each in load(trace)] == ["child"]
