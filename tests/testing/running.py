"""Runs pytest on small files of tests, in a process of its own, as a person does."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.engine import Engine, Slice, assert_clean, slices
from tests.record.running import PYTHON, run

#: The outcomes by which a test's last mark is named.
OUTCOMES = {"passed", "failed", "skipped", "error", "xfailed", "xpassed", "interrupted", "unknown"}


#: Without the cache's folder, and without plugins of the tests' own environment: hypothesis takes seconds to import.
PLAIN = ("-p", "no:cacheprovider", "-p", "no:hypothesispytest")


def run_pytest(folder: Path, *arguments: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
    """`pytest ARGUMENTS` in ``folder``."""
    return run([PYTHON, "-m", "pytest", *PLAIN, *arguments], folder, **options)


def read(path: Path) -> list[Slice]:
    """The trace's slices, and that the engine had nothing against it."""
    engine = Engine(path)
    assert_clean(engine)
    return slices(engine)


def per_test(found: list[Slice]) -> Iterator[tuple[Slice, list[Slice]]]:
    """Each test's slice, and all that lies inside it on its row, in order."""
    for test in found:
        if test.depth == 0 and "nodeid" in test.args and test.name not in {"setup", "call", "teardown"}:
            end = test.ts + test.dur
            yield (
                test,
                [
                    each
                    for each in found
                    if each.track_id == test.track_id
                    and each.depth
                    and test.ts <= each.ts
                    and each.ts + each.dur <= end
                ],
            )


def outcomes(found: list[Slice]) -> dict[str, str]:
    """Each test's outcome, as the mark inside its slice says, by node id."""
    return {
        test.args["nodeid"]: mark.args["outcome"]
        for test, inside in per_test(found)
        for mark in inside
        if mark.name in OUTCOMES
    }
