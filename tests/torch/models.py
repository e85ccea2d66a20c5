"""A program that trains several models and says what came of it, to the last bit. Nothing in it knows of tracing.

    python tests/torch/models.py NAME...

prints a line of JSON a model: its name, a digest of every output, gradient and final weight, how many nodes its
autograd graph had, and how many graphs and breaks the compiler made.
"""

from __future__ import annotations

import hashlib
import json
import sys
import warnings
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class ConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
        self.blocks = nn.ModuleList(Residual(8) for _ in range(2))
        self.head = nn.Linear(8, 4)

    def forward(self, images: Any) -> Any:
        x = self.stem(images)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean((2, 3)))


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=1)
        self.norm = nn.BatchNorm2d(width)

    def forward(self, x: Any) -> Any:
        y = self.norm(self.conv(x))
        y += x
        return y.relu_()


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, 8, num_layers=2, batch_first=True, dropout=0.1)
        self.head = nn.Linear(8, 4)

    def forward(self, x: Any) -> Any:
        return self.head(self.lstm(x)[0])


class InPlace(nn.Module):
    """Changes its modules' outputs, its own input's successor and views, in place."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.flat = nn.Flatten()
        self.drop = nn.Dropout(0.3)

    def forward(self, x: Any) -> Any:
        y = self.first(x)
        y.mul_(2)
        y[:, 0] = 0
        z = self.flat(y.view(-1, 2, 4))
        z.add_(1)
        a, b = self.second(z).chunk(2, -1)
        return self.drop(a) * b


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.reentrant = reentrant
        self.inlet = nn.Linear(8, 8)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(8, 8), nn.ReLU(inplace=True), nn.Dropout(0.3), nn.Linear(8, 8)) for _ in range(2)
        )

    def forward(self, x: Any) -> Any:
        x = self.inlet(x)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=self.reentrant) + x
        return x


def transformer() -> nn.Module:
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), 2)


MODELS: dict[str, tuple[Any, tuple[int, ...], str]] = {
    "transformer": (transformer, (4, 6, 16), ""),
    "convnet": (ConvNet, (4, 3, 8, 8), ""),
    "lstm": (Recurrent, (4, 5, 8), ""),
    "in-place": (InPlace, (4, 8), ""),
    "checkpoint": (lambda: Checkpointed(False), (4, 8), ""),
    "checkpoint, re-entrant": (lambda: Checkpointed(True), (4, 8), ""),
    "compiled": (ConvNet, (4, 3, 8, 8), "aot_eager"),
    "compiled transformer": (transformer, (4, 6, 16), "aot_eager"),
    "compiled by inductor": (InPlace, (4, 8), "inductor"),
}


def train(name: str, steps: int = 3) -> dict[str, Any]:
    make, shape, backend = MODELS[name]
    torch.manual_seed(0)
    model = make()
    call = torch.compile(model, backend=backend) if backend else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    digest = hashlib.sha256()
    nodes = 0
    for step in range(steps):
        inputs = torch.randn(shape, requires_grad=step % 2 == 0)
        output = call(inputs * 1.0)
        nodes = count_nodes(output.grad_fn)
        optimizer.zero_grad()
        output.square().sum().backward()
        for tensor in (output.detach(), inputs.grad, *(parameter.grad for parameter in model.parameters())):
            digest.update(b"none" if tensor is None else tensor.contiguous().numpy().tobytes())
        optimizer.step()
        scheduler.step()
    model.eval()
    with torch.no_grad():
        digest.update(call(torch.ones(shape)).contiguous().numpy().tobytes())
    for parameter in model.state_dict().values():
        digest.update(parameter.contiguous().numpy().tobytes())
    said = {"name": name, "digest": digest.hexdigest(), "nodes": nodes}
    if backend:
        from torch._dynamo.utils import counters

        said |= {"graphs": counters["stats"]["unique_graphs"], "breaks": sum(counters["graph_break"].values())}
        torch._dynamo.reset()
        counters.clear()
    return said


def count_nodes(root: Any) -> int:
    seen, waiting = {root}, [root]
    while waiting:
        for node, _ in waiting.pop().next_functions:
            if node is not None and node not in seen:
                seen.add(node)
                waiting.append(node)
    return len(seen)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    for name in sys.argv[1:] or MODELS:
        print(json.dumps(train(name)), flush=True)
