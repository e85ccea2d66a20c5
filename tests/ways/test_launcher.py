"""Ways to end that reach the launcher too: killed itself, Ctrl-C twice, the terminal closed."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.record.running import GPUTRACE, PYTHON, left_behind, recording, run, wait_for
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


#: `record`, which is sent a signal as it asks the system for its n-th thing since it made the recording's folder.
SIGNALLED = """
import os, sys
number, left = map(int, sys.argv.pop(1).split("/"))
made = False
def hook(event, _):
    global made, left
    made = made or event == "os.mkdir"
    if not made or left < 0:
        return
    if event == "os.posix_spawn" and left:
        print("it was over before", flush=True)
    left -= 1
    if left < 0:
        os.kill(os.getpid(), number)
sys.addaudithook(hook)
from gputrace.cli.main import main
sys.exit(main())
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_record_is_told_to_end_before_the_command_has_begun(tmp_path: Path, number: signal.Signals) -> None:
    """The command gets the signal, as it would without `record`, and nothing is left behind."""
    (tmp_path / "signalled.py").write_text(SIGNALLED)
    command = recording("sleep", "60", output="t.json")[len(GPUTRACE) :]
    n = 0
    while True:
        done = run([PYTHON, "signalled.py", f"{number:d}/{n}", *command], tmp_path)
        if done.stdout:
            break
        assert done.returncode == -number, done.stderr
        assert os.listdir(tmp_path) == ["signalled.py"]
        n += 4
    assert n > 10
