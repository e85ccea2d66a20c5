"""PyTorch's own ways to start processes: torchrun's ranks, over gloo, and DataLoader's workers."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from tests.engine import Engine, assert_clean, slices
from tests.torch.running import record

RANKS = """
import os
import gputrace
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
ones = torch.ones(1000)
for step in range(20):
    with gputrace.span(f"step {step}", rank=rank):
        with gputrace.span("all_reduce"):
            dist.all_reduce(ones)
assert ones[0].item() == 2.0**20, ones[0]
dist.destroy_process_group()
"""

LOADER = """
import gputrace
import torch
from torch.utils.data import DataLoader, Dataset

class Squares(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        with gputrace.span("fetch", index=index):
            return torch.tensor(float(index * index))

if __name__ == "__main__":
    loader = DataLoader(Squares(), batch_size=8, num_workers=2, multiprocessing_context=METHOD)
    with gputrace.span("epoch"):
        total = sum(float(batch.sum()) for batch in loader)
    assert total == sum(i * i for i in range(64)), total
"""


@pytest.mark.parametrize("suffix", ["pftrace", "json"])
def test_two_ranks_of_torchrun(tmp_path: Path, suffix: str) -> None:
    program = tmp_path / "train.py"
    program.write_text(RANKS)
    output = tmp_path / f"t.{suffix}"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    words = ("--nproc-per-node", "2", "--master-addr", "127.0.0.1", "--master-port", port, str(program))
    record(output, sys.executable, "-m", "torch.distributed.run", *words)
    engine = Engine(output)
    assert_clean(engine)
    drawn = slices(engine)
    for rank in (0, 1):
        mine = [each for each in drawn if each.name.startswith("step ") and each.args["rank"] == rank]
        assert [each.name for each in mine] == [f"step {step}" for step in range(20)]
        (process,) = {each.track[0] for each in mine}
        assert process.startswith(f"rank {rank} · "), process
    assert sum(each.name == "all_reduce" and each.depth == 1 and each.dur >= 0 for each in drawn) == 40


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_of_a_data_loader(tmp_path: Path, method: str) -> None:
    program = tmp_path / "load.py"
    program.write_text(LOADER.replace("METHOD", repr(method)))
    output = tmp_path / "t.pftrace"
    record(output, sys.executable, str(program))
    engine = Engine(output)
    assert_clean(engine)
    drawn = slices(engine)
    assert sorted(each.args["index"] for each in drawn if each.name == "fetch") == list(range(64))
    assert sum(each.name == "epoch" for each in drawn) == 1
