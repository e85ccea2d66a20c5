"""Counters of PyTorch's allocator, on a stand-in of its shape, which `tests/torch/test_memory.py` holds to torch's."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import gputrace
from gputrace import sampling
from gputrace.sampling import MOST_BLOCKS, REFUSALS, TorchMemory
from tests.recorded import recording


class Cuda:
    """`torch.cuda` with two GPUs, of which the program uses the second."""

    def __init__(self) -> None:
        self.initialized = True
        self.backend = "native"
        self.blocks = [(700, "active_allocated"), (40, "inactive"), (60, "inactive"), (500, "active_pending_free")]
        self.asked: list[str] = []
        self.fails: Exception | None = None

    def is_initialized(self) -> bool:
        return self.initialized

    def get_allocator_backend(self) -> str:
        return self.backend

    def device_count(self) -> int:
        return 2

    def memory_stats_as_nested_dict(self, device: int) -> dict[str, Any]:
        assert self.initialized
        self.asked.append(f"stats {device}")
        if self.fails is not None:
            raise self.fails

        def of(current: int) -> dict[str, Any]:
            pools = ("all", "small_pool", "large_pool")
            return {pool: dict.fromkeys(("current", "peak", "allocated", "freed"), current) for pool in pools}

        sizes = [(size, state) for size, state in self.blocks if device == 1]
        return {
            "allocated_bytes": of(sum(size for size, state in sizes if state == "active_allocated")),
            "reserved_bytes": of(sum(size for size, _ in sizes)),
            "active": of(sum(state != "inactive" for _, state in sizes)),
            "inactive_split": of(sum(state == "inactive" for _, state in sizes)),
            "segment": of(min(len(sizes), 1)),
        }

    def memory_snapshot(self, mempool_id: Any = None, include_traces: bool = True) -> list[dict[str, Any]]:
        assert not include_traces
        self.asked.append("snapshot")
        blocks = [{"size": size, "state": state} for size, state in self.blocks]
        return [{"device": 0, "blocks": []}, {"device": 1, "blocks": blocks}]


class Asking:
    def __init__(self) -> None:
        self.given: list[tuple[str, Any]] = []
        self.told: list[str] = []
        self.memory = TorchMemory(
            lambda name, ts, value, unit, device: self.given.append((name, value)), self.told.append
        )

    def sample(self) -> list[tuple[str, Any]]:
        self.given.clear()
        self.memory.sample()
        return list(self.given)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    made = Cuda()
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=made))  # type: ignore[arg-type]
    return made


def test_what_is_held_on_each_gpu_in_use(cuda: Cuda) -> None:
    asking = Asking()
    expected = [
        ("torch allocated, GPU 1", 700),
        ("torch reserved, GPU 1", 1300),
        ("torch largest free block, GPU 1", 60),
    ]
    assert asking.sample() == expected
    cuda.blocks = [(1300, "active_allocated")]
    assert asking.sample()[2] == ("torch largest free block, GPU 1", 0)
    assert asking.told == []


def test_nothing_is_asked_before_the_program_starts_cuda(cuda: Cuda, monkeypatch: pytest.MonkeyPatch) -> None:
    asking = Asking()
    cuda.initialized = False
    assert asking.sample() == []
    for half_imported in [SimpleNamespace(), SimpleNamespace(cuda=SimpleNamespace())] * REFUSALS:
        monkeypatch.setitem(sys.modules, "torch", half_imported)  # type: ignore[arg-type]
        assert asking.sample() == []
    monkeypatch.delitem(sys.modules, "torch")
    assert asking.sample() == []
    assert cuda.asked == asking.told == []
    cuda.initialized = True
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))  # type: ignore[arg-type]
    assert len(asking.sample()) == 3


def test_a_gpu_that_nothing_was_allocated_on_has_no_row(cuda: Cuda) -> None:
    cuda.blocks = []
    assert Asking().sample() == []
    assert cuda.asked == ["stats 0", "stats 1"]


def test_blocks_are_not_listed_where_there_are_many(cuda: Cuda) -> None:
    asking = Asking()
    cuda.blocks = [(1, "active_allocated")] * MOST_BLOCKS
    assert [name for name, _ in asking.sample()] == ["torch allocated, GPU 1", "torch reserved, GPU 1"]
    assert "snapshot" not in cuda.asked
    cuda.blocks.pop()
    assert len(asking.sample()) == 3


def test_blocks_are_listed_no_more_once_that_takes_long(cuda: Cuda, monkeypatch: pytest.MonkeyPatch) -> None:
    asking = Asking()
    now = iter(range(0, 1 << 60, sampling.LONGEST_LIST_NS + 1))
    monkeypatch.setattr(sampling, "now_ns", lambda: next(now))
    assert len(asking.sample()) == 3
    assert len(asking.sample()) == 2
    assert [line for line in asking.told if "largest free block is shown no more" in line] == asking.told != []


def test_an_allocator_of_another_kind_is_not_asked(cuda: Cuda) -> None:
    asking = Asking()
    cuda.backend = "cudaMallocAsync"
    for _ in range(2):
        assert asking.sample() == []
    assert asking.told == ["no counters of PyTorch's memory: its allocator is cudaMallocAsync"]
    assert cuda.asked == []


def test_one_that_refuses_is_asked_no_more(cuda: Cuda) -> None:
    asking = Asking()
    cuda.fails = RuntimeError("no stats")
    for _ in range(REFUSALS + 2):
        assert asking.sample() == []
    assert len(cuda.asked) == REFUSALS
    assert asking.told == ["no counters of PyTorch's memory: RuntimeError: no stats"]


def test_they_are_drawn_beside_the_processs_own(tmp_path: Path, cuda: Cuda) -> None:
    with recording(tmp_path, "host", options={"counters_ns": 10_000_000}) as run, gputrace.span("work"):
        end_s = time.monotonic() + 30
        while cuda.asked.count("snapshot") < 2:
            assert time.monotonic() < end_s
            time.sleep(0.001)
    values = {track[-1]: {value for _, value in samples} for track, samples in run.counters.items()}
    found = {name: values[name] for name in values if name.startswith("torch ")}
    assert found == {
        "torch allocated, GPU 1": {700},
        "torch reserved, GPU 1": {1300},
        "torch largest free block, GPU 1": {60},
    }
