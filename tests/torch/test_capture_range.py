"""`--capture-range` by torch's own ways to say it: its profiler of CUDA, and its copy of NVTX's ranges."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import gputrace
from gputrace.shards import ShardFolder
from tests.recorded import recording
from tests.torch.test_ranges import Nvtx

nvtx: Any = torch.cuda.nvtx


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str | None]]:
    create = ShardFolder.create
    chosen = ["torch.cuda", "torch.ranges"]
    monkeypatch.setattr(ShardFolder, "create", lambda *args, **kwargs: create(*args, **kwargs, instruments=chosen))

    def record(work: Callable[[], None], asked: str, told: str = "") -> list[str | None]:
        options = {"capture_range": asked, "region": f"--capture-range {asked}"}
        with recording(tmp_path, "host", options=options) as run:
            work()
        assert [line for line in run.report["told"] if told not in line or not told] == []
        assert len(run.report["told"]) == bool(told)
        return [each.name for each in run.host]

    return record


def mark(name: str) -> None:
    with gputrace.span(name):
        pass


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """`torch._C._cudart`, as a torch with CUDA has it."""
    made: Any = ModuleType("_cudart")
    made.said = []
    made.cudaProfilerStart = lambda: made.said.append("start") or 0
    made.cudaProfilerStop = lambda: made.said.append("stop") or 0
    made.cudaError = type("cudaError", (), {"success": 0})
    monkeypatch.setattr(torch._C, "_cudart", made, raising=False)
    monkeypatch.setattr(torch.cuda, "_cudart", made)
    monkeypatch.setattr(torch.cuda, "_lazy_init", lambda: None)
    return made


def test_between_the_start_and_the_stop_of_cudas_profiler(recorded: Any, runtime: Any) -> None:
    before = runtime.cudaProfilerStart
    profiler: Any = torch.cuda.profiler

    def work() -> None:
        mark("before")
        profiler.start()
        profiler.start()
        mark("started")
        profiler.stop()
        mark("stopped")
        profiler.stop()
        runtime_of_program: Any = torch.cuda.cudart()
        assert runtime_of_program.cudaProfilerStart() == 0
        mark("started by the runtime")
        runtime_of_program.cudaProfilerStop()
        with profiler.profile():
            mark("in a block")
        mark("behind")

    assert recorded(work, "cuda-profiler") == ["started", "started by the runtime", "in a block"]
    assert runtime.said == ["start", "start", "stop", "stop", "start", "stop", "start", "stop"]
    assert runtime.cudaProfilerStart is before


def test_a_start_that_fails_starts_nothing(recorded: Any, runtime: Any) -> None:
    def fails() -> int:
        raise LookupError("no profiler")

    runtime.cudaProfilerStart = fails

    def work() -> None:
        with pytest.raises(LookupError, match="no profiler"):
            torch.cuda.profiler.start()  # type: ignore[no-untyped-call]
        mark("not started")

    assert recorded(work, "cuda-profiler") == []


def test_a_fault_as_it_is_told_ends_the_patch_alone(
    recorded: Any, runtime: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> None:
        raise LookupError("made to fail")

    monkeypatch.setattr("gputrace.regions.Regions.profile", fails)

    def work() -> None:
        for _ in range(2):
            with torch.cuda.profiler.profile():  # type: ignore[no-untyped-call]
                mark("inside")

    assert recorded(work, "cuda-profiler", "torch.cuda does not work here") == []
    assert runtime.said == ["start", "stop"] * 2


def test_inside_its_nvtx_ranges_of_that_name(recorded: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvtx, "_nvtx", Nvtx())

    def work() -> None:
        with nvtx.range("other"):
            mark("outside")
            with nvtx.range("part"), nvtx.range("inner"):
                mark("inside")
            mark("behind")
        number = nvtx.range_start("part")
        mark("started")
        nvtx.range_end(number)
        mark("ended")

    expected = ["part", "inner", "inside", "part", "started"]
    assert sorted(map(str, recorded(work, "nvtx:part"))) == sorted(expected)


def test_a_fault_of_ours_is_told_and_the_program_is_unharmed(recorded: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Nvtx()
    monkeypatch.setattr(nvtx, "_nvtx", real)

    def fails(*_: Any) -> None:
        raise LookupError("made to fail")

    monkeypatch.setattr("gputrace.instrument.capturing.Ranges.span", fails)

    def work() -> None:
        with nvtx.range("part"):
            mark("inside")

    assert recorded(work, "nvtx:part", "torch.ranges does not work here") == []
    assert (real.calls, real.depth) == (["part"], 0)
