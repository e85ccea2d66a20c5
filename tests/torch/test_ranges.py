"""Ranges that stand in a program already: they show, and torch's own ranges do not show beside them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.profiler import record_function

import gputrace
from tests.engine import Engine, Slice, assert_clean, slices
from tests.recorded import enclosing

nvtx: Any = torch.cuda.nvtx


class Recorded:
    def __init__(self, folder: Path) -> None:
        self._output = folder / "t.pftrace"
        self._recording = gputrace.trace(self._output, "host", instrument=["torch.ranges"])

    def __enter__(self) -> Recorded:
        self._recording.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._recording.__exit__(*error)
        engine = Engine(self._output)
        assert_clean(engine)
        self.slices = slices(engine)
        assert self._recording.summary is not None
        self.told = self._recording.summary.told

    def drawn(self) -> list[tuple[str, str | None]]:
        """Each slice's name and its parent's."""
        return [(each.name, _name(enclosing(self.slices, each))) for each in self.slices]


def _name(each: Slice | None) -> str | None:
    return None if each is None else each.name


def test_record_function_as_a_block_a_decorator_and_across_an_error(tmp_path: Path) -> None:
    @record_function("decorated")
    def work() -> None:
        with record_function("inner"):
            raise LookupError

    with Recorded(tmp_path) as recorded:
        with record_function("outer"), pytest.raises(LookupError):
            work()
        with record_function("after"):
            pass
    assert recorded.drawn() == [("outer", None), ("decorated", "outer"), ("inner", "decorated"), ("after", None)]


def test_torchs_own_ranges_do_not_show(tmp_path: Path) -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    with Recorded(tmp_path) as recorded, record_function("mine"):
        for _ in torch.utils.data.DataLoader(torch.arange(2)):
            optimizer.step()
            optimizer.zero_grad()
    assert recorded.drawn() == [("mine", None)]


def test_a_scripted_function_opens_its_ranges_as_ever(tmp_path: Path) -> None:
    with Recorded(tmp_path) as recorded, record_function("mine"):
        scripted = torch.jit.script(ranged)
        assert scripted(torch.ones(2)).tolist() == [2.0, 2.0]
    assert recorded.drawn() == [("mine", None)]


def ranged(x: torch.Tensor) -> torch.Tensor:
    with torch.autograd.profiler.record_function("scripted"):
        return x + 1


def test_a_profiler_sees_what_it_saw(tmp_path: Path) -> None:
    with Recorded(tmp_path), torch.profiler.profile() as profiler, record_function("mine"):
        torch.ones(2) + 1
    assert "mine" in {each.key for each in profiler.key_averages()}


def test_ranges_of_a_generator_nest_in_its_own(tmp_path: Path) -> None:
    def batches() -> Any:
        with record_function("epoch"):
            yield 1
            yield 2

    with Recorded(tmp_path) as recorded:
        for _ in batches():
            with record_function("step"):
                pass
    assert {name for name, _ in recorded.drawn()} == {"epoch", "step"}
    assert [each.dur >= 0 for each in recorded.slices] == [True] * 3


class Nvtx(SimpleNamespace):
    """What torch calls where it was built with CUDA."""

    def __init__(self) -> None:
        self.depth = 0
        self.calls: list[Any] = []

    def rangePushA(self, message: str) -> int:
        self.calls.append(message)
        self.depth += 1
        return self.depth - 1

    def rangePop(self) -> int:
        self.depth -= 1
        return self.depth

    def rangeStartA(self, message: str) -> int:
        self.calls.append(message)
        return 7

    def rangeEnd(self, number: int) -> None:
        self.calls.append(number)

    def markA(self, message: str) -> None:
        self.calls.append(message)


def test_nvtx_ranges_show_and_still_reach_nvtx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Nvtx()
    monkeypatch.setattr(nvtx, "_nvtx", real)
    with Recorded(tmp_path) as recorded:
        assert nvtx.range_push("outer") == 0
        with nvtx.range("inner {}", 3):
            nvtx.mark("here")
        assert nvtx.range_pop() == 0
        number = nvtx.range_start("apart")
        nvtx.range_end(number)
    assert real.calls == ["outer", "inner 3", "here", "apart", 7]
    assert sorted(recorded.drawn(), key=str) == [
        ("apart", None),
        ("here", "inner 3"),
        ("inner 3", "outer"),
        ("outer", None),
    ]


def test_where_there_is_no_nvtx_it_fails_as_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Missing:
        def __getattr__(self, name: str) -> Any:
            raise RuntimeError("NVTX functions not installed")

    monkeypatch.setattr(nvtx, "_nvtx", Missing())
    with Recorded(tmp_path) as recorded, record_function("mine"):
        for call in (lambda: nvtx.range_push("a"), nvtx.range_pop, lambda: nvtx.range_start("b")):
            with pytest.raises(RuntimeError, match="NVTX functions not installed"):
                call()
    assert recorded.drawn() == [("mine", None)]
    assert recorded.told == []
