"""`--torch-backward`: whose backward runs when, in a program as without us."""

from __future__ import annotations

import gc
import json
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from weakref import ref

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import gputrace
from gputrace.instrument.torch import backward
from tests.engine import Engine, Slice, assert_clean, slices
from tests.recorded import assert_nested, enclosing
from tests.torch import passes
from tests.torch.models import train
from tests.torch.running import plain, record, torchrun

DDP = """
import hashlib
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.set_num_threads(1)
torch.manual_seed(0)
model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)), bucket_cap_mb=1e-4)
torch.manual_seed(dist.get_rank())
digest = hashlib.sha256()
for synchronizes in (True, False, True):
    model.require_backward_grad_sync = synchronizes
    model(torch.randn(3, 4)).square().mean().backward()
    for parameter in model.parameters():
        digest.update(parameter.grad.numpy().tobytes())
print(f"{dist.get_rank()} {digest.hexdigest()}\\n", end="", flush=True)  # in one piece: the ranks share a pipe
dist.destroy_process_group()
"""

INSTRUMENTS = ("torch.modules", "torch.autograd", "torch.backward")


def recorded(tmp_path: Path, work: Callable[[], Any], *more: str, suffix: str = "pftrace") -> list[Slice]:
    """What was drawn; nothing was told."""
    recording = gputrace.trace(tmp_path / f"t.{suffix}", "host", instrument=[*INSTRUMENTS, *more])
    with recording:
        work()
    engine = Engine(tmp_path / f"t.{suffix}")
    assert_clean(engine)
    drawn = slices(engine)
    assert_nested(drawn)
    assert recording.summary is not None
    assert recording.summary.told == []
    assert all(each.dur >= 0 for each in drawn)
    return drawn


def tree(drawn: list[Slice], top: str = "backward") -> list[str]:
    """What lies inside the slices of one name, in order, each indented by how deep: " (backward)" is left out."""
    found: list[str] = []
    for each in drawn:
        above, depth = each, 0
        while above.name != top and (parent := enclosing(drawn, above)) is not None:
            above, depth = parent, depth + 1
        if depth and above.name == top:
            name = str(each.name)
            mine = name.endswith(" (backward)")
            found.append(f"{'.' * (depth - 1)}{name.removesuffix(' (backward)') if mine else f'[{name}]'}")
    return found


class Twice(nn.Module):
    """Calls a module twice, with work of its own around."""

    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        return self.shared(self.shared(x).sin()).cos()


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.reentrant = reentrant
        self.block = nn.Sequential(nn.Linear(4, 4), nn.ReLU())

    def forward(self, x: Any) -> Any:
        return checkpoint(self.block, x, use_reentrant=self.reentrant).sin()


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))


MLP = ["Sequential", ".Sequential.2", ".Sequential.1", ".Sequential.0"]


def test_each_module_in_the_one_that_holds_it(tmp_path: Path) -> None:
    model = mlp()
    drawn = recorded(tmp_path, lambda: [model(torch.ones(3, 4)).sum().backward() for _ in range(2)])
    assert tree(drawn) == MLP * 2
    kinds = {each.name: each.args["class"] for each in drawn if str(each.name).endswith("(backward)")}
    assert kinds["Sequential.1 (backward)"] == "ReLU"


@pytest.mark.parametrize("suffix", ["pftrace", "json"])
def test_an_arrow_leads_from_each_forward_to_its_backward(tmp_path: Path, suffix: str) -> None:
    model = mlp()

    def work() -> None:
        losses = [model(torch.ones(3, 4)).sum() for _ in range(2)]
        for loss in losses:
            loss.backward(retain_graph=True)
        losses[0].backward()  # once more: its modules have theirs
        with torch.no_grad():
            model(torch.ones(3, 4))

    drawn = recorded(tmp_path, work, suffix=suffix)
    by_id = {each.id: each for each in drawn}
    arrows = [(each, by_id[id]) for each in drawn for id in each.flows_to]
    assert [f"{source.name} (backward)" for source, _ in arrows] == [target.name for _, target in arrows]
    assert Counter(source.name for source, _ in arrows) == dict.fromkeys((each.strip(".") for each in MLP), 2)
    roots = [(source.ts, target.ts) for source, target in arrows if source.name == "Sequential"]
    passes = [each.ts for each in drawn if each.name == "Sequential (backward)"]
    assert [target for _, target in sorted(roots)] == passes[:2]
    assert all(set(each.args) <= {"class", "shapes"} for each in drawn)


def test_a_shared_module_shows_each_of_its_calls(tmp_path: Path) -> None:
    model = Twice()
    drawn = recorded(tmp_path, lambda: model(torch.ones(3, 4)).sum().backward())
    assert tree(drawn) == ["Twice", ".Twice.shared", ".Twice.shared"]


def test_checkpointing_runs_the_forward_again_inside(tmp_path: Path) -> None:
    model = Checkpointed(False)
    drawn = recorded(tmp_path, lambda: model(torch.ones(3, 4)).sum().backward())
    again = ["..[Checkpointed.block]", "...[Checkpointed.block.0]", "...[Checkpointed.block.1]"]
    assert [each for each in tree(drawn) if "[" not in each] == [
        "Checkpointed",
        ".Checkpointed.block",
        "..Checkpointed.block.1",
        "..Checkpointed.block.0",
    ]
    assert [each.strip(".") for each in tree(drawn) if "[" in each] == [each.strip(".") for each in again]


def test_reentrant_checkpointing_has_a_pass_inside_a_node(tmp_path: Path) -> None:
    model = Checkpointed(True)
    x = torch.ones(3, 4, requires_grad=True)
    drawn = recorded(tmp_path, lambda: model(x).sum().backward())
    inner = next(each for each in drawn if each.name == "backward" and each.depth)
    above = enclosing(drawn, inner)
    assert above is not None
    assert above.name == "Checkpointed (backward)"
    inside = [each.name for each in drawn if inner.ts < each.ts < inner.ts + inner.dur]
    assert inside == [f"Checkpointed.block{path} (backward)" for path in ("", ".1", ".0")]


def test_passes_inside_nodes_deeper_than_a_thread_takes(tmp_path: Path) -> None:
    deepest = 70  # torch goes on in a thread of its own behind 60
    layer = nn.Linear(2, 2)

    class Deeper(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, depth: int) -> Any:
            ctx.depth = depth
            return x.clone()

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            if ctx.depth:
                with torch.enable_grad():
                    x = torch.ones(1, 2, requires_grad=True)
                    layer(Deeper.apply(x, ctx.depth - 1)).sum().backward()
            return gradients[0], None

    x = torch.ones(1, 2, requires_grad=True)
    drawn = recorded(tmp_path, lambda: layer(Deeper.apply(x, deepest)).sum().backward())
    # Python does not know that thread before the first node in Python runs there: one pass has begun by then.
    assert len([each for each in drawn if each.name == "Linear (backward)"]) == deepest
    assert len({each.track_id for each in drawn}) > 1


@pytest.mark.parametrize("gone", [False, True])
def test_a_backward_on_another_thread_than_its_forward(tmp_path: Path, gone: bool) -> None:
    model = mlp()
    losses: list[Any] = []

    def forward() -> None:
        losses.append(model(torch.ones(3, 4)).sum())

    def on_a_thread(work: Callable[[], Any]) -> None:
        thread = threading.Thread(target=work, name="other")
        thread.start()
        thread.join()

    def work() -> None:
        if gone:
            on_a_thread(forward)
            losses.pop().backward()
        else:
            forward()
            on_a_thread(losses.pop().backward)

    drawn = recorded(tmp_path, work)
    assert tree(drawn) == MLP
    on_other = {each.track[-1].startswith("other") for each in drawn if str(each.name).endswith("(backward)")}
    assert on_other == {not gone}


def test_threads_at_once_have_their_own(tmp_path: Path) -> None:
    models = [nn.Sequential(nn.Linear(4, 4)), nn.ModuleDict({"only": nn.Linear(4, 4)})["only"]]
    together = threading.Barrier(len(models))

    def train_one(model: nn.Module) -> None:
        for _ in range(20):
            loss = model(torch.ones(3, 4)).sum()
            together.wait()
            loss.backward()

    def work() -> None:
        threads = [threading.Thread(target=train_one, args=(model,)) for model in models]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    drawn = recorded(tmp_path, work)
    assert sorted(tree(drawn)) == sorted(["Sequential", ".Sequential.0", "Linear"] * 20)


def test_gradients_of_gradients(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    x = torch.ones(3, 4, requires_grad=True)

    def work() -> None:
        (gradient,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        gradient.square().sum().backward()

    drawn = recorded(tmp_path, work)
    assert tree(drawn, "autograd.grad") == ["Sequential", ".Sequential.1", ".Sequential.0"]
    found = tree(drawn)
    assert found[0] == "Sequential"
    assert {".Sequential.1", ".Sequential.0"} < set(found)


def test_a_backward_that_raises_leaves_nothing_open(tmp_path: Path) -> None:
    class Model(nn.Module):
        def forward(self, x: Any) -> Any:
            return passes.Fails.apply(x)

    def work() -> None:
        model, good = Model(), mlp()
        with pytest.raises(LookupError):
            model(torch.ones(1, requires_grad=True)).backward()
        good(torch.ones(3, 4)).sum().backward()

    drawn = recorded(tmp_path, work)
    assert tree(drawn) == ["Model", *MLP]
    assert next(each for each in drawn if each.name == "Model (backward)").args["error"] == "LookupError"


def test_operators_lie_in_the_module_that_they_differentiate(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4))
    drawn = recorded(tmp_path, lambda: model(torch.ones(3, 4)).sum().backward(), "torch.ops")
    above = enclosing(drawn, next(each for each in drawn if each.name == "AddmmBackward0"))
    assert above is not None
    assert above.name == "Sequential.0 (backward)"


def test_what_is_kept_of_a_thread_has_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backward, "MOST_STRETCHES", 8)
    model = nn.Sequential(nn.Linear(4, 4))
    x = torch.ones(3, 4)

    def work() -> None:
        old = model(x).sum()
        for _ in range(20):
            model(x)
        new = model(x).sum()
        old.backward()
        new.backward()
        assert backward._modules is not None
        assert len(backward._modules.state().stretches) <= 8

    assert tree(recorded(tmp_path, work)) == ["Sequential", ".Sequential.0"]


def test_nothing_is_kept_of_a_recording_that_is_over(tmp_path: Path) -> None:
    kept = []

    def work() -> None:
        mlp()(torch.ones(3, 4)).sum().backward()
        kept.append(ref(backward._modules))

    recorded(tmp_path, work)
    gc.collect()
    assert [each() for each in kept] == [None]


def test_a_pass_that_is_none_of_pythons_shows_nothing_and_leaves_nothing_open(tmp_path: Path) -> None:
    model = mlp()

    def work() -> None:
        loss = model(torch.ones(3, 4)).sum()
        engine = torch.autograd.Variable._execution_engine
        engine.run_backward((loss,), (torch.ones(()),), False, False, (), allow_unreachable=True, accumulate_grad=True)
        with gputrace.span("after"):
            model(torch.ones(3, 4)).sum().backward()

    drawn = recorded(tmp_path, work)
    assert len([each for each in drawn if str(each.name).endswith("(backward)")]) == len(MLP)
    assert tree(drawn, "after")[-len(MLP) :] == [f".{each}" for each in MLP]


def test_by_its_option_under_record(tmp_path: Path) -> None:
    program = tmp_path / "trains.py"
    program.write_text("import torch\ntorch.nn.Linear(2, 2)(torch.ones(1, 2)).sum().backward()\n")
    _, said = record(tmp_path / "t.pftrace", sys.executable, str(program), options=["--torch-backward"])
    assert "does not work" not in said
    assert tree(slices(Engine(tmp_path / "t.pftrace"))) == ["Linear"]


# --- the program comes to the same as without -------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["in-place", "lstm", "transformer", "checkpoint", "checkpoint, re-entrant"])
def test_models_come_to_the_same(tmp_path: Path, name: str) -> None:
    expected = train(name, 2)
    found: list[Any] = []
    drawn = recorded(tmp_path, lambda: found.append(train(name, 2)))
    assert found == [expected]
    assert any(str(each.name).endswith("(backward)") for each in drawn)


@pytest.mark.parametrize("way", passes.WAYS, ids=lambda way: way.__name__)
def test_passes_of_every_kind_come_to_the_same(tmp_path: Path, way: Callable[[], Any]) -> None:
    expected = passes.run(way)
    found: list[Any] = []
    drawn = recorded(tmp_path, lambda: found.append(passes.run(way)))
    assert found == [expected]
    assert any(str(each.name).endswith("(backward)") for each in drawn)


@pytest.mark.timeout(300)
def test_compiled_models_come_to_the_same_and_show_their_root(tmp_path: Path) -> None:
    program = [sys.executable, str(Path(__file__).with_name("models.py")), "compiled", "compiled by inductor"]
    expected = [json.loads(line) for line in plain(*program).splitlines()]
    said, told = record(tmp_path / "t.pftrace", *program, options=["--torch-backward"])
    assert [json.loads(line) for line in said.splitlines()] == expected
    assert [each["breaks"] for each in expected] == [0, 0]
    assert "does not work" not in told
    drawn = slices(Engine(tmp_path / "t.pftrace"))
    assert_nested(drawn)
    above = [each for each in drawn if each.name == "backward" and each.depth == 0]
    assert len(above) == 2 * 3
    shown = tree([each for each in drawn if any(top.ts <= each.ts < top.ts + top.dur for top in above)])
    assert Counter(shown) == {"OptimizedModule": 2 * 3, ".ConvNet": 3, ".InPlace": 3}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("ranks", [1, 2])
def test_ddp_comes_to_the_same(tmp_path: Path, ranks: int) -> None:
    program = tmp_path / "train.py"
    program.write_text(DDP)
    expected = sorted(plain(*torchrun(program, ranks)).splitlines())
    said, told = record(tmp_path / "t.pftrace", *torchrun(program, ranks), options=["--torch-backward"])
    assert len(expected) == ranks
    assert sorted(said.splitlines()) == expected
    assert "does not work" not in told
    engine = Engine(tmp_path / "t.pftrace")
    assert_clean(engine)
    drawn = slices(engine)
    assert_nested(drawn)
    wrapped = ["DistributedDataParallel", *(f".{each}" for each in MLP)]
    for rank in range(ranks):
        own = [each for each in drawn if ranks == 1 or each.track[0].startswith(f"rank {rank} · ")]
        assert tree(own) == wrapped * 3


def test_what_the_program_lets_go_of_is_gone_at_once(tmp_path: Path) -> None:
    gone: list[Any] = []

    def work() -> None:
        model = mlp()
        loss = model(torch.ones(3, 4)).sum()
        loss.backward()
        gone.extend([ref(model), ref(model[0]), ref(loss)])
        del model, loss
        gone[:] = [each() for each in gone]

    gc.collect()
    gc.disable()
    try:
        recorded(tmp_path, work)
    finally:
        gc.enable()
    assert gone == [None] * 3


# --- what goes wrong --------------------------------------------------------------------------------------------------


def test_a_fault_ends_it_and_not_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = train("lstm", 1)
    find = backward.Modules._find
    calls = []

    def fails_later(modules: Any, *node: int) -> Any:
        calls.append(node)
        if len(calls) > 3:
            raise LookupError("made to fail")
        return find(modules, *node)

    monkeypatch.setattr(backward.Modules, "_find", fails_later)
    recording = gputrace.trace(tmp_path / "t.pftrace", "host", instrument=INSTRUMENTS)
    with recording:
        assert train("lstm", 1) == expected
    assert len(calls) == 4
    assert recording.summary is not None
    [told] = recording.summary.told
    assert "torch.backward does not work here" in told
    engine = Engine(tmp_path / "t.pftrace")
    assert_clean(engine)
    assert_nested(slices(engine))


def test_what_a_signals_handler_raises_inside_is_the_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = mlp()
    find = backward.Modules._find

    def interrupted(modules: Any, *node: int) -> Any:
        monkeypatch.setattr(backward.Modules, "_find", find)
        raise KeyboardInterrupt

    def work() -> None:
        monkeypatch.setattr(backward.Modules, "_find", interrupted)
        with pytest.raises(KeyboardInterrupt), gputrace.span("interrupted"):
            model(torch.ones(3, 4)).sum().backward()
        with gputrace.span("after"):
            model(torch.ones(3, 4)).sum().backward()

    assert tree(recorded(tmp_path, work), "after")[-len(MLP) :] == [f".{each}" for each in MLP]


def test_where_it_cannot_be_built_that_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CXX", "false")
    recording = gputrace.trace(tmp_path / "t.pftrace", "host", instrument=INSTRUMENTS)
    with recording:
        mlp()(torch.ones(3, 4)).sum().backward()
    assert recording.summary is not None
    [told] = recording.summary.told
    assert "torch.backward does not work here" in told
    drawn = slices(Engine(tmp_path / "t.pftrace"))
    assert [each.name for each in drawn if str(each.name).endswith("(backward)")] == []
    assert len(drawn) == 5
