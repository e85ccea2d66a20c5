"""Ways in which a program itself ends, each with and without `record`, in both formats."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from tests.ways.program import SUFFIXES, Ended, Program, assert_counted, assert_holds, assert_same_end

pytestmark = pytest.mark.slow


class Way(NamedTuple):
    """``open_at_end``: what was open had not closed by then. ``clean``: Python's exit handlers ran."""

    end: str
    exit_code: int
    open_at_end: bool = True
    clean: bool = False
    before: str = ""


EXEC = """
program = "import gputrace\\nwith gputrace.span('after exec'): pass\\nraise SystemExit(6)"
os.execv(sys.executable, [sys.executable, "-c", program])
"""
FORK = """
pid = os.fork()
if not pid:
    with gputrace.span("in the child"):
        os._exit(7)
os._exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
BUSY_THREAD = """
def work():
    while True:
        with gputrace.span("busy", stream=stream):
            sum(range(100))
threading.Thread(target=work, daemon=True).start()
time.sleep(0.1)
"""

WAYS = {
    "return": Way("return", 0, open_at_end=False, clean=True),
    "sys.exit(3)": Way("sys.exit(3)", 3, open_at_end=False, clean=True),
    "uncaught exception": Way("raise ValueError('on purpose')", 1, open_at_end=False, clean=True),
    "KeyboardInterrupt": Way("os.kill(os.getpid(), signal.SIGINT)\ntime.sleep(20)", -2, open_at_end=False, clean=True),
    "SIGTERM": Way("os.kill(os.getpid(), signal.SIGTERM)\ntime.sleep(20)", -15),
    "SIGHUP": Way("os.kill(os.getpid(), signal.SIGHUP)\ntime.sleep(20)", -1),
    "SIGKILL": Way("os.kill(os.getpid(), signal.SIGKILL)\ntime.sleep(20)", -9),
    "segfault": Way("import ctypes\nctypes.string_at(0)", -11),
    "abort": Way("os.abort()", -6),
    "os._exit": Way("os._exit(4)", 4),
    "fork, then os._exit": Way(FORK, 7),
    "exec": Way(EXEC, 6),
    "a daemon thread busy at exit": Way(BUSY_THREAD, 0, open_at_end=False, clean=True),
}

_plain: dict[str, Ended] = {}


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("name", WAYS)
def test_a_way_to_end(tmp_path: Path, name: str, suffix: str) -> None:
    way = WAYS[name]
    program = Program(way.end, before=way.before)
    if name not in _plain:  # it does not depend on the format
        _plain[name] = program.plain(tmp_path)
    assert _plain[name].code == way.exit_code
    done = program.recorded(tmp_path, f"t{suffix}")
    assert_same_end(done, _plain[name])
    drawn = assert_holds(tmp_path / f"t{suffix}", open_at_end=way.open_at_end, clean=way.clean)
    assert_counted(done.said[-1], drawn)
    found = {each.name for each in drawn}
    assert ("ended without cleaning up" in done.said[-1]) is not way.clean
    assert ("after exec" in found) is (name == "exec")
    assert ("busy" in found) is ("busy" in name)
