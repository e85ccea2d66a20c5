"""Recorded or not, a model comes to the same, bit for bit, by the same graph; and every module of it shows."""

from __future__ import annotations

import json
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.engine import Engine, Slice, assert_clean, slices
from tests.recorded import assert_nested, enclosing
from tests.torch.running import plain, record

PROGRAM = str(Path(__file__).with_name("models.py"))
STEPS = 3
#: The training's calls of the model, and the one that evaluates it.
CALLS = STEPS + 1

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


class Both:
    """What the models came to without a recording, with one, and the recording itself."""

    def __init__(self, folder: Path, pure: bool) -> None:
        self.plain = [json.loads(line) for line in plain(sys.executable, PROGRAM).splitlines()]
        output = folder / "t.pftrace"
        said, self.told = record(output, sys.executable, PROGRAM, pure=pure)
        self.recorded = [json.loads(line) for line in said.splitlines()]
        engine = Engine(output)
        assert_clean(engine)
        self.slices = slices(engine)

    def times(self, name: str, **args: Any) -> int:
        return sum(each.name == name and args.items() <= each.args.items() for each in self.slices)

    def parents(self, name: str) -> Counter[str | None]:
        above = [enclosing(self.slices, each) for each in self.slices if each.name == name]
        return Counter(each and each.name for each in above)


@pytest.fixture(scope="module", params=["compiled", "pure"])
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Both:
    return Both(tmp_path_factory.mktemp("models"), request.param == "pure")


def test_it_comes_to_the_same_to_the_last_bit(both: Both) -> None:
    assert len(both.plain) == 9
    assert both.recorded == both.plain
    assert all(each["breaks"] == 0 for each in both.plain if "breaks" in each)


def test_nothing_is_told_but_the_file(both: Both) -> None:
    assert [line for line in both.told.splitlines() if "gputrace:" in line and "wrote" not in line] == []


def test_every_slice_is_closed_and_nested(both: Both) -> None:
    assert_nested(both.slices)
    assert all(each.dur >= 0 for each in both.slices)


def test_modules_by_their_path_with_class_and_shapes(both: Both) -> None:
    layer = "TransformerEncoder.layers.1"
    assert both.times(layer, shapes="4x6x16") == CALLS
    assert both.times(layer, **{"class": "TransformerEncoderLayer"}) == CALLS
    # Evaluation takes a fused way past the layer's own modules: it is still taken.
    attention = {"class": "MultiheadAttention", "shapes": "4x6x16, 4x6x16, 4x6x16"}
    assert both.times(f"{layer}.self_attn", **attention) == STEPS
    assert both.parents(f"{layer}.self_attn") == {layer: STEPS}
    assert both.parents(layer) == {"TransformerEncoder": CALLS}
    assert both.parents("ConvNet.blocks.0.norm") == {"ConvNet.blocks.0": CALLS}
    assert both.parents("ConvNet.stem.2") == {"ConvNet.stem": CALLS}
    assert both.times("Recurrent.lstm", shapes="4x5x8") == CALLS
    assert both.times("InPlace.second") == CALLS


def test_a_checkpointed_block_shows_again_inside_backward(both: Both) -> None:
    # For each of the two ways: when it is called, and again for each step's backward.
    assert both.times("Checkpointed.blocks.1") == 2 * (CALLS + STEPS)
    parents = both.parents("Checkpointed.blocks.1")
    assert parents == {"Checkpointed": 2 * CALLS, "backward": 2 * STEPS}


def test_a_compiled_model_is_one_region(both: Both) -> None:
    # Two models by that class's name: one ran as it is, the other within its region, and no module of it shows.
    assert both.times("OptimizedModule") == 3 * CALLS
    assert both.parents("ConvNet") == {None: CALLS, "OptimizedModule": CALLS}
    assert both.times("ConvNet.head") == CALLS


def test_the_steps_around_the_model(both: Both) -> None:
    models = len(both.plain)
    assert both.times("AdamW.zero_grad") == both.times("AdamW.step") == models * STEPS
    assert both.times("StepLR.step") == models * CALLS  # the first as it is made
    # A re-entrant checkpoint runs a backward of each block within the step's.
    assert both.parents("backward") == {None: models * STEPS, "backward": 2 * STEPS}


def test_they_follow_one_another(both: Both) -> None:
    wanted = ("Recurrent", "AdamW.zero_grad", "backward", "AdamW.step", "StepLR.step")
    first = next(each for each in both.slices if each.name == "Recurrent")
    after = [each for each in both.slices if each.depth == 0 and each.ts >= first.ts and each.name in wanted]
    assert [each.name for each in after[: 2 * len(wanted)]] == [*wanted, *wanted]
    assert all(_end(one) <= other.ts for one, other in pairwise(after))


def _end(each: Slice) -> int:
    return each.ts + each.dur
