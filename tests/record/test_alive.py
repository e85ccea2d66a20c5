"""Processes that still run when a recording is joined: nothing they record is taken away under them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

from gputrace.record import alive
from tests.record.running import GPUTRACE, PYTHON, WRITTEN, left_behind, recording, run, start, wait_for

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")

#: Opens a span every 20 ms until the file "stop" is there, and one more then.
LONG = f"""
import gputrace, os, pathlib, time
with gputrace.span("first"):
    pass
{WRITTEN}
pathlib.Path("ready").write_text(str(os.getpid()))
end = time.monotonic() + 60
while not os.path.exists("stop") and time.monotonic() < end:
    with gputrace.span("more"):
        time.sleep(0.02)
with gputrace.span("last"):
    pass
pathlib.Path("before_exit").write_text("yes")
"""


@pytest.fixture
def program(tmp_path: Path) -> str:
    (tmp_path / "my.py").write_text(LONG)
    return "my.py"


def end(tmp_path: Path) -> None:
    """Let the program end, and wait until it is gone."""
    pid = int((tmp_path / "ready").read_text())
    (tmp_path / "stop").touch()
    wait_for(tmp_path / "before_exit")
    wait_until_gone(pid)


def wait_until_gone(pid: int) -> None:
    for _ in range(3000):
        if not alive.process_image(pid):
            return
        time.sleep(0.01)
    raise AssertionError(f"{pid} still runs")


def test_its_shards_stay_and_a_later_merge_has_it_all(tmp_path: Path, program: str) -> None:
    script = f"{PYTHON} {program} 2>errors >/dev/null & while [ ! -s ready ]; do sleep 0.05; done; exit 0"
    result = run(recording("sh", "-c", script, output="x.json"), tmp_path)
    pid = (tmp_path / "ready").read_text()
    (folder,) = left_behind(tmp_path)
    still, wrote = result.stderr.decode().splitlines()
    path = tmp_path / folder
    assert still == (
        f"gputrace: process {pid} (my.py) still runs: what it records from now on stays in {path}; "
        f"when it has ended, run: gputrace merge {path} -o {tmp_path / 'x.json'}"
    )
    assert "wrote x.json" in wrote
    assert "at least" in wrote
    assert "killed" not in wrote
    assert "first" in (tmp_path / "x.json").read_text()

    early = run([*GPUTRACE, "merge", folder, "-o", "x.json"], tmp_path)
    assert f"process {pid} (my.py) still runs".encode() in early.stderr
    assert left_behind(tmp_path) == [folder]

    end(tmp_path)
    late = run([*GPUTRACE, "merge", folder, "-o", "x.json"], tmp_path)
    assert b"still runs" not in late.stderr
    assert b"at least" not in late.stderr
    assert '"last"' in (tmp_path / "x.json").read_text()
    assert left_behind(tmp_path) == []
    assert (tmp_path / "errors").read_text() == ""


def test_merge_beside_a_killed_launchers_child(tmp_path: Path, program: str) -> None:
    with start(recording(PYTHON, program, output="x.json"), tmp_path) as launcher:
        wait_for(tmp_path / "ready")
        (folder,) = left_behind(tmp_path)
        live = run([*GPUTRACE, "merge", folder, "-o", "x.json"], tmp_path)
        launcher.kill()
    assert f"processes {launcher.pid} (gputrace.cli.main), ".encode() in live.stderr or (
        f", {launcher.pid} (gputrace.cli.main) still run: ".encode() in live.stderr
    )
    beside = run([*GPUTRACE, "merge", folder, "-o", "x.json"], tmp_path)
    assert b"(my.py) still runs" in beside.stderr
    end(tmp_path)
    assert b"still runs" not in run([*GPUTRACE, "merge", folder, "-o", "x.json"], tmp_path).stderr
    assert '"last"' in (tmp_path / "x.json").read_text()
    assert left_behind(tmp_path) == []


def test_a_helper_that_ends_a_moment_later_is_waited_for(tmp_path: Path) -> None:
    program = "import gputrace, time\nwith gputrace.span('late'): time.sleep(0.3)"
    script = f'{PYTHON} -c "{program}" & while ! ls .trace*/0.shard; do sleep 0.02; done >/dev/null 2>&1'
    result = run(recording("sh", "-c", script), tmp_path)
    assert b"still runs" not in result.stderr
    assert b" 1 slice," in result.stderr
    assert left_behind(tmp_path) == []


def test_nothing_traced_while_a_process_runs(tmp_path: Path) -> None:
    script = f"{PYTHON} -c 'import time; time.sleep(3)' >/dev/null 2>&1 & sleep 0.01"
    result = run(recording("sh", "-c", script), tmp_path)
    still, why = result.stderr.decode().splitlines()
    assert "still runs" in still
    assert why.startswith("gputrace: nothing was traced: what the command started still runs")
    assert len(left_behind(tmp_path)) == 1


def test_another_program_that_still_runs_is_named_and_leaves_nothing_behind(tmp_path: Path) -> None:
    result = run(recording("sh", "-c", "sleep 2 >/dev/null 2>&1 & sleep 0.2"), tmp_path)
    (line,) = result.stderr.decode().splitlines()
    assert "(sleep) still runs, and no Python had started" in line
    assert left_behind(tmp_path) == []


def test_a_process_that_became_another_program_is_over(tmp_path: Path) -> None:
    program = f"""
import gputrace, os, time
with gputrace.span("first"):
    pass
{WRITTEN}
open("ready", "w").write(str(os.getpid()))
os.execvp("sleep", ["sleep", "3"])
"""
    (tmp_path / "my.py").write_text(program)
    script = f"{PYTHON} my.py >/dev/null 2>&1 & while [ ! -s ready ]; do sleep 0.05; done; sleep 0.1"
    result = run(recording("sh", "-c", script), tmp_path)
    assert b"still runs" not in result.stderr
    assert b"1 process ended without cleaning up (killed, os._exit or exec; " in result.stderr
    assert left_behind(tmp_path) == []


def test_names() -> None:
    for line, name in [
        (["/usr/bin/python3", "-u", "-X", "dev", "a/train.py", "x"], "train.py"),
        (["python", "-m", "torch.distributed.run", "x"], "torch.distributed.run"),
        (["python", "-c", "pass"], "python"),
        (["/bin/sh", "x"], "sh"),
        (["a title: set by the program"], "a title: set by the program"),
        ([], ""),
    ]:
        assert alive._program(line) == name
    assert alive.name(os.getpid()).startswith(f"{os.getpid()} (")
    assert alive.name(0) == "0 (ended since)"


LAST = f"""
import gputrace, os, subprocess, sys
null = subprocess.DEVNULL
with gputrace.span("parent"):
    pass
{WRITTEN}
subprocess.Popen([sys.executable, *{{options}}, "-c", {{child!r}}], stdin=null, stdout=null, stderr=null)
{{then}}
"""
UNTIL_STOPPED = "while not os.path.exists('stop'): time.sleep(.01)"
CHILD = "import gputrace\nwith gputrace.span('child'): pass"


@pytest.mark.parametrize("then", ["", "os._exit(0)", "sys.exit(3)"], ids=["return", "os._exit", "sys.exit"])
def test_a_child_that_is_started_as_the_command_ends_is_in_the_trace(tmp_path: Path, then: str) -> None:
    (tmp_path / "my.py").write_text(LAST.format(options=[], child=CHILD, then=then))
    result = run(recording(PYTHON, "my.py", output="x.json"), tmp_path)
    assert result.returncode == (3 if then == "sys.exit(3)" else 0)
    text = (tmp_path / "x.json").read_text()
    assert '"parent"' in text
    assert '"child"' in text
    assert b"still runs" not in result.stderr
    assert left_behind(tmp_path) == []


def test_one_that_a_shell_starts_is_too(tmp_path: Path) -> None:
    (tmp_path / "my.py").write_text(CHILD)
    result = run(recording("sh", "-c", f"{PYTHON} my.py & exit 0", output="x.json"), tmp_path)
    assert '"child"' in (tmp_path / "x.json").read_text(), result.stderr


def test_one_in_the_midst_of_exec_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process on its way through exec has no environment for a moment, and no arguments."""
    folder = SimpleNamespace(path="/recording", writers=list)
    looks = Counter[int]()
    proc = alive._proc

    def in_exec(pid: int, file: str) -> list[bytes]:
        looks[pid] += file == "environ"
        return [b""] if pid == child.pid and file != "stat" and looks[pid] <= 3 else proc(pid, file)

    environment = {**os.environ, "GPUTRACE_RECORD": folder.path}
    with subprocess.Popen([PYTHON, "-S", "-c", "input()"], stdin=subprocess.PIPE, env=environment) as child:
        monkeypatch.setattr(alive, "_proc", in_exec)
        assert alive.heirs(folder) == {child.pid}
        assert looks[child.pid] == 4


def test_one_that_has_no_environment_is_not_looked_at_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = SimpleNamespace(path="/recording", writers=list)
    monkeypatch.setattr(alive, "_EXEC_S", 0.01)
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, env={}):
        assert alive.heirs(folder) == set()


def test_one_that_runs_on_is_told(tmp_path: Path) -> None:
    child = (
        f"{CHILD}\nopen('ready', 'w').write(str(os.getpid()))\n" + "while not os.path.exists('stop'): time.sleep(.01)"
    )
    (tmp_path / "my.py").write_text(LAST.format(options=[], child=f"import os, time\n{child}", then=""))
    result = run(recording(PYTHON, "my.py", output="x.json"), tmp_path)
    pid = wait_for(tmp_path / "ready")
    assert f"process {pid} (python".encode() in result.stderr
    (folder,) = left_behind(tmp_path)
    (tmp_path / "stop").touch()
    wait_until_gone(int(pid))
    assert run([*GPUTRACE, "merge", folder, "-o", "x.json"], tmp_path).returncode == 0
    assert '"child"' in (tmp_path / "x.json").read_text()


#: The launcher, which kills the process named in "child" once it has looked for what still runs and waits.
KILLS_WHAT_IT_SAW = """
import os, sys, time
from gputrace.cli.main import main
from gputrace.record import alive
sleep = time.sleep
def until_next_look(seconds):
    if seconds != alive._POLL_S:
        return sleep(seconds)
    if os.path.exists("child"):
        os.kill(int(open("child").read()), 9)
        os.unlink("child")
time.sleep = until_next_look
sys.exit(main())
"""


def test_one_that_is_over_before_its_first_line_is_told(tmp_path: Path) -> None:
    """Killed on its way: it waits for its pyvenv.cfg, which an interpreter reads before it runs a line."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(os.path.realpath(sys.executable))
    os.mkfifo(tmp_path / "bin" / "pyvenv.cfg")
    then = """
while not open(f"/proc/{child.pid}/cmdline").read():  # within exec it has no arguments to know it by
    pass
open("child", "w").write(str(child.pid))
os._exit(0)
"""
    program = LAST.format(options=[], child=CHILD, then=then)
    program = program.replace("subprocess.Popen([sys.executable", "child = subprocess.Popen(['bin/python'")
    (tmp_path / "my.py").write_text(program)
    (tmp_path / "launcher.py").write_text(KILLS_WHAT_IT_SAW)
    command = recording(PYTHON, "my.py", output="x.json")
    result = run([PYTHON, "launcher.py", *command[len(GPUTRACE) :]], tmp_path)
    said = result.stderr.decode().splitlines()[0]
    assert re.fullmatch(
        r"gputrace: process \d+ \(python.*\) was started as the command ended, and is not in the trace: "
        "it was over before its first line",
        said,
    )
    assert left_behind(tmp_path) == []


@pytest.mark.parametrize("option", ["-I", "-S", "-E"])
def test_one_that_leaves_gputrace_out_is_not_waited_for(tmp_path: Path, option: str) -> None:
    child = f"import os, time\n{UNTIL_STOPPED}"
    (tmp_path / "my.py").write_text(LAST.format(options=[option], child=child, then=""))
    result = run(recording(PYTHON, "my.py", output="x.json"), tmp_path)
    (tmp_path / "stop").touch()
    assert b"still runs" not in result.stderr
    assert left_behind(tmp_path) == []
