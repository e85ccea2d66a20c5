"""The core remembers of code, by its address, whether it can be suspended. What makes room for another may run code."""

from __future__ import annotations

import gc
import weakref
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import gputrace
from tests.hot.twin import in_twin
from tests.recorded import recording

#: Of hot/native/spans.c.
CODES = 512


def plain(after: Any) -> None:
    with gputrace.span("plain"):
        after()


def generator(name: str) -> Iterator[None]:
    with gputrace.span(name):
        yield


def place(code: CodeType) -> int:
    return (id(code) >> 5) % CODES


def colliding() -> tuple[CodeType, CodeType, CodeType]:
    """Two plain pieces of code and a generator's that share a place."""
    found: dict[int, tuple[list[CodeType], list[CodeType]]] = defaultdict(lambda: ([], []))
    kept = []
    while True:
        for kind, function in enumerate((plain, generator)):
            code = function.__code__.replace(co_firstlineno=len(kept) + 1)
            kept.append(code)
            there = found[place(code)]
            there[kind].append(code)
            if len(there[0]) >= 2 and there[1]:
                return there[0][0], there[0][1], there[1][0]


@in_twin("compiled")
def test_a_callback_that_runs_code_of_the_same_place(tmp_path: Path) -> None:
    first, second, suspended = colliding()
    running: list[Iterator[None]] = []

    def gone(_: object) -> None:
        running.append(FunctionType(suspended, globals())("inside"))
        next(running[-1])

    with recording(tmp_path, "host") as run:
        FunctionType(first, globals())(lambda: None)
        watched = weakref.ref(first, gone)
        del first
        gc.collect()
        assert not running  # the cache holds it
        FunctionType(second, globals())(lambda: None)
        assert len(running) == 1
        running.append(FunctionType(suspended, globals())("later"))
        next(running[-1])
        with gputrace.span("outside"):
            for each in reversed(running):
                assert next(each, "over") == "over"
    assert watched() is None
    by_name = {s.name: s for s in run.slices}
    assert all("tasks" in by_name[name].track for name in ("inside", "later"))
    assert run.report["out_of_order"] == 0
