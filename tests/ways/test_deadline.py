"""What keeps a program's end waiting: a device far behind, a driver that does not answer. It ends, and says what it
gave up.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.fake_driver import require
from tests.record.running import wait_for
from tests.recorded import is_gpu
from tests.ways.program import SPANS, SUFFIXES, Ended, Program, assert_same_end, load, numbers

pytestmark = pytest.mark.slow

BEHIND = "launch(120_000_000_000)\nwith gputrace.span('never reached', stream=stream):\n    launch(1000)\nsys.exit(3)"
ENDING = "import atexit\natexit.register(lambda: open('ending', 'w').write(str(os.getpid())))"


def assert_all_but_windows_of_the_end(trace: Path) -> None:
    found = load(trace)
    for on_gpu in (False, True):
        assert numbers([each for each in found if is_gpu(each) == on_gpu], "flushed") == list(range(SPANS))
    host = [each for each in found if not is_gpu(each)]
    assert numbers(host, "tail") == list(range(SPANS))
    assert [each.dur >= 0 for each in host if each.name in ("left open", "never reached")] == [True, True]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_device_two_minutes_behind(tmp_path: Path, suffix: str) -> None:
    program = Program(BEHIND)
    plain = program.plain(tmp_path)
    assert plain.code == 3
    done = program.recorded(tmp_path, f"t{suffix}")
    assert_same_end(done, plain)
    assert_all_but_windows_of_the_end(tmp_path / f"t{suffix}")
    assert "gave up on 3 window edges that Simulated GPU had not reached 10 s after the end" in done.said[0]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_ctrl_c_at_the_end_ends_the_wait(tmp_path: Path, suffix: str) -> None:
    program = Program(BEHIND, before=ENDING)
    with subprocess.Popen(
        program.recording(tmp_path, f"t{suffix}"),
        cwd=tmp_path,
        env=program.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as recorder:
        pid = int(wait_for(tmp_path / "ending"))
        deadline = time.monotonic() + 9  # before the wait's own end
        while recorder.poll() is None and time.monotonic() < deadline:
            # Again if it fell into the program's own hook; not often, for one at Python's very end kills it.
            os.kill(pid, signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                recorder.wait(2)
        stdout, stderr = recorder.communicate(timeout=30)
    done = Ended(subprocess.CompletedProcess([], recorder.returncode, stdout, stderr), tmp_path)
    assert (done.code, done.stdout, done.stderr) == (3, b"", [])
    assert_all_but_windows_of_the_end(tmp_path / f"t{suffix}")
    assert "interrupted while waiting for the device at the end: its last windows may be missing" in done.said


@pytest.mark.parametrize("when", ["at its end", "for a while already"])
def test_a_driver_that_does_not_answer(tmp_path: Path, when: str) -> None:
    require()
    hang = "control.delay('cuEventElapsedTime', 600_000_000_000)\ncontrol.delay('cuEventQuery', 600_000_000_000)"
    program = (
        Program("sys.exit(3)", device="cuda", before=f"import atexit\natexit.register(lambda: exec({hang!r}))")
        if when == "at its end"
        else Program(hang + "\ntime.sleep(0.5)\nsys.exit(3)", device="cuda")
    )
    plain = program.plain(tmp_path)
    assert plain.code == 3
    done = program.recorded(tmp_path, "t.pftrace")
    assert_same_end(done, plain)
    found = load(tmp_path / "t.pftrace")
    assert numbers([each for each in found if is_gpu(each)], "flushed") == list(range(SPANS))
    assert any("the last slices may be missing" in line for line in done.said), done.said
