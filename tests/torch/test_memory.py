"""What the counters of PyTorch's memory ask of PyTorch is there, and asks nothing of a program without a GPU."""

from __future__ import annotations

import inspect
from typing import Any

import torch

from gputrace.sampling import TorchMemory


def test_the_functions_asked_are_torchs() -> None:
    cuda = torch.cuda
    assert "include_traces" in inspect.signature(cuda.memory_snapshot).parameters
    assert list(inspect.signature(cuda.memory_stats_as_nested_dict).parameters) == ["device"]
    assert cuda.is_initialized() is False
    assert not inspect.signature(cuda.device_count).parameters
    assert not inspect.signature(cuda.get_allocator_backend).parameters


def test_a_program_that_uses_no_gpu_is_asked_nothing() -> None:
    given: list[Any] = []
    told: list[str] = []
    TorchMemory(lambda *value: given.append(value), told.append).sample()
    assert (given, told) == ([], [])
    assert not torch.cuda.is_initialized()
