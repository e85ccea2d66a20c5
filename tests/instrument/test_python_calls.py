"""`--python`: each call of the program's functions is a slice where it ran, and nothing else changes."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gputrace
from tests.engine import Engine, assert_clean, slices
from tests.hot.twin import TWINS, environment
from tests.record.running import recording

PROGRAM = """
import asyncio, contextlib, threading
import gputrace
def leaf(): pass
def fails():
    leaf()
    raise KeyError("x")
def numbers():
    leaf()
    yield 1
    yield 2
@contextlib.contextmanager
def around():
    with gputrace.span("mine"):
        yield
async def waits(n):
    leaf()
    await asyncio.sleep(0)
def main():
    try: fails()
    except KeyError: pass
    list(numbers())
    with around(): leaf()
    asyncio.run(both())
async def both():
    await asyncio.gather(waits(1), waits(2))
main()
thread = threading.Thread(target=leaf)
thread.start()
thread.join()
print("done")
"""
FORKS = """
import os
def child(): pass
def parent():
    pid = os.fork()
    if not pid:
        child()
        return
    os.waitpid(pid, 0)
parent()
"""


def run(path: Path, program: str, twin: str, *options: str) -> tuple[Engine, subprocess.CompletedProcess[str]]:
    command = recording(sys.executable, "-c", program)
    command[4:4] = ["--python", *options]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(twin), cwd=path, timeout=60)
    assert done.returncode == 0, done.stderr
    engine = Engine(path / "trace.pftrace")
    assert_clean(engine)
    return engine, done


def paths(engine: Engine) -> Counter[tuple[str, ...]]:
    """How often each chain of open slices occurs, outermost first, by containment and depth on one row."""
    found: Counter[tuple[str, ...]] = Counter()
    rows: dict[int, list[str]] = {}
    calls = [each for each in slices(engine) if not str(each.name).startswith("raise ")]
    for each in sorted(calls, key=lambda each: (each.track_id, each.ts, each.depth)):
        chain = rows.setdefault(each.track_id, [])
        del chain[each.depth :]
        chain.append(each.name.removeprefix("__main__."))
        found[tuple(chain)] += 1
    return found


@pytest.mark.parametrize("twin", TWINS)
def test_each_run_of_each_call_is_a_slice_in_its_caller(tmp_path: Path, twin: str) -> None:
    engine, done = run(tmp_path, PROGRAM, twin)
    assert done.stdout == "done\n"
    m = ("<module>", "main")
    assert paths(engine) == {
        m[:1]: 1,
        m: 1,
        (*m, "fails"): 1,
        (*m, "fails", "leaf"): 1,
        (*m, "numbers"): 3,
        (*m, "numbers", "leaf"): 1,
        (*m, "mine"): 1,
        (*m, "mine", "leaf"): 1,
        (*m, "both"): 2,
        (*m, "waits"): 4,
        (*m, "waits", "leaf"): 2,
        ("leaf",): 1,
    }
    error = "KeyError" if sys.version_info >= (3, 12) else "an exception"
    raised = {each.name: each.args["error"] for each in slices(engine) if "error" in (each.args or {})}
    assert raised == {"__main__.fails": error}


@pytest.mark.parametrize("twin", TWINS)
def test_depth_and_globs_choose(tmp_path: Path, twin: str) -> None:
    engine, _ = run(tmp_path, PROGRAM, twin, "--python-depth", "2")
    assert {path for path in paths(engine) if len(path) > 1} == {("<module>", "main"), ("<module>", "main", "mine")}
    engine, _ = run(tmp_path, PROGRAM, twin, "--python-include", "asyncio", "--python-exclude", "asyncio.*_events")
    modules = {each.name.rpartition(".run")[0] for each in slices(engine) if each.name.endswith(".run")}
    assert modules == {"asyncio.runners", "asyncio.runners.Runner"}
    assert not any(each.name.startswith(("__main__", "asyncio.base_events")) for each in slices(engine))


@pytest.mark.parametrize("twin", TWINS)
@pytest.mark.parametrize("least", [[], ["--python-min", "0.001us"]])  # with it, begins wait
def test_each_call_says_where_its_function_is_if_asked(tmp_path: Path, twin: str, least: list[str]) -> None:
    """Two of one name, too, and at the begin of one that an exception leaves, which is told at its end."""
    (tmp_path / "model.py").write_text(
        "made = [lambda: 1,\n  lambda: 2]\n\ndef fails():\n  raise KeyError('x')\n\ndef numbers():\n  yield 1\n"
    )
    program = (
        "import model\nfor each in model.made: each()\nlist(model.numbers())\ntry: model.fails()\nexcept KeyError: pass"
    )
    engine, _ = run(tmp_path, program, twin, "--python-lines", *least)
    found = [(each.name, (each.args or {}).get("source")) for each in slices(engine) if each.name.startswith("model.")]
    model = tmp_path / "model.py"
    lines = Counter((name, str(source).rpartition(":")[2]) for name, source in found if not name.endswith("<module>"))
    assert lines == {
        ("model.<lambda>", "1"): 1,
        ("model.<lambda>", "2"): 1,
        ("model.numbers", "7"): 2,  # a run to the yield, and one to its end
        ("model.fails", "4"): 1,
    }
    assert {str(source).rpartition(":")[0] for _, source in found} == {str(model)}
    [fails] = [each for each in slices(engine) if each.name == "model.fails"]
    assert (fails.args or {})["error"] == ("KeyError" if sys.version_info >= (3, 12) else "an exception")
    plain, _ = run(tmp_path, program, twin)
    assert not any("source" in (each.args or {}) for each in slices(plain))


@pytest.mark.parametrize("twin", TWINS)
def test_globs_that_match_nothing_are_told_with_what_was_called(tmp_path: Path, twin: str) -> None:
    (tmp_path / "model.py").write_text("def forward(): pass")
    program = "import gputrace, json, model\nwith gputrace.span('work'):\n  model.forward()\n  json.dumps({}, indent=1)"
    engine, done = run(tmp_path, program, twin, "--python-include", "modle*", "--python-include", "net")
    assert {each.name for each in slices(engine)} == {"work"}
    [line] = [line for line in done.stderr.splitlines() if "Python call" in line]
    assert line.startswith(
        "gputrace: no Python call is shown: none was of a module like modle* or net (--python-include). Some that were "
        "called: model, __main__, "
    )


@pytest.mark.parametrize("twin", TWINS)
def test_globs_that_match_in_one_process_of_several_are_no_news(tmp_path: Path, twin: str) -> None:
    (tmp_path / "model.py").write_text("def forward(): pass\nforward()")
    program = "import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'import model'], check=True)"
    engine, done = run(tmp_path, program, twin, "--python-include", "model")
    assert "model.forward" in {each.name for each in slices(engine)}
    assert "Python call" not in done.stderr


@pytest.mark.parametrize("twin", TWINS)
def test_short_calls_are_left_out_unless_something_is_recorded_in_them(tmp_path: Path, twin: str) -> None:
    engine, done = run(tmp_path, PROGRAM, twin, "--python-min", "1h")
    m = ("<module>", "main")
    shown = {m[:1]: 1, m: 1, (*m, "mine"): 1}
    if sys.version_info >= (3, 12):
        shown[(*m, "fails")] = 1  # `raise KeyError` is in it
    assert paths(engine) == shown
    calls = 18  # with those that are shown, and without the span
    assert f" {calls - len(shown) + 1} shorter calls left out" in done.stderr


@pytest.mark.parametrize("twin", TWINS)
def test_a_forked_child_shows_what_it_calls(tmp_path: Path, twin: str) -> None:
    engine, _ = run(tmp_path, FORKS, twin)
    assert paths(engine) == {("<module>",): 1, ("<module>", "parent"): 1, ("child",): 1}


@pytest.mark.parametrize("twin", TWINS)
def test_a_profiler_of_the_programs_own_is_left_alone(tmp_path: Path, twin: str) -> None:
    if sys.version_info >= (3, 12):
        held = "for tool in (2, 3, 4): sys.monitoring.use_tool_id(tool, 'theirs')"
        still = "[sys.monitoring.get_tool(tool) for tool in (2, 3, 4)] == ['theirs'] * 3"
    else:
        held, still = "mine = lambda *_: None; sys.setprofile(mine)", "sys.getprofile() is mine"
    text = f"""
import sys
{held}
import gputrace
with gputrace.trace("own.pftrace", "host", instrument=["python.calls"]):
    def f(): pass
    f()
    with gputrace.span("x"): pass
print({still})
"""
    command = [sys.executable, "-c", text]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(twin), cwd=tmp_path, timeout=60)
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr
    engine = Engine(tmp_path / "own.pftrace")
    assert [each.name for each in slices(engine)] == ["x"]


TREES = st.recursive(st.just(()), lambda inner: st.lists(inner, max_size=4).map(tuple), max_leaves=25)


def calls_down(tree: tuple[object, ...]) -> None:
    for each in tree:
        calls_down(each)  # type: ignore[arg-type]


def model(tree: tuple[object, ...], depth: int = 0) -> Counter[int]:
    found = Counter([depth])
    for each in tree:
        found += model(each, depth + 1)  # type: ignore[arg-type]
    return found


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(TREES)
def test_any_tree_of_calls_is_the_tree_that_was_called(tmp_path: Path, tree: tuple[object, ...]) -> None:
    if sys.version_info < (3, 12) and sys.getprofile() is not None:
        pytest.fail("something profiles this process: run the tests without it")
    with gputrace.trace(tmp_path / "a.pftrace", "host", instrument=["python.calls"]):
        calls_down(tree)
    engine = Engine(tmp_path / "a.pftrace")
    assert_clean(engine)
    found = Counter(each.depth for each in slices(engine) if each.name.endswith(".calls_down"))
    assert found == model(tree)
