"""How much a kill may take: spans are opened at a steady pace, and the kill comes at no certain moment."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.engine import Slice
from tests.recorded import is_gpu
from tests.ways.program import HOST_LOSS_NS, SUFFIXES, WINDOW_LOSS_NS, Program, load

pytestmark = pytest.mark.slow

#: Says on stdout when each span was over: that outlives the kill.
STEADY = """
print(os.getpid(), flush=True)
n = 0
while True:
    with gputrace.span("steady", stream=stream, n=n):
        launch(20_000)
        time.sleep(0.002)
    os.write(1, b"%d %d\\n" % (n, time.monotonic_ns()))
    n += 1
"""
RUN_S = 4.0


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_what_a_kill_takes(tmp_path: Path, suffix: str) -> None:
    program = Program(STEADY)
    with subprocess.Popen(
        program.recording(tmp_path, f"t{suffix}"),
        cwd=tmp_path,
        env=program.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as recorder:
        assert recorder.stdout is not None
        pid = int(recorder.stdout.readline())
        time.sleep(RUN_S)
        os.kill(pid, signal.SIGKILL)
        lines, _ = recorder.communicate(timeout=60)
    assert recorder.returncode == -signal.SIGKILL
    ended_ns = dict(map(int, line.split()) for line in lines.splitlines())
    killed_ns = max(ended_ns.values())
    found = [each for each in load(tmp_path / f"t{suffix}") if each.name == "steady" and each.dur >= 0]
    assert_lost_at_most(HOST_LOSS_NS, [each for each in found if not is_gpu(each)], ended_ns, killed_ns)
    assert_lost_at_most(WINDOW_LOSS_NS, [each for each in found if is_gpu(each)], ended_ns, killed_ns)


def assert_lost_at_most(bound_ns: int, found: list[Slice], ended_ns: dict[int, int], killed_ns: int) -> None:
    drawn = sorted(each.args["n"] for each in found)
    owed = [n for n, ns in ended_ns.items() if ns <= killed_ns - bound_ns]
    assert len(owed) > 100
    # The kill may fall between the span's end and the line that tells of it.
    assert drawn == list(range(len(drawn)))
    assert len(drawn) >= len(owed)
