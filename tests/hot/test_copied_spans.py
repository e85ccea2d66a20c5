"""A program copies or pickles what holds a span: a model, a job. It gets one that is used by itself, traced or not."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import gputrace
from tests.hot.twin import in_twin
from tests.recorded import recording

WAYS: dict[str, Callable[[Any], Any]] = {
    "copy": copy.copy,
    "deepcopy": lambda span: copy.deepcopy({"model": [span]})["model"][0],
    "pickle": lambda span: pickle.loads(pickle.dumps(span)),
    "an old pickle": lambda span: pickle.loads(pickle.dumps(span, 0)),
}


class Unpicklable:
    def __str__(self) -> str:
        return "said"

    def __reduce__(self) -> str:
        raise AssertionError("the span keeps what it says, not this")


def a_copy_is_used_by_itself(folder: Path, way: str, made_before: bool) -> None:
    with recording(folder) as run:
        if made_before:
            gputrace.pause()
        span = gputrace.span("s", run.stream(), value=Unpicklable())
        window = gputrace.window("w")
        copied, copied_window = WAYS[way](span), WAYS[way](window)
        if made_before:
            gputrace.resume()
        with span, copied, copied:
            pass
        assert copied(lambda: 5)() == WAYS[way](copied)(lambda: 5)() == 5
        with copied_window:  # another slice, but no end of the window
            pass
        gputrace.instant("before its end")
        window.close()
    assert [s.args["value"] for s in run.host if s.name == "s"] == ["said"] * 5
    # Another process may load a pickle, and has no such stream.
    assert len([s for s in run.device if s.name == "s"]) == (1 if "pickle" in way else 5)
    windows, (moment,) = run.named("w"), run.named("before its end")
    assert len(windows) == 1 + (not made_before)
    assert [s.ts + s.dur >= moment.ts for s in windows].count(True) == (not made_before)
    assert run.report["out_of_order"] == run.report["unfinished"] == 0


@in_twin("compiled")
@pytest.mark.parametrize("made_before", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_compiled(tmp_path: Path, way: str, made_before: bool) -> None:
    a_copy_is_used_by_itself(tmp_path, way, made_before)


@in_twin("pure")
@pytest.mark.parametrize("made_before", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_pure(tmp_path: Path, way: str, made_before: bool) -> None:
    a_copy_is_used_by_itself(tmp_path, way, made_before)
