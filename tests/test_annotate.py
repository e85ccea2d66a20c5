"""`annotate` does what `nvtx.annotate` does for a program that swapped its import, and draws it."""

from __future__ import annotations

import asyncio
import enum
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import gputrace
from gputrace import annotate
from tests.recorded import EXPORTERS, recording

everywhere = pytest.mark.parametrize("suffix", EXPORTERS)


class Phase(enum.IntEnum):
    TRAIN = 7


def test_it_takes_what_nvtx_takes() -> None:
    # nvtx 0.2.16: annotate(message, color, domain, category, payload), each None where not given.
    parameters = inspect.signature(annotate).parameters.values()
    assert [each.name for each in parameters] == ["message", "color", "domain", "category", "payload"]
    assert {each.default for each in parameters} == {None}
    assert {each.kind for each in parameters} == {inspect.Parameter.POSITIONAL_OR_KEYWORD}


@everywhere
def test_a_block_is_a_slice_with_what_it_was_given(tmp_path: Path, suffix: str) -> None:
    with recording(tmp_path, suffix=suffix) as run:
        with annotate("step", "blue", "trainer", Phase.TRAIN, 3), annotate("inner", color=0xFF00FF, payload=0.5):
            pass
        with annotate(message="categories may be named", category="io", payload=[1, 2]):
            pass
        with annotate():
            pass
    unnamed = "" if suffix == ".pftrace" else "[No name]"  # the engine's own, for such a slice in JSON
    assert [(each.name or "", each.depth, each.args) for each in run.slices] == [
        ("step", 0, {"color": "blue", "domain": "trainer", "category": 7, "payload": 3}),
        ("inner", 1, {"color": 0xFF00FF, "payload": 0.5}),
        ("categories may be named", 0, {"category": "io", "payload": "[1, 2]"}),
        (unnamed, 0, {}),
    ]


@everywhere
def test_a_function_without_a_message_gives_its_name(tmp_path: Path, suffix: str) -> None:
    @annotate(color="red", domain="data")
    def load(n: int) -> int:
        return n if not n else load(n - 1)

    @annotate("named", payload=1)
    async def fetch() -> str:
        await asyncio.sleep(0)
        return "fetched"

    @annotate()
    def items() -> Iterator[int]:
        yield from (1, 2)

    class Model:
        @annotate()
        @classmethod
        def make(cls) -> type:
            return cls

    with recording(tmp_path, suffix=suffix) as run:
        assert load(1) == 0
        assert asyncio.run(fetch()) == "fetched"
        assert list(items()) == [1, 2]
        assert Model.make() is Model
    drawn = sorted((each.name or "", tuple(each.args.items())) for each in run.slices)
    red = (("color", "red"), ("domain", "data"))
    assert drawn == [("items", ()), ("load", red), ("load", red), ("make", ()), ("named", (("payload", 1),))]
    assert load.__name__ == "load"


@everywhere
def test_one_object_may_be_entered_again_and_inside_itself(tmp_path: Path, suffix: str) -> None:
    with recording(tmp_path, suffix=suffix) as run:
        again = annotate("again")
        for _ in range(2):
            with again, again:
                pass
    assert [(each.name, each.depth) for each in run.slices] == [("again", 0), ("again", 1)] * 2


def test_the_current_stream_gets_its_window(tmp_path: Path) -> None:
    with recording(tmp_path) as run:
        stream = run.stream()
        with gputrace.use_stream(stream), annotate("kernel"):
            stream.launch(1000)
    assert [each.name for each in run.device] == ["kernel"]


def test_with_nothing_recording_it_changes_nothing() -> None:
    @annotate()
    def double(n: int) -> int:
        return 2 * n

    class Unfit:
        def __str__(self) -> str:
            raise ValueError("no text")

    unfit: Any = Unfit()
    with annotate(), annotate(unfit, unfit, unfit, unfit, unfit):
        assert double(2) == 4
