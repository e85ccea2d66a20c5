"""The benchmark of a training step measures what it says: each tracer runs, and ours with all that the row names."""

from __future__ import annotations

import pytest

from gputrace.instrument.registry import choose
from tests.benchmarks.training import TRACERS, run

NAMES = ["gputrace", "backward", "ops", "python", "profiler"]


@pytest.mark.parametrize("name", NAMES)
def test_it_is_measured(name: str) -> None:
    (row,) = run(name, 1)
    assert row.aside == ""
    assert row.measured is not None
    assert row.measured > 0


def test_our_rows_are_of_what_is_on_by_default_and_the_option() -> None:
    added = {name: set(TRACERS[name].function.args[0]) - set(choose()) for name in NAMES[1:4]}  # type: ignore[attr-defined]
    assert added == {
        "backward": {"torch.backward"},
        "ops": {"torch.ops"},
        "python": {"python.calls", "python.exceptions"},
    }
