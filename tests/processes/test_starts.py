"""Processes that a recorded command starts, by whatever means: each is in the one trace, as itself."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.engine import Engine, Slice, assert_clean, slices
from tests.record.running import PYTHON, WRITTEN, left_behind, recording, run
from tests.ways.program import SUFFIXES

SPAN = "import gputrace, os, sys\nwith gputrace.span({name!r}, pid=os.getpid()): pass\n"


def span(name: str, then: str = "") -> str:
    return SPAN.format(name=name) + then


def load(trace: Path) -> list[Slice]:
    engine = Engine(trace)
    assert_clean(engine)
    return slices(engine)


def recorded(folder: Path, *command: str, output: str = "t.pftrace", **options: object) -> list[Slice]:
    """What a command's trace shows, of a command that ends well; nothing is left behind."""
    done = run(recording(*command, output=output), folder, **options)
    assert done.returncode == 0, done.stderr
    assert left_behind(folder) == []
    return load(folder / output)


def pids(found: list[Slice]) -> set[int]:
    return {each.args["pid"] for each in found}


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_subprocesses_of_subprocesses(tmp_path: Path, suffix: str) -> None:
    inner = span("grandchild")
    child = span("child", f"import subprocess\nsubprocess.run([sys.executable, '-c', {inner!r}], check=True)")
    program = span("parent", f"import subprocess\nfor _ in range(2): subprocess.run([sys.executable, '-c', {child!r}])")
    found = recorded(tmp_path, PYTHON, "-c", program, output=f"t{suffix}")
    assert Counter(each.name for each in found) == {"parent": 1, "child": 2, "grandchild": 2}
    assert len(pids(found)) == 5
    # Each on its own process's track.
    assert all(each.track[0].endswith(f" {each.args['pid']}") for each in found)


def test_a_shell_script(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text(f"#!/bin/sh\n{PYTHON} first.py\n{PYTHON} second.py &\necho third | {PYTHON} third.py\nwait\n")
    script.chmod(0o755)
    for name in ("first", "second", "third"):
        (tmp_path / f"{name}.py").write_text(span(name))
    found = recorded(tmp_path, "./run.sh")
    assert {each.track[0].partition(" ")[0] for each in found} == {"first.py", "second.py", "third.py"}


FORKS = """
import gputrace, os, sys
with gputrace.span("parent", pid=os.getpid()):
    children = []
    for n in range(3):
        pid = os.fork()
        if not pid:
            with gputrace.span("child", pid=os.getpid()):
                pass
            sys.exit(0)
        children.append(pid)
    for pid in children:
        assert os.waitpid(pid, 0)[1] == 0
"""


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_os_fork(tmp_path: Path, suffix: str) -> None:
    found = recorded(tmp_path, PYTHON, "-c", FORKS, output=f"t{suffix}")
    # The children leave the parent's block too; their span there is the parent's, and nobody's of theirs.
    assert Counter(each.name for each in found) == {"parent": 1, "child": 3}
    assert len(pids(found)) == 4
    assert all(each.dur >= 0 for each in found)


def test_exec_of_itself(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(
        "import gputrace, os, sys, time\n"
        "n = int(sys.argv[1])\n"
        "with gputrace.span('image', n=n): pass\n"
        f"{WRITTEN}"
        "if n < 3: os.execv(sys.executable, [sys.executable, 'program.py', str(n + 1)])\n"
    )
    found = recorded(tmp_path, PYTHON, "program.py", "0")
    assert [each.args["n"] for each in found] == [0, 1, 2, 3]


def test_its_own_sitecustomize_and_children(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "sitecustomize.py").write_text("import builtins\nbuiltins.mine = 'mine'\n")
    child = span("child", "assert mine == 'mine'")
    program = span("parent", f"import subprocess\nsubprocess.run([sys.executable, '-c', {child!r}], check=True)")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(["own", *sys.path[1:]])}
    found = recorded(tmp_path, PYTHON, "-c", program, env=environment)
    assert [each.name for each in found] == ["parent", "child"]


def other_pythons() -> list[str]:
    """Interpreters of other versions than this one that gputrace supports, without gputrace in them."""
    found = []
    for version in ("3.11", "3.12", "3.13"):
        if sys.version.startswith(f"{version}."):
            continue
        folder = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
        for candidate in (*folder.glob(f"{version}.*/bin/python"), shutil.which(f"python{version}")):
            asked = [str(candidate), "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
            try:
                done = subprocess.run(asked, capture_output=True, text=True)
            except OSError:
                continue
            if done.stdout.strip() == version:
                found.append(str(candidate))
                break
    return found


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["virtual environment", "interpreter"])
def test_another_than_the_launcher_s_without_gputrace_s_dependencies(tmp_path: Path, kind: str) -> None:
    """Its own gputrace is not there, nor are click, protobuf and the rest: the launcher's is lent, pure."""
    if kind == "virtual environment":
        subprocess.run([PYTHON, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
        pythons = [str(tmp_path / "bare" / "bin" / "python")]
    else:
        pythons = other_pythons()
        if not pythons:
            pytest.skip("there is no other Python here")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    program = """
import sys
if "gputrace" not in sys.modules: raise SystemExit("not traced")
for name in ("click", "google.protobuf", "numpy", "orjson", "rich"):
    try:
        __import__(name)
    except ImportError:
        continue
    raise SystemExit(f"{name} is there")
# As a program would that has gputrace beside it: its import path does not reach ours.
gputrace = sys.modules["gputrace"]
with gputrace.span("elsewhere", version=sys.version.split()[0]): pass
"""
    for number, python in enumerate(pythons):
        for suffix in SUFFIXES:
            found = recorded(tmp_path, python, "-c", program, output=f"{number}{suffix}", env=environment)
            assert [each.name for each in found] == ["elsewhere"], python


@pytest.mark.parametrize("option", ["-I", "-E", "-S"])
def test_an_isolated_child_beside_a_traced_parent(tmp_path: Path, option: str) -> None:
    """Traced from its own `import gputrace` on; one that imports none is told only where nothing else was traced."""
    child = f"import sys; sys.path[:] = {sys.path!r}; import site; site.main()\n" + span("isolated")
    program = span(
        "parent", f"import subprocess\nsubprocess.run([sys.executable, {option!r}, '-c', {child!r}], check=True)"
    )
    assert [each.name for each in recorded(tmp_path, PYTHON, "-c", program)] == ["parent", "isolated"]


def test_an_emptied_environment_is_not_traced_and_told(tmp_path: Path) -> None:
    done = run(recording("env", "-i", PYTHON, "-c", f"import sys; sys.path[:] = {sys.path!r}\n" + span("x")), tmp_path)
    assert done.returncode == 0
    assert b"nothing was traced" in done.stderr
    assert b"(sudo, env -i, some containers)" in done.stderr
