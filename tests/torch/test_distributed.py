"""Two ranks over gloo: DDP comes to the same to the last bit, and collectives show with bytes, group and rank."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine import Engine, Slice, assert_clean, slices
from tests.recorded import assert_nested, enclosing
from tests.torch.running import plain, record, torchrun

PROGRAM = """
import hashlib
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.set_num_threads(1)
torch.manual_seed(0)
model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 8), nn.ReLU(inplace=True), nn.Linear(8, 4)))
optimizer = torch.optim.AdamW(model.parameters())
torch.manual_seed(rank)
digest = hashlib.sha256()
for step in range(3):
    loss = model(torch.randn(4, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    for parameter in model.parameters():
        digest.update(parameter.grad.numpy().tobytes() + parameter.detach().numpy().tobytes())
ones = torch.ones(100)
handle = dist.all_reduce(ones, async_op=True)
handle.wait()
dist.broadcast(ones, src=1)
dist.barrier()
forgotten = dist.all_reduce(ones, async_op=True)
while not forgotten.is_completed():
    pass
del forgotten
dist.send(ones, 1) if rank == 0 else dist.recv(ones, 0)
parts = [torch.zeros(100), torch.zeros(100)]
dist.all_gather(parts, ones)
said = [None, None]
dist.all_gather_object(said, {"rank": rank})
pair = dist.new_group([0, 1])
dist.all_reduce(ones, group=pair)
line = f"{rank} {digest.hexdigest()} {ones[0].item()} {said} {parts[1].sum().item()}\\n"
print(line, end="", flush=True)  # in one piece: the ranks share a pipe
dist.destroy_process_group()
"""


@pytest.mark.timeout(300)
def test_two_ranks(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(PROGRAM)
    output = tmp_path / "t.pftrace"
    expected = sorted(plain(*torchrun(program, 2)).splitlines())
    said, _ = record(output, *torchrun(program, 2))
    assert len(expected) == 2
    assert sorted(said.splitlines()) == expected
    engine = Engine(output)
    assert_clean(engine)
    drawn = slices(engine)
    assert_nested(drawn)
    for rank in (0, 1):
        check([each for each in drawn if each.track[0].startswith(f"rank {rank} · ")], rank)


def check(drawn: list[Slice], rank: int) -> None:
    def named(name: str) -> list[Slice]:
        return [each for each in drawn if each.name == name]

    # The wrapper, and inside it the model by its own name and paths.
    assert [each.args["class"] for each in named("DistributedDataParallel")] == ["DistributedDataParallel"] * 3
    [*_, last] = named("Sequential")
    above = enclosing(drawn, last)
    assert above is not None
    assert above.name == "DistributedDataParallel"
    assert len(named("Sequential.2")) == len(named("AdamW.step")) == len(named("backward")) == 3

    facts = {"bytes": 400, "rank": rank, "ranks": 2}
    calls = named("all_reduce")
    assert [facts.items() <= each.args.items() for each in calls] == [True] * 3
    assert calls[0].args["group"] == calls[1].args["group"] != calls[2].args["group"]
    [waited, forgotten] = named("all_reduce in flight")
    [wait] = named("all_reduce.wait")
    assert calls[0].ts <= waited.ts <= wait.ts
    assert wait.ts + wait.dur <= waited.ts + waited.dur
    assert forgotten.dur >= 0  # closed as its handle went
    [broadcast] = named("broadcast")
    assert broadcast.args["src"] == 1
    [sent] = named("send" if rank == 0 else "recv")
    assert sent.args[("dst", "src")[rank]] == 1 - rank
    assert sent.args["bytes"] == 400
    assert len(named("barrier")) == len(named("all_gather_object")) == 1
    [gathered, *_] = named("all_gather")
    assert gathered.args["bytes"] == 400
