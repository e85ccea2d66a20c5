"""A `Flow` among a span's args is an arrow between two host slices, beside those to their windows, and no arg."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import gputrace
from gputrace.model import FLOW, Flow
from tests.engine import Slice
from tests.recorded import Run, recording

FLOWS = [Flow((1 << 43) + number) for number in range(3)]
FORMATS = pytest.mark.parametrize("suffix", [".pftrace", ".json"])


def follows(flow: Flow) -> dict[str, Any]:
    return {FLOW: flow}


def arrows(run: Run) -> list[tuple[str, str]]:
    by_id = {each.id: each for each in run.slices}

    def said(each: Slice) -> str:
        return f"{each.name} on the GPU" if each in run.device else str(each.name)

    return sorted((said(each), said(by_id[id])) for each in run.slices for id in each.flows_to)


@FORMATS
def test_it_leads_from_the_first_slice_to_the_second(tmp_path: Path, suffix: str) -> None:
    with recording(tmp_path, suffix=suffix) as run:
        forward = gputrace.span("forward", None, rows=3, **follows(FLOWS[0]))
        with forward, gputrace.span("inner", None, **follows(FLOWS[1])):
            pass
        backward = gputrace.span("backward", None, **follows(FLOWS[0]))
        with backward, gputrace.span("inner backward", None, **follows(FLOWS[1]), rows=4):
            pass
        with gputrace.span("alone", None, **follows(FLOWS[2])):
            pass
    assert arrows(run) == [("forward", "backward"), ("inner", "inner backward")]
    assert {each.name: each.args for each in run.slices if each.args} == {
        "forward": {"rows": 3},
        "inner backward": {"rows": 4},
    }


@FORMATS
def test_windows_have_their_own_alone(tmp_path: Path, suffix: str) -> None:
    with recording(tmp_path, suffix=suffix) as run:
        stream = run.stream()
        with gputrace.span("forward", stream, rows=3, **follows(FLOWS[0])):
            with gputrace.span("inner", stream, **follows(FLOWS[1])):
                stream.launch(1000)
            stream.launch(1000)
        with pytest.raises(LookupError), gputrace.span("backward", stream, **follows(FLOWS[0])):
            raise LookupError
    assert arrows(run) == [
        ("backward", "backward on the GPU"),
        ("forward", "backward"),
        ("forward", "forward on the GPU"),
        ("inner", "inner on the GPU"),
    ]
    args = {each.name: {**each.args, "placement": ""} for each in run.device}
    assert args == {
        "forward": {"rows": 3, "placement": ""},
        "inner": {"placement": ""},
        "backward": {"error": "LookupError", "placement": ""},
    }
