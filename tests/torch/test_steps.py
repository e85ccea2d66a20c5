"""`--steps` in a program that counts none itself: an optimizer's step ends one, whatever the program does around it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import gputrace
from gputrace.regions import STEP
from gputrace.shards import ShardFolder
from tests.recorded import Run, recording
from tests.torch.running import record

TRAIN = """
import torch
weight = torch.nn.Parameter(torch.ones(2))
optimizer = torch.optim.SGD([weight], lr=0.1)
for n in range(6):
    with torch.profiler.record_function(f"round {n}"):
        weight.square().sum().backward()
        if n % 2:
            optimizer.step()
            optimizer.zero_grad()
"""


def make(kind: Any = torch.optim.SGD) -> Any:
    weight = torch.nn.Parameter(torch.ones(2))
    weight.grad = torch.ones(2)
    return kind([weight], lr=0.1)


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str | None]]:
    create = ShardFolder.create
    monkeypatch.setattr(
        ShardFolder, "create", lambda *args, **kwargs: create(*args, **kwargs, instruments=["torch.steps"])
    )

    def work(*rounds: Callable[[], Any], first: int = 1, end: int = 3) -> list[str | None]:
        """Each in a span of its number; those of steps ``first`` to ``end`` are recorded."""
        run: Run
        with recording(tmp_path, "host", options={"first_step": first, "end_step": end, "region": "--steps"}) as run:
            for n, each in enumerate(rounds):
                with gputrace.span(str(n)):
                    each()
        assert run.report["told"] == []
        return [each.name for each in run.host if each.name != STEP]

    return work


def test_the_optimizers_step_is_the_step_and_not_the_round(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(TRAIN)
    _, told = record(tmp_path / "t.json", sys.executable, str(program), options=["--steps", "1:2"])
    drawn = gputrace.read(tmp_path / "t.json").slices
    # Rounds 0 and 1 accumulate into step 0, which ends inside round 1.
    names = ["round 2", "backward", "round 3", "backward", "SGD.step"]
    assert [drawn.names[row] for row in drawn.ts_ns.argsort(kind="stable")] == ["SGD.zero_grad", *names]
    _, told = record(tmp_path / "none.json", sys.executable, str(program), options=["--steps", "3:"])
    assert "made 3 steps, so --steps 3: recorded nothing" not in told
    _, told = record(tmp_path / "none.json", sys.executable, str(program), options=["--steps", "4:"])
    assert "a process made 3 steps, so --steps 4: recorded nothing of it" in told


def test_the_first_of_several_decides(recorded: Any) -> None:
    first, second = make(), make(torch.optim.AdamW)
    assert recorded(*[lambda: [first.step(), second.step()]] * 4) == ["1", "2"]
    assert recorded(*[lambda: [second.step(), second.step(), first.step()]] * 4, end=5) == ["1", "2"]


def test_another_takes_over_once_the_first_is_gone(recorded: Any) -> None:
    kept = [make()]

    def last() -> None:
        kept[0].step()
        kept[:] = [make()]

    assert recorded(lambda: kept[0].step(), last, *[lambda: kept[0].step()] * 3, end=4) == ["1", "2", "3"]


def test_the_programs_own_count_stands(recorded: Any) -> None:
    optimizer = make()

    def round() -> None:
        for _ in range(2):
            optimizer.step()
        gputrace.step()

    assert recorded(gputrace.step, *[round] * 4) == ["1", "2"]
    # Only the rounds before its first call can be taken for the optimizer's.
    assert recorded(*[round] * 4) == ["1", "2"]


def test_a_step_within_a_step_is_part_of_it(recorded: Any) -> None:
    inner = make()

    class Wraps(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            inner.step()
            inner.step()

    outer = make(Wraps)
    assert recorded(*[outer.step] * 4) == ["1", "2"]


def test_a_step_that_fails_is_none(recorded: Any) -> None:
    optimizer = make()

    def fails() -> None:
        with pytest.raises(ZeroDivisionError):
            optimizer.step(lambda: 1 / 0)

    assert recorded(fails, optimizer.step, fails, optimizer.step, optimizer.step, end=2) == ["2", "3"]


def test_a_step_that_the_scaler_skips_counts(recorded: Any) -> None:
    optimizer = make()
    weight = optimizer.param_groups[0]["params"][0]
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)

    def round(factor: float) -> Callable[[], None]:
        def run() -> None:
            optimizer.zero_grad()
            scaler.scale((weight * factor).sum()).backward()
            scaler.step(optimizer)
            scaler.update()

        return run

    before = weight.detach().clone()
    assert recorded(round(float("inf")), round(1.0), round(float("inf")), round(1.0), round(1.0)) == ["1", "2"]
    assert torch.allclose(weight, before - 0.3)
    disabled = torch.amp.GradScaler("cpu", enabled=False)
    assert recorded(*[lambda: disabled.step(optimizer)] * 4) == ["1", "2"]


def test_a_range_of_the_programs_that_is_called_so_is_none(recorded: Any) -> None:
    def round() -> None:
        with torch.profiler.record_function("Optimizer.step#mine"):
            pass

    assert recorded(*[round] * 2, first=0) == ["0", "1"]
