"""Ways in which programs run backward passes; each says what came of it, to the last bit. It knows no tracing."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.torch.models import count_nodes, transformer


def digest(*tensors: Any) -> str:
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(b"none" if tensor is None else tensor.detach().contiguous().numpy().tobytes())
    return found.hexdigest()


def gradients(model: nn.Module) -> list[Any]:
    return [parameter.grad for parameter in model.parameters()]


def small() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))


def a_graph_kept() -> Any:
    model, x = transformer(), torch.randn(4, 6, 16, requires_grad=True)
    loss = model(x).square().sum()
    for keeps in (True, True, False):
        loss.backward(retain_graph=keeps)
    try:
        loss.backward()
    except RuntimeError as error:
        return digest(x.grad, *gradients(model)), str(error)


def parts_of_a_graph() -> Any:
    model, x = small(), torch.randn(3, 4, requires_grad=True)
    inner = model[0](x)
    loss = model[2](model[1](inner)).sum()
    (part,) = torch.autograd.grad(loss, inner, retain_graph=True)
    loss.backward(inputs=[model[2].weight, x])
    return digest(part, x.grad, *gradients(model))


def batches_accumulated() -> Any:
    model = transformer()
    losses = [model(torch.randn(4, 6, 16)).square().mean() for _ in range(3)]
    torch.autograd.backward(losses)
    return digest(*gradients(model))


def autocast_and_a_scaler() -> Any:
    model = transformer()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)  # the first steps are skipped
    scales = []
    for _ in range(6):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(torch.randn(4, 6, 16)).float().square().mean()
        scaler.scale(loss * 10).backward()
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    return digest(*model.parameters()), scales


class Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise LookupError("in a node")


class Failing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        return self.after(Fails.apply(self.before(x)))


def exceptions() -> Any:
    """In a node, in a hook, by torch's own look for NaN, within a checkpoint; each time, a good pass follows."""

    def fail(gradient: Any) -> None:
        raise KeyError("in a hook")

    def in_node() -> Any:
        return Failing()(torch.randn(3, 4))

    def in_hook() -> Any:
        model = small()
        model[2].weight.register_hook(fail)
        return model(torch.randn(3, 4))

    def of_nan() -> Any:
        return small()(torch.randn(3, 4)) * float("nan")

    def in_checkpoint() -> Any:
        return checkpoint(Failing(), torch.randn(3, 4, requires_grad=True), use_reentrant=True)

    said: list[str] = []
    good = small()
    for make in (in_node, in_hook, of_nan, in_checkpoint):
        try:
            with torch.autograd.set_detect_anomaly(make is of_nan):
                make().sum().backward()
        except (LookupError, RuntimeError) as error:
            said.append(repr(error))
        good(torch.randn(3, 4)).sum().backward()
    return digest(*gradients(good)), said


def hooks() -> Any:
    model, said = transformer(), []
    first, second = model.layers
    first.linear1.register_full_backward_hook(lambda module, into, out: said.append(digest(*into, *out)))
    second.register_full_backward_pre_hook(lambda module, out: said.append(digest(*out)))
    x = torch.randn(4, 6, 16, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda saved: saved.clone(), lambda packed: packed):
        model(x).square().sum().backward()
    return digest(x.grad, *gradients(model)), said


def second_derivatives() -> Any:
    model, x = small(), torch.randn(3, 4, requires_grad=True)
    (gradient,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    nodes = count_nodes(gradient.grad_fn)
    (gradient.norm(2, 1) - 1).square().mean().backward()
    hessians = [
        torch.autograd.functional.hessian(lambda x: model(x).sum(), torch.ones(4), vectorize=at_once)
        for at_once in (False, True)
    ]
    return digest(x.grad, *gradients(model), *hessians), nodes


def functional() -> Any:
    model = small()

    def loss(parameters: Any, x: Any) -> Any:
        return torch.func.functional_call(model, parameters, (x,)).sum()

    each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(dict(model.named_parameters()), torch.randn(3, 4))
    return digest(*each.values())


WAYS = (
    a_graph_kept,
    parts_of_a_graph,
    batches_accumulated,
    autocast_and_a_scaler,
    exceptions,
    hooks,
    second_derivatives,
    functional,
)


def run(way: Any) -> Any:
    torch.manual_seed(0)
    return way()
