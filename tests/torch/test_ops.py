"""`--torch-ops` and `torch.copies`: the operators that torch's profiler sees, nested, in a program as without us."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import gputrace
from gputrace import hot
from gputrace.instrument.torch import observer
from gputrace.instrument.torch.observer import copy_facts
from tests.engine import Engine, Slice, assert_clean, slices
from tests.recorded import assert_nested, enclosing
from tests.torch.models import train
from tests.torch.running import plain, record

PROGRAM = str(Path(__file__).with_name("models.py"))

FORKS = """
import os
import torch

torch.ones(2).sin()
if not (child := os.fork()):
    torch.ones(2).cos()
    raise SystemExit
assert os.waitpid(child, 0)[1] == 0
torch.ones(2).tan()
"""


RECORDINGS = """
import sys, threading
import gputrace, torch

def work():
    x = torch.ones(4, requires_grad=True)
    while not done.is_set():
        x.sin().sum().backward()

done = threading.Event()
threads = [threading.Thread(target=work) for _ in range(2)]
for thread in threads:
    thread.start()
for _ in range(10):
    recording = gputrace.trace(sys.argv[1], "host", instrument=["torch.ops"])
    with recording:
        torch.ones(2).cos()
    assert recording.summary.slices, recording.summary
    assert not recording.summary.told, recording.summary
gputrace.trace(sys.argv[1], "host", instrument=["torch.ops"]).start()
done.set() # and one is on at the interpreter's exit
"""


def recorded(tmp_path: Path, work: Callable[[], Any], *instruments: str) -> tuple[list[Slice], list[str]]:
    """What was drawn, and what was told."""
    recording = gputrace.trace(tmp_path / "t.pftrace", "host", instrument=instruments)
    with recording, gputrace.span("own"):
        work()
    engine = Engine(tmp_path / "t.pftrace")
    assert_clean(engine)
    drawn = slices(engine)
    assert_nested(drawn)
    assert recording.summary is not None
    return drawn, recording.summary.told


def step() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(inplace=True), torch.nn.Linear(8, 2))
    loss = model(torch.randn(4, 8)).square().mean()
    loss.backward()
    torch.optim.AdamW(model.parameters()).step()
    loss.item()


def test_every_operator_that_torchs_profiler_sees(tmp_path: Path) -> None:
    with torch.profiler.profile() as profiler:
        step()
    own = ("autograd::engine::", "Optimizer.", "ProfilerStep")
    seen = Counter(each.name for each in profiler.events() if not each.name.startswith(own))
    drawn, told = recorded(tmp_path, step, "torch.ops")
    above = [(each, enclosing(drawn, each)) for each in drawn if each.name != "own"]
    children = Counter((parent.ts, parent.depth) for _, parent in above if parent is not None)
    # The profiler takes one that is the only one within another of its name for that.
    kept = [
        each.name
        for each, parent in above
        if parent is None or parent.name != each.name or children[parent.ts, parent.depth] > 1
    ]
    assert Counter(kept) == seen
    assert told == []


def test_operators_nest_in_modules_and_in_one_another(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    weights = torch.ones(1, 2)
    drawn, _ = recorded(
        tmp_path, lambda: model(weights).sum().backward(), "torch.ops", "torch.modules", "torch.autograd"
    )

    def parent(name: str) -> str | None:
        above = enclosing(drawn, next(each for each in drawn if each.name == name))
        return above and above.name

    assert parent("aten::addmm") == "aten::linear"
    assert parent("aten::linear") == "Sequential.0"
    assert parent("AddmmBackward0") == parent("SumBackward0") == "backward"
    assert parent("aten::mm") == "AddmmBackward0"


def test_each_thread_has_its_own(tmp_path: Path) -> None:
    def work() -> None:
        for name in ("one", "two"):
            thread = threading.Thread(target=lambda: torch.ones(2).sin(), name=name)
            thread.start()
            thread.join()

    drawn, _ = recorded(tmp_path, work, "torch.ops")
    assert {each.track[-1].split()[0] for each in drawn if each.name == "aten::sin"} == {"one", "two"}


def test_copies_alone_with_what_they_are(tmp_path: Path) -> None:
    x = torch.ones(3, 4)

    def work() -> None:
        x.to(torch.float64)
        x.clone().copy_(x, non_blocking=True)
        x.sum().item()
        x.to("meta")

    drawn, _ = recorded(tmp_path, work, "torch.copies")
    found = [(each.name, each.args) for each in drawn if each.name != "own"]
    facts = {"from": "cpu", "to": "cpu", "non_blocking": False, "waits": False}
    assert ("aten::copy_", {"bytes": 96, **facts}) in found
    assert ("aten::_local_scalar_dense", {"bytes": 4, **facts}) in found
    assert ("aten::copy_", {"bytes": 48, **facts, "non_blocking": True}) in found
    assert {name for name, _ in found} == {"aten::copy_", "aten::_local_scalar_dense"}


@pytest.mark.parametrize(
    ("source", "target", "non_blocking", "waits"),
    [
        ("cpu", "cuda:0", False, True),
        ("cuda:1", "cpu", False, True),
        ("cuda:1", "cpu", True, False),
        ("cuda:0", "cuda:1", False, False),
        ("cuda:0", "cuda:0", False, False),
    ],
)
def test_which_copies_have_the_host_wait(source: str, target: str, non_blocking: bool, waits: bool) -> None:
    facts = {"bytes": 8, "from": source, "to": target, "non_blocking": non_blocking, "waits": waits}
    assert copy_facts(8, source, target, non_blocking) == facts
    assert "bytes" not in copy_facts(-1, source, target, non_blocking)


def test_tensors_of_the_programs_own_kind_are_not_asked(tmp_path: Path) -> None:
    class Own(torch.Tensor):
        @classmethod
        def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            asked.append(str(func))
            return torch.ones(2)

    asked: list[str] = []

    def work() -> None:
        own = torch.Tensor._make_wrapper_subclass(Own, (2,), dispatch_device=True)  # type: ignore[attr-defined]
        own.sin()

    work()
    expected = list(asked)
    asked.clear()
    drawn, told = recorded(tmp_path, work, "torch.ops")
    assert (asked, told) == (expected, [])
    assert "aten::sin" in {each.name for each in drawn}


def test_a_forked_child_shows_its_own(tmp_path: Path) -> None:
    program = tmp_path / "forks.py"
    program.write_text(FORKS)
    record(tmp_path / "t.pftrace", sys.executable, str(program), options=["--torch-ops"])
    found = {each.name: each.track[0] for each in slices(Engine(tmp_path / "t.pftrace"))}
    assert found["aten::sin"] == found["aten::tan"] != found["aten::cos"]


def test_one_that_was_seen_before_takes_no_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: Counter[str] = Counter()

    def span(name: str, *args: Any, **facts: Any) -> Any:
        asked[name] += 1
        return hot.span(name, *args, **facts)

    monkeypatch.setattr(observer, "hot", SimpleNamespace(span=span, OPERATORS=hot.OPERATORS))
    x = torch.ones(2)
    drawn, _ = recorded(tmp_path, lambda: [x.sin() for _ in range(200)], "torch.ops")
    assert sum(each.name == "aten::sin" for each in drawn) == 200
    assert asked["aten::sin"] == (1 if hot.TWIN == "compiled" else 200)


def test_they_nest_in_spans_of_tasks(tmp_path: Path) -> None:
    x = torch.ones(2)

    async def work() -> None:
        x.sin()
        with gputrace.span("of a task"):
            x.cos()

    drawn, _ = recorded(tmp_path, lambda: [asyncio.run(work()) for _ in range(2)], "torch.ops")
    above = [enclosing(drawn, each) for each in drawn if each.name == "aten::cos"]
    assert [each and each.name for each in above] == ["of a task"] * 2


@pytest.mark.parametrize("twin", ["compiled", "pure"])
def test_recordings_begin_and_end_while_they_run(tmp_path: Path, twin: str) -> None:
    program = tmp_path / "recordings.py"
    program.write_text(RECORDINGS)
    environment = {**os.environ, "GPUTRACE_PURE": "1" if twin == "pure" else ""}
    done = subprocess.run([sys.executable, str(program), str(tmp_path / "t.pftrace")], env=environment, timeout=280)
    assert done.returncode == 0


# --- nothing changes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["in-place", "lstm", "checkpoint, re-entrant"])
def test_models_come_to_the_same(tmp_path: Path, name: str) -> None:
    expected = train(name, 2)
    found: list[Any] = []
    _, told = recorded(tmp_path, lambda: found.append(train(name, 2)), "torch.ops", "torch.modules")
    assert (found, told) == ([expected], [])


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_compiled_models_come_to_the_same(tmp_path: Path) -> None:
    names = ["compiled", "compiled by inductor"]
    expected = [json.loads(line) for line in plain(sys.executable, PROGRAM, *names).splitlines()]
    said, _ = record(tmp_path / "t.pftrace", sys.executable, PROGRAM, *names, options=["--torch-ops"])
    assert [json.loads(line) for line in said.splitlines()] == expected
    assert [each["breaks"] for each in expected] == [0, 0]


# --- what goes wrong --------------------------------------------------------------------------------------------------


def test_a_fault_ends_it_and_not_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any, **__: Any) -> Any:
        raise LookupError("made to fail")

    monkeypatch.setattr(observer, "hot", SimpleNamespace(span=fails, OPERATORS=None))
    found: list[Any] = []
    drawn, [told] = recorded(tmp_path, lambda: found.append(train("in-place", 1)), "torch.ops")
    assert found == [train("in-place", 1)]
    assert "torch.ops does not work here" in told
    assert "made to fail" in told
    assert [each.name for each in drawn] == ["own"]


def test_what_a_signals_handler_raises_inside_is_the_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any, **__: Any) -> Any:
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(observer, "hot", SimpleNamespace(span=interrupted, OPERATORS=None))

    def work() -> None:
        with pytest.raises(KeyboardInterrupt):
            [torch.ones(2) for _ in range(1000)]
        torch.ones(2).sin()

    drawn, told = recorded(tmp_path, work, "torch.ops")
    assert "aten::sin" in {each.name for each in drawn}
    assert told == []


@pytest.mark.parametrize("name", ["torch.ops", "torch.copies"])
@pytest.mark.parametrize(
    ("compiler", "path", "why"),
    [
        ("", "/nowhere", "by a C++ compiler: install one"),
        ("false", os.environ.get("PATH", ""), "cannot build it for torch"),
    ],
)
def test_where_it_cannot_be_built_that_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, compiler: str, path: str, why: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CXX", compiler)
    monkeypatch.setenv("PATH", path)
    found: list[Any] = []
    drawn, [told] = recorded(tmp_path, lambda: found.append(torch.ones(2).tolist()), name)
    assert found == [[1.0, 1.0]]
    assert f"{name} does not work here" in told
    assert why in told
    assert [each.name for each in drawn] == ["own"]
    assert os.listdir(tmp_path / "gputrace") == []


def test_nothing_is_loaded_from_a_folder_that_others_can_write_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "gputrace").mkdir()
    (tmp_path / "gputrace").chmod(0o777)
    _, [told] = recorded(tmp_path, lambda: torch.ones(2), "torch.ops")
    assert "is not this user's alone, so nothing is loaded from it" in told
