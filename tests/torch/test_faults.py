"""A patch that fails, as it is applied or at a call, leaves the program as it was: for each patch that there is."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest
import torch
import torch.distributed as dist

import gputrace
from gputrace.instrument.registry import PATCHES
from gputrace.instrument.site import Site
from tests.torch.models import train

#: What asks torch without changing it; their own tests make them fail: test_streams.py and test_ops.py.
CHANGE_NOTHING = ("torch.streams", "torch.ops", "torch.copies")
#: What a patch waits for to be asked for, besides its name.
OPTIONS = {"torch.steps": {"first_step": 0}}

NAMES = [name for name, patch in PATCHES.items() if patch.module.partition(".")[0] == "torch"]


def program() -> list[Any]:
    """Comes by every function that a patch changes, and says what came of it."""
    said: list[Any] = [train("in-place", 1)["digest"]]
    loader = torch.utils.data.DataLoader(torch.arange(8), batch_size=4)
    with torch.profiler.record_function("mine"):
        said.append([batch.tolist() for batch in loader])
    weight = torch.ones(3, requires_grad=True)
    said.append(torch.autograd.grad((weight * 2).sum(), weight)[0].tolist())
    total = torch.ones(3)
    dist.all_reduce(total, async_op=True).wait()
    said.append(total.tolist())
    try:
        torch.cuda.synchronize()
    except (AssertionError, RuntimeError) as error:
        said.append(repr(error))
    return said


@pytest.fixture(scope="module")
def expected() -> Iterator[list[Any]]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield program()
    dist.destroy_process_group()


@pytest.fixture(autouse=True)
def options(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = {key: value for options in OPTIONS.values() for key, value in options.items()}
    monkeypatch.setattr("gputrace.api.counters_options", lambda *_: wanted)


def run(tmp_path: Path, name: str) -> tuple[list[Any], list[str]]:
    recording = gputrace.trace(tmp_path / "t.pftrace", "host", instrument=f"{name} {PATCHES[name].needs}")
    with recording, gputrace.span("own"):
        said = program()
    assert recording.summary is not None
    return said, recording.summary.told


@pytest.mark.parametrize("name", NAMES)
def test_it_fails_as_it_is_applied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, expected: list[Any], name: str
) -> None:
    module, _, function = PATCHES[name].where.partition(":")
    apply: Callable[[Site], None] = getattr(importlib.import_module(module), function)

    def fails(site: Site) -> None:
        apply(site)
        raise LookupError("made to fail")

    monkeypatch.setattr(f"{module}.{function}", fails)
    said, told = run(tmp_path, name)
    assert said == expected
    assert [line for line in told if f"{name} does not work here" in line and "made to fail" in line] == told
    assert len(told) == 1


@pytest.mark.parametrize("name", [name for name in NAMES if name not in CHANGE_NOTHING])
def test_it_fails_at_a_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, expected: list[Any], name: str) -> None:
    swap = Site.swap
    calls = []

    def swap_with_a_fault(site: Site, function: Any, around: Any, returned: Any = None) -> None:
        def fails(*args: Any, **kwargs: Any) -> Any:
            calls.append(site)
            raise LookupError("made to fail")

        swap(site, function, fails if site.patch.name == name else around, returned)

    monkeypatch.setattr(Site, "swap", swap_with_a_fault)
    said, told = run(tmp_path, name)
    assert said == expected
    assert len(calls) == 1  # the first fault ended the patch
    assert [line for line in told if f"{name} does not work here" in line and "made to fail" in line] == told
    assert len(told) == 1


def test_nothing_is_left_of_any_patch(tmp_path: Path, expected: list[Any]) -> None:
    def codes() -> dict[str, Any]:
        found = {}
        for module in [module for name, module in sys.modules.items() if name.partition(".")[0] == "torch"]:
            for name, value in list(vars(module).items()):
                inner = vars(value).items() if type(value) is type else [("", value)]
                functions = {key: function for key, function in inner if isinstance(function, FunctionType)}
                found |= {f"{module.__name__}.{name}.{key}": each.__code__ for key, each in functions.items()}
        return found

    before = codes()
    with gputrace.trace(tmp_path / "t.pftrace", "host", instrument=NAMES):
        during = codes()
        program()
    after = codes()
    assert sum(before[key] is not during[key] for key in before) >= len(NAMES)
    assert [key for key in before if key in after and before[key] is not after[key]] == []
