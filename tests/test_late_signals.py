"""A signal that comes as the program ends: it ends as without us, says as much, and its trace is whole."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.engine import Engine, assert_clean, slices
from tests.hot.twin import TWINS, environment
from tests.record.running import PYTHON, recording, run

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="sends signals by pidfd")

#: A callable in C sends it, as the last that the program does: Python runs the signal's handler at its next line.
LATE = """
import atexit, os, signal, sys
import gputrace
{setup}
with gputrace.span("work"):
    pass
atexit.register(signal.pidfd_send_signal, os.pidfd_open(os.getpid()), signal.SIGINT)
print("end", flush=True)
"""
HANDLERS = {
    "Python's own": "",
    "exits": "signal.signal(signal.SIGINT, lambda *_: sys.exit(7))",
    "raises": "signal.signal(signal.SIGINT, lambda *_: 1 / 0)",
}


@pytest.mark.parametrize("twin", TWINS)
@pytest.mark.parametrize("handler", HANDLERS)
@pytest.mark.parametrize("output", ["t.pftrace", "t.json"])
def test_sigint_at_the_end(tmp_path: Path, twin: str, handler: str, output: str) -> None:
    (tmp_path / "my.py").write_text(LATE.format(setup=HANDLERS[handler]))
    plain = run([PYTHON, "my.py"], tmp_path, env=environment(twin))
    recorded = run(recording(PYTHON, "my.py", output=output), tmp_path, env=environment(twin))
    assert (plain.stdout, plain.stderr) == (b"end\n", b"")
    assert recorded.stdout == plain.stdout
    assert recorded.returncode == plain.returncode == 0
    (line,) = recorded.stderr.decode().splitlines()
    assert line.startswith(f"gputrace: wrote {output}: ")
    assert " 1 slice, " in line
    assert " 0 dropped" in line
    assert "cleaning up" not in line
    engine = Engine(tmp_path / output)
    assert_clean(engine)
    assert [(each.name, each.dur >= 0) for each in slices(engine)] == [("work", True)]


def test_one_in_a_recording_from_inside(tmp_path: Path) -> None:
    setup = "gputrace.trace('t.pftrace', device='host').start()"
    (tmp_path / "my.py").write_text(LATE.format(setup=setup))
    done = run([PYTHON, "my.py"], tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"end\n", b"")
    engine = Engine(tmp_path / "t.pftrace")
    assert_clean(engine)
    assert [each.name for each in slices(engine)] == ["work"]


HOOKS = """
import atexit, sys
import gputrace, gputrace.tracer

def of_the_program():
    raise ValueError("of the program")

def hook(unraisable):
    print("hooked", unraisable.exc_value, flush=True)

def see():
    print(sys.unraisablehook is hook, flush=True)

{before}
atexit.register(see)
atexit.register(of_the_program)
import gputrace.api
recording = gputrace.api.trace(sys.argv[1], device="host").start()
with gputrace.span("work"):
    pass
atexit.register(of_the_program)
{after}
"""


@pytest.mark.parametrize("stopped", [False, True])
@pytest.mark.parametrize("when", ["before", "after"])
def test_the_program_s_own_unraisablehook_is_as_it_was(tmp_path: Path, when: str, stopped: bool) -> None:
    lines = {"before": "", "after": "recording.stop()" if stopped else ""}
    lines[when] += "\nsys.unraisablehook = hook"
    done = run([PYTHON, "-c", HOOKS.format(**lines), "t.json"], tmp_path)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout == b"hooked of the program\nhooked of the program\nTrue\n"
    assert (tmp_path / "t.json").exists()
