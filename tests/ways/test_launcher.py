"""Ways to end that reach the launcher too: killed itself, Ctrl-C twice, the terminal closed."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.record.running import left_behind, wait_for
from tests.record.test_terminal import Terminal
from tests.ways.program import SUFFIXES, Program, assert_holds, merged

pytestmark = pytest.mark.slow

WAIT = """
open("ready", "w").write("yes")
while not os.path.exists("go on"):
    time.sleep(0.01)
"""


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("when", ["while the program runs", "with the program"])
def test_record_itself_is_killed(tmp_path: Path, suffix: str, when: str) -> None:
    """The program goes on to its own end, and `gputrace merge` has all of it."""
    program = Program(WAIT + 'open("done", "w").write("yes")')
    together = when == "with the program"
    with subprocess.Popen(
        program.recording(tmp_path, f"t{suffix}"), cwd=tmp_path, env=program.environment(), start_new_session=True
    ) as launcher:
        wait_for(tmp_path / "ready")
        if together:
            os.killpg(launcher.pid, signal.SIGKILL)
        else:
            launcher.kill()
    assert launcher.returncode == -signal.SIGKILL
    assert not (tmp_path / f"t{suffix}").exists()
    (shards,) = left_behind(tmp_path)
    if not together:
        (tmp_path / "go on").touch()
        wait_for(tmp_path / "done")
        wait_until_over(tmp_path / shards)
    recovered = merged(tmp_path, Path(shards), f"t{suffix}")
    assert recovered.code == 0, recovered.stderr
    assert_holds(tmp_path / f"t{suffix}", open_at_end=together, clean=not together)
    assert left_behind(tmp_path) == []


def wait_until_over(shards: Path) -> None:
    from gputrace.record import alive
    from gputrace.shards import ShardFolder

    alive.wait_for_writers(ShardFolder.open(str(shards)), 30)


TWICE = """
try:
    print("ready", flush=True)
    while True:
        time.sleep(0.01)
except KeyboardInterrupt:
    print("cleaning up", flush=True)
    while True:
        time.sleep(0.01)
"""


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_ctrl_c_twice(tmp_path: Path, suffix: str) -> None:
    """The second strikes the program as it cleans up after the first; more come while the trace is put together."""
    program = Program(TWICE)

    def interrupted(command: list[str]) -> int:
        terminal = Terminal(command, tmp_path)
        terminal.read_until(b"ready")
        terminal.press(b"\x03")
        terminal.read_until(b"cleaning up")
        terminal.press(b"\x03")
        terminal.read_until(b"KeyboardInterrupt")
        terminal.press(b"\x03" * 5)
        return terminal.exit_code()

    assert interrupted(program.command(tmp_path)) == -signal.SIGINT
    assert interrupted(program.recording(tmp_path, f"t{suffix}")) == -signal.SIGINT
    assert_holds(tmp_path / f"t{suffix}", open_at_end=False, clean=True)
    assert left_behind(tmp_path) == []


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("heeds", [False, True], ids=["and killed by it", "and heeds it"])
def test_the_terminal_is_closed(tmp_path: Path, suffix: str, heeds: bool) -> None:
    """The program gets SIGHUP as it would; the trace is written with nobody left to tell."""
    program = Program(WAIT, before="signal.signal(signal.SIGHUP, lambda *_: sys.exit(9))" if heeds else "")

    def closed(command: list[str]) -> int:
        (tmp_path / "ready").unlink(missing_ok=True)
        terminal = Terminal(command, tmp_path)
        wait_for(tmp_path / "ready")
        os.close(terminal.other_end)
        os.close(terminal.end)
        return terminal.process.wait(30)

    plain = closed(program.command(tmp_path))
    assert plain == (9 if heeds else -signal.SIGHUP)
    assert closed(program.recording(tmp_path, f"t{suffix}")) == plain
    assert_holds(tmp_path / f"t{suffix}", open_at_end=not heeds, clean=heeds)
    assert left_behind(tmp_path) == []
