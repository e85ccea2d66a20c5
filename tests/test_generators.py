"""Spans in generators and through contextlib: code that stops with a span open must not bend what runs meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest

import gputrace
from tests.recorded import Run, recording


@contextmanager
def helper(name: str) -> Iterator[None]:
    with gputrace.span(name):
        yield


def plain(name: str) -> Iterator[int]:
    with gputrace.span(name):
        yield 1
        yield 2


def through_a_helper(name: str) -> Iterator[int]:
    with helper(name):
        yield 1
        yield 2


def through_a_stack(name: str) -> Iterator[int]:
    with ExitStack() as stack:
        stack.enter_context(gputrace.span(name))
        yield 1
        yield 2


def through_both(name: str) -> Iterator[int]:
    with ExitStack() as stack:
        stack.enter_context(nullcontext())
        stack.enter_context(helper(name))
        yield 1
        yield 2


@gputrace.span("decorated")
def decorated(name: str) -> Iterator[int]:
    with gputrace.span(name):
        yield 1
        yield 2


@pytest.mark.parametrize("make", [plain, through_a_helper, through_a_stack, through_both, decorated])
def test_two_generators_interleaved(tmp_path: Path, make: Any) -> None:
    with recording(tmp_path, "host") as run:
        with gputrace.span("around"):
            first, second = make("first"), make("second")
            next(first)
            next(second)
            with gputrace.span("between"):
                next(first)
                next(second)
            assert next(first, None) is None
        assert next(second, None) is None
    assert run.report["out_of_order"] == run.report["unfinished"] == 0
    assert len(run.slices) == (6 if make is decorated else 4)
    a, b = run.named("first")[0], run.named("second")[0]
    around, between = run.named("around")[0], run.named("between")[0]
    assert a.ts < b.ts < between.ts < between.ts + between.dur < a.ts + a.dur < around.ts + around.dur < b.ts + b.dur
    assert (around.depth, between.depth) == (0, 1)
    assert around.track == between.track
    assert a.track != around.track


def own_track(run: Run) -> set[str | None]:
    return {s.name for s in run.slices if s.track[-1].startswith("MainThread")}


def test_helpers_of_plain_code_stay_on_its_track(tmp_path: Path) -> None:
    """A @contextmanager is a generator by letter alone: it runs straight down its thread."""
    with recording(tmp_path, "host") as run:
        with gputrace.span("a"), helper("b"), gputrace.span("c"):
            pass
        with ExitStack() as stack:
            stack.enter_context(gputrace.span("d"))
            stack.enter_context(helper("e"))
            with gputrace.span("f"):
                pass
    assert own_track(run) == set("abcdef")
    assert {s.name: s.depth for s in run.slices} == {"a": 0, "b": 1, "c": 2, "d": 0, "e": 1, "f": 2}


def test_a_helper_as_decorator(tmp_path: Path) -> None:
    @helper("outer")
    def work() -> None:
        with gputrace.span("inner"):
            pass

    with recording(tmp_path, "host") as run:
        work()
        work()
    assert own_track(run) == {"outer", "inner"}
    assert sorted(s.depth for s in run.slices) == [0, 0, 1, 1]


def test_a_generator_left_unfinished(tmp_path: Path) -> None:
    """Closing it, or losing the last reference to it, ends its span."""
    with recording(tmp_path, "host") as run:
        with closing(plain("closed")) as generator:
            next(generator)
        forgotten = plain("forgotten")
        next(forgotten)
        del forgotten
        thrown = plain("thrown")
        next(thrown)
        with pytest.raises(KeyError):
            thrown.throw(KeyError("x"))
        never = plain("never")
        del never
    assert {s.name: s.args.get("error") for s in run.slices} == {
        "closed": None,  # ended early, which is no failure
        "forgotten": None,
        "thrown": "KeyError",
    }
    assert run.report["unfinished"] == 0


def test_functions_called_by_a_generator(tmp_path: Path) -> None:
    def work(name: str) -> None:
        with gputrace.span(name):
            pass

    def generator() -> Iterator[None]:
        with gputrace.span("generator"):
            work("one")
            yield
            work("two")

    with recording(tmp_path, "host") as run, gputrace.span("around"):
        list(generator())
    assert run.report["out_of_order"] == 0
    outer = run.named("generator")[0]
    for name in ("one", "two"):
        s = run.named(name)[0]
        assert outer.ts <= s.ts
        assert s.ts + s.dur <= outer.ts + outer.dur


def test_yield_from_and_expressions(tmp_path: Path) -> None:
    def inner(n: int) -> Iterator[int]:
        with gputrace.span(f"inner{n}"):
            yield from range(2)

    def outer() -> Iterator[int]:
        with gputrace.span("outer"):
            for n in range(2):
                yield from inner(n)

    with recording(tmp_path, "host") as run:
        a, b = outer(), outer()
        assert [x for pair in zip(a, b, strict=True) for x in pair] == [0, 0, 1, 1, 0, 0, 1, 1]
    assert len(run.slices) == 6
    assert run.report["out_of_order"] == run.report["unfinished"] == 0


def test_coroutines_that_no_loop_runs(tmp_path: Path) -> None:
    """Trio, curio, a scheduler of one's own: no asyncio tells which task this is."""

    class Switch:
        def __await__(self) -> Iterator[None]:
            yield

    async def work(name: str) -> None:
        with gputrace.span(name):
            await Switch()
            await Switch()

    with recording(tmp_path, "host") as run:
        a, b = work("a"), work("b")
        for _ in range(2):
            a.send(None)
            b.send(None)
        for each in (a, b):
            with pytest.raises(StopIteration):
                each.send(None)
    assert {s.name: "ended" in s.args for s in run.slices} == {"a": False, "b": False}
    assert run.report["out_of_order"] == run.report["unfinished"] == 0


def test_generators_on_streams(tmp_path: Path) -> None:
    def work(stream: Any, name: str) -> Iterator[None]:
        with gputrace.span(name, stream=stream):
            stream.launch(1000)
            yield
            with gputrace.span(f"{name} in", stream=stream):
                stream.launch(1000)

    with recording(tmp_path) as run:
        stream = run.stream()
        a, b = work(stream, "a"), work(stream, "b")
        next(a)
        next(b)
        assert next(a, None) is next(b, None) is None
    assert run.report["out_of_order"] == run.report["unfinished"] == 0
    for side in (run.host, run.device):
        assert len(side) == 4
        for s in side:
            assert run.parent_name(s) == (s.name[:1] if s.name.endswith(" in") else None)
