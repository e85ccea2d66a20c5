"""What a training loop does around its model, and what is done to models besides calling them."""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

import gputrace
from tests.engine import Engine, Slice, assert_clean, slices
from tests.recorded import enclosing
from tests.torch.running import record

LOADER = """
import torch
from torch.utils.data import DataLoader, TensorDataset

if __name__ == "__main__":
    loader = DataLoader(TensorDataset(torch.arange(32)), batch_size=4, num_workers=2, multiprocessing_context="fork")
    assert sum(int(batch.sum()) for batch, in loader) == sum(range(32))
"""


def recorded(tmp_path: Path, work: Any, instrument: Any = True) -> list[Slice]:
    output = tmp_path / "t.pftrace"
    with gputrace.trace(output, "host", instrument=instrument):
        work()
    engine = Engine(output)
    assert_clean(engine)
    return slices(engine)


def names(drawn: list[Slice]) -> list[str]:
    return [each.name for each in drawn]


def test_batches_are_fetched_in_workers_and_waited_for_in_the_loop(tmp_path: Path) -> None:
    program = tmp_path / "load.py"
    program.write_text(LOADER)
    record(tmp_path / "t.pftrace", sys.executable, str(program))
    drawn = slices(Engine(tmp_path / "t.pftrace"))
    [start] = [each for each in drawn if each.name == "DataLoader.__iter__"]
    waits = [each for each in drawn if each.name == "DataLoader.__next__"]
    fetches = [each for each in drawn if each.name == "DataLoader.fetch"]
    assert len(waits) == 9  # the last finds the end
    assert start.track == waits[0].track
    assert start.ts + start.dur <= waits[0].ts
    assert len(fetches) == 8
    assert {each.args["samples"] for each in fetches} == {4}
    assert len({each.track[0] for each in fetches} - {each.track[0] for each in waits}) == 2


def test_batches_without_workers_are_fetched_in_the_loop(tmp_path: Path) -> None:
    drawn = recorded(tmp_path, lambda: list(torch.utils.data.DataLoader(torch.arange(8), batch_size=4)))
    passes = ["DataLoader.__iter__", *["DataLoader.__next__", "DataLoader.fetch"] * 2, "DataLoader.__next__"]
    assert names(drawn) == passes


def test_workers_that_are_started_or_told_of_a_new_pass_are_no_gap(tmp_path: Path) -> None:
    def work() -> None:
        options: Any = {"num_workers": 1, "persistent_workers": True, "multiprocessing_context": "fork"}
        loader = torch.utils.data.DataLoader(torch.arange(8), batch_size=4, **options)
        for _ in range(2):
            list(loader)

    drawn = recorded(tmp_path, work, ["torch.data"])
    waits = ["DataLoader.__next__"] * 3
    in_loop = [each.name for each in drawn if each.name != "DataLoader.fetch"]
    assert in_loop == ["DataLoader.__iter__", *waits] * 2


def test_gradients_asked_for(tmp_path: Path) -> None:
    weight = torch.ones(3, requires_grad=True)

    def work() -> None:
        torch.autograd.grad((weight * 2).sum(), weight)
        torch.autograd.backward([(weight * 3).sum()])
        (weight * 4).sum().backward()

    assert names(recorded(tmp_path, work)) == ["autograd.grad", "backward", "backward"]


def test_schedulers_by_their_class(tmp_path: Path) -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1)
    kinds = torch.optim.lr_scheduler
    made = [kinds.ReduceLROnPlateau(optimizer), kinds.CosineAnnealingLR(optimizer, 5)]

    def work() -> None:
        optimizer.step()
        made[0].step(1.0)
        made[1].step()

    assert names(recorded(tmp_path, work)) == ["SGD.step", "ReduceLROnPlateau.step", "CosineAnnealingLR.step"]


def test_the_gradient_scaler(tmp_path: Path) -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)

    def work() -> None:
        scaler.scale((weight * 2).sum()).backward()
        scaler.step(optimizer)
        scaler.update()

    drawn = recorded(tmp_path, work)
    inside = ["GradScaler.unscale_", "SGD.step"]
    assert names(drawn) == ["GradScaler.scale", "backward", "GradScaler.step", *inside, "GradScaler.update"]
    above = [enclosing(drawn, each) for each in drawn if each.name in inside]
    assert [each and each.name for each in above] == ["GradScaler.step"] * 2
    assert weight.tolist() == pytest.approx([0.8, 0.8])


def test_modules_down_to_a_depth(tmp_path: Path) -> None:
    layer = torch.nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
    model = torch.nn.Sequential(torch.nn.TransformerEncoder(layer, 2))
    drawn = recorded(tmp_path, lambda: model(torch.ones(2, 3, 16)), ["torch.modules=2"])
    assert names(drawn) == ["Sequential", "Sequential.0"]
    layers = ["Sequential.0.layers.0", "Sequential.0.layers.1"]
    drawn = recorded(tmp_path, lambda: model(torch.ones(2, 3, 16)), ["torch.modules=3"])
    assert names(drawn) == ["Sequential", "Sequential.0", *layers]
    drawn = recorded(tmp_path, lambda: model(torch.ones(2, 3, 16)), ["torch.modules=0"])
    assert names(drawn) == ["Sequential"]


def test_a_module_that_fails_says_so(tmp_path: Path) -> None:
    class Fails(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            raise KeyboardInterrupt

    model = torch.nn.Sequential(torch.nn.ReLU(), Fails())

    def work() -> None:
        with pytest.raises(KeyboardInterrupt):
            model(torch.ones(1))

    drawn = recorded(tmp_path, work)
    assert names(drawn) == ["Sequential", "Sequential.0", "Sequential.1"]
    assert [each.args.get("error") for each in drawn] == ["KeyboardInterrupt", None, "KeyboardInterrupt"]


def test_a_module_traced_or_exported_is_as_without_us(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
    x = torch.ones(1, 2)

    def graphs() -> list[str]:
        # torch numbers the classes that it makes.
        traced = re.sub(r"___torch_mangle_\d+\.", "", str(torch.jit.trace(model, x).inlined_graph))
        strict, loose = (str(torch.export.export(model, (x,), strict=strict).graph) for strict in (True, False))
        symbolic = str(torch.fx.symbolic_trace(model).graph)
        return [traced, strict, loose, symbolic]

    plain = graphs()
    found: list[list[str]] = []
    recorded(tmp_path, lambda: found.append(graphs()))
    assert found == [plain]


def test_a_whole_step_compiles_without_a_break(tmp_path: Path) -> None:
    from torch._dynamo.utils import counters

    def compiled() -> tuple[Any, int, int]:
        torch._dynamo.reset()
        counters.clear()
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(inplace=True), torch.nn.Linear(4, 2))

        @torch.compile(backend="aot_eager", fullgraph=True)
        def step(x: Any) -> Any:
            return model(x).square().sum()

        for _ in range(2):
            loss = step(torch.ones(3, 4))
            loss.backward()
        return loss.item(), counters["stats"]["unique_graphs"], sum(counters["graph_break"].values())

    plain = compiled()
    found: list[Any] = []
    recorded(tmp_path, lambda: found.append(compiled()))
    assert found == [plain]
    assert plain[1:] == (1, 0)


def test_modules_are_pickled_and_copied_as_without_us(tmp_path: Path) -> None:
    import copy
    import pickle

    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    x = torch.ones(1, 2)
    found = []

    def work() -> None:
        model(x)
        for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            found.append(torch.equal(other(x), model(x)))

    drawn = recorded(tmp_path, work)
    assert found == [True, True]
    assert Counter(names(drawn)) == {"Sequential": 5, "Sequential.0": 5}
    assert vars(model).keys() == vars(torch.nn.Sequential()).keys()


def test_waits_for_the_device_and_graphs_show_and_fail_as_without_us(tmp_path: Path) -> None:
    class Graph(torch.cuda.CUDAGraph):
        def __new__(cls) -> Any:
            return object.__new__(cls)

        def __init__(self) -> None:
            """Not torch's, which refuses where there is no device."""

    graph = Graph()
    graph._tracker = None

    def failures() -> list[str]:
        said = []
        for call in (torch.cuda.synchronize, graph.capture_begin, graph.capture_end, graph.replay):
            try:
                call()
            except Exception as error:
                said.append(repr(error))
        return said

    plain = failures()
    assert len(plain) == 4  # this torch knows no device
    found: list[list[str]] = []
    drawn = recorded(tmp_path, lambda: found.append(failures()))
    assert found == [plain]
    calls = ["CUDAGraph.capture_begin", "CUDAGraph.capture_end", "CUDAGraph.replay"]
    assert names(drawn) == ["cuda.synchronize", *calls]
    assert all(each.args["error"] for each in drawn)
    assert all(enclosing(drawn, each) is None for each in drawn)


def test_modules_get_windows_on_the_stream_in_use(tmp_path: Path) -> None:
    from gputrace.devices.simulated import default_gpu

    model = torch.nn.Sequential(torch.nn.ReLU())
    with gputrace.trace(tmp_path / "t.pftrace", "simulated"), gputrace.use_stream(default_gpu().stream("main")):
        model(torch.ones(2))
    drawn = slices(Engine(tmp_path / "t.pftrace"))
    windows = [each.name for each in drawn if any(step.startswith("GPU ") for step in each.track)]
    assert windows == ["Sequential", "Sequential.0"]
