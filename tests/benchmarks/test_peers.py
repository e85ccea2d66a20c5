"""A peer that is missing, or fails, has a row that says so; the others are measured all the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.benchmarks.peers import OURS, TRACERS, Peer, attempt


def raising(error: Exception) -> float:
    raise error


@pytest.mark.parametrize(
    ("error", "aside"), [(ModuleNotFoundError("keke"), "not installed"), (OSError("no GPU"), "does not run here")]
)
def test_one_that_cannot_be_measured_says_why(error: Exception, aside: str) -> None:
    (row,) = attempt(Peer("keke", lambda: None, "a note"), "x", False, lambda folder: raising(error))
    assert (row.what, row.measured, row.aside, row.note) == ("keke", None, aside, "a note")


def test_one_that_is_measured_leaves_no_files() -> None:
    kept: list[Path] = []

    def measured(folder: Path) -> float:
        kept.append(folder)
        (folder / "trace.json").write_text("[]")
        return 2.5

    (row,) = attempt(Peer("keke", lambda: None), "x", False, measured)
    assert row.measured == 2.5
    assert not row.aside
    assert not kept[0].exists()


def test_our_row_names_its_twin() -> None:
    (row,) = attempt(TRACERS[OURS], "x", False, lambda folder: 1.0)
    assert row.what.endswith((", pure", ", compiled"))
