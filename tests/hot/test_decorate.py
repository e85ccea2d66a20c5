"""A span as decorator: one slice a call, and the function none the wiser."""

from __future__ import annotations

import asyncio
import functools
import inspect
import traceback
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

import gputrace
from tests.recorded import recording


def names(run: Any) -> list[str | None]:
    return [s.name for s in sorted(run.slices, key=lambda s: (s.ts, s.depth))]


@pytest.fixture(params=["applied while off", "applied while on"])
def applied(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_each_call_is_a_slice(tmp_path: Path, applied: str) -> None:
    def work(n: int, *, twice: bool = False) -> int:
        """What it does."""
        return 2 * n if twice else n

    if applied == "applied while off":
        decorated = gputrace.span("work", batch=3)(work)
        assert decorated(1) == 1
    with recording(tmp_path, "host") as run:
        if applied == "applied while on":
            decorated = gputrace.span("work", batch=3)(work)
        assert [decorated(n, twice=True) for n in range(3)] == [0, 2, 4]
    assert decorated(5) == 5
    assert names(run) == ["work"] * 3
    assert [s.args for s in run.slices] == [{"batch": 3}] * 3
    assert decorated.__name__ == "work"
    assert decorated.__doc__ == "What it does."
    assert inspect.signature(decorated) == inspect.signature(work)
    assert decorated.__wrapped__ is work  # type: ignore[attr-defined]


def test_one_decorated_in_two_recordings(tmp_path: Path) -> None:
    with recording(tmp_path) as first:
        stream = first.stream()

        @gputrace.span("work", stream=stream)
        def work() -> None:
            pass

        work()
    with recording(tmp_path, gpus=first.gpus) as second:
        work()
        work()
    assert (len(first.device), len(second.device)) == (1, 2)
    assert (len(first.host), len(second.host)) == (1, 2)


def test_recursion(tmp_path: Path) -> None:
    @gputrace.span("f")
    def f(n: int) -> int:
        return n and 1 + f(n - 1)

    with recording(tmp_path, "host") as run:
        assert f(20) == 20
    assert [s.depth for s in run.slices] == list(range(21))


def test_methods_of_all_kinds(tmp_path: Path, applied: str) -> None:
    def make() -> Any:
        class Thing:
            @gputrace.span("method")
            def method(self, x: int) -> tuple[Any, int]:
                return self, x

            @gputrace.span("class")
            @classmethod
            def outside_class(cls, x: int) -> tuple[Any, int]:
                return cls, x

            @classmethod
            @gputrace.span("class")
            def inside_class(cls, x: int) -> tuple[Any, int]:
                return cls, x

            @gputrace.span("static")
            @staticmethod
            def outside_static(x: int) -> int:
                return x

            @staticmethod
            @gputrace.span("static")
            def inside_static(x: int) -> int:
                return x

        return Thing

    thing = make() if applied == "applied while off" else None
    with recording(tmp_path, "host") as run:
        thing = thing or make()
        one = thing()
        assert one.method(1) == (one, 1)
        assert thing.outside_class(2) == one.inside_class(2) == (thing, 2)
        assert thing.outside_static(3) == one.inside_static(3) == 3
    assert names(run) == ["method", "class", "class", "static", "static"]


def test_coroutines(tmp_path: Path, applied: str) -> None:
    async def work(n: int) -> int:
        await asyncio.sleep(0)
        return n

    decorated: Any = gputrace.span("work")(work) if applied == "applied while off" else None

    async def main() -> list[int]:
        nonlocal decorated
        decorated = decorated or gputrace.span("work")(work)
        assert inspect.iscoroutinefunction(decorated)
        return await asyncio.gather(*(decorated(n) for n in range(10)))

    with recording(tmp_path, "host") as run:
        assert asyncio.run(main()) == list(range(10))
    assert names(run) == ["work"] * 10
    assert all(s.depth == 0 and s.dur >= 0 for s in run.slices)
    assert run.report["out_of_order"] == 0


def test_generators_keep_send_throw_and_return(tmp_path: Path, applied: str) -> None:
    def echo(start: int) -> Iterator[Any]:
        got = yield start
        try:
            got = yield got
        except KeyError:
            got = yield "caught"
        return f"returned {got}"

    decorated: Any = gputrace.span("echo")(echo) if applied == "applied while off" else None
    with recording(tmp_path, "host") as run:
        decorated = decorated or gputrace.span("echo")(echo)
        assert inspect.isgeneratorfunction(decorated)
        generator = decorated(1)
        assert next(generator) == 1
        assert generator.send("two") == "two"
        assert generator.throw(KeyError("three")) == "caught"
        with pytest.raises(StopIteration) as stop:
            generator.send("four")
        assert stop.value.value == "returned four"
        assert list(decorated(7)) == [7, None]
    assert names(run) == ["echo", "echo"]
    assert run.report["unfinished"] == 0


def test_async_generators_keep_asend_athrow_and_aclose(tmp_path: Path) -> None:
    seen: list[Any] = []

    @gputrace.span("echo")
    async def echo(start: int) -> AsyncIterator[Any]:
        try:
            got = yield start
            while True:
                try:
                    got = yield got
                except KeyError:
                    got = yield "caught"
                except LookupError:
                    return
        finally:
            seen.append("finally")

    async def main() -> None:
        assert inspect.isasyncgenfunction(echo)
        generator: Any = echo(1)
        assert await anext(generator) == 1
        assert await generator.asend("two") == "two"
        assert await generator.athrow(KeyError("three")) == "caught"
        assert await generator.asend("four") == "four"
        assert await generator.athrow(KeyError("five")) == "caught"
        await generator.aclose()
        assert seen == ["finally"]
        async for item in echo(5):
            assert item == 5
            break
        other: Any = echo(6)
        await anext(other)
        await anext(other)
        with pytest.raises(StopAsyncIteration):
            await other.athrow(IndexError("the generator ends by this"))
        with pytest.raises(StopAsyncIteration):
            await anext(other)
        failing: Any = echo(7)
        await anext(failing)
        with pytest.raises(ZeroDivisionError):
            await failing.athrow(ZeroDivisionError())

    with recording(tmp_path, "host") as run:
        asyncio.run(main())
    assert names(run) == ["echo"] * 4
    assert run.report["unfinished"] == run.report["out_of_order"] == 0


def test_an_exception_passes_unchanged(tmp_path: Path) -> None:
    class Error(Exception):
        pass

    raised = Error("mine")

    @gputrace.span("work")
    def work() -> None:
        raise raised

    with recording(tmp_path, "host") as run:
        with pytest.raises(Error) as caught:
            work()
        with pytest.raises(Error) as again, gputrace.span("block"):
            raise raised
    assert caught.value is again.value is raised
    assert raised.__context__ is None
    assert raised.__cause__ is None
    assert not getattr(raised, "__notes__", [])
    assert {s.args["error"] for s in run.slices} == {"Error"}


def test_a_span_adds_no_frame_to_a_traceback(tmp_path: Path) -> None:
    def depth(span: Any) -> int:
        try:
            with span:
                raise KeyError("x")
        except KeyError as error:
            return len(traceback.extract_tb(error.__traceback__))

    import contextlib

    with recording(tmp_path) as run:
        assert depth(gputrace.span("x")) == depth(gputrace.span("x", run.stream())) == depth(contextlib.nullcontext())


@pytest.mark.parametrize("what", [None, 3, "text", [], {"a": 1}])
def test_what_cannot_be_called_is_refused(tmp_path: Path, what: Any) -> None:
    for run_it in (lambda: gputrace.span("x")(what),):
        with pytest.raises(TypeError, match="decorates"):
            run_it()
        with recording(tmp_path, "host"), pytest.raises(TypeError, match="decorates"):
            run_it()


def test_a_callable_object_and_a_partial(tmp_path: Path) -> None:
    class Adder:
        def __call__(self, a: int, b: int) -> int:
            return a + b

    with recording(tmp_path, "host") as run:
        assert gputrace.span("adder")(Adder())(1, 2) == 3
        assert gputrace.span("partial")(functools.partial(max, 3))(2) == 3
        assert gputrace.span("builtin")(len)([1]) == 1
        assert gputrace.span("class")(dict)(a=1) == {"a": 1}
    assert names(run) == ["adder", "partial", "builtin", "class"]


def test_decorated_and_not_called_costs_nothing_for_good(tmp_path: Path) -> None:
    """Every decorator takes a span from the pool and never enters it."""
    with recording(tmp_path) as run:
        stream = run.stream()
        for n in range(300):
            gputrace.span("never", stream=stream, n=n)(len)
            gputrace.span("never either", n=n)
        before = run.gpu.live_events
        for n in range(300):
            gputrace.span("never", stream=stream, n=n)(len)
        assert run.gpu.live_events - before < 300, "a few are the anchors'"
    assert run.slices == []


# --- without parentheses ----------------------------------------------------------------------------------------------


def test_without_parentheses_it_takes_the_function_s_name(tmp_path: Path, applied: str) -> None:
    def make() -> Any:
        class Thing:
            @gputrace.span
            def method(self, x: int) -> tuple[Any, int]:
                return self, x

            @gputrace.span
            @classmethod
            def of_class(cls) -> Any:
                return cls

            @gputrace.span
            @staticmethod
            def static(x: int) -> int:
                return x

            @property
            @gputrace.span
            def value(self) -> str:
                return "value"

        @gputrace.span
        async def coroutine(x: int) -> int:
            await asyncio.sleep(0)
            return x

        @gputrace.span
        def generator(n: int) -> Iterator[int]:
            """Counts."""
            yield from range(n)

        return Thing, coroutine, generator

    made = make() if applied == "applied while off" else None
    with recording(tmp_path, "host") as run:
        thing_type, coroutine, generator = made or make()
        thing = thing_type()
        assert thing.method(1) == (thing, 1)
        assert thing_type.of_class() is thing_type
        assert thing_type.static(2) == 2
        assert thing.value == "value"
        assert asyncio.run(coroutine(3)) == 3
        assert list(generator(2)) == [0, 1]
    assert sorted(map(str, names(run))) == ["coroutine", "generator", "method", "of_class", "static", "value"]
    assert inspect.iscoroutinefunction(coroutine)
    assert inspect.isgeneratorfunction(generator)
    assert (generator.__name__, generator.__doc__) == ("generator", "Counts.")
    assert list(inspect.signature(generator).parameters) == ["n"]


def test_without_parentheses_it_has_the_window_of_the_current_stream(tmp_path: Path) -> None:
    @gputrace.span
    def work() -> None:
        pass

    with recording(tmp_path) as run:
        with gputrace.use_stream(run.stream()):
            made_inside = gputrace.span(work)
            made_inside()
        work()
    assert [each.name for each in run.device] == ["work", "work"]
    assert [each.name for each in run.host] == ["work", "work", "work"]


def test_annotate_is_one_without_parentheses_too(tmp_path: Path) -> None:
    @gputrace.annotate  # type: ignore[arg-type]
    def work() -> int:
        return 1

    with recording(tmp_path, "host") as run:
        assert work() == 1
    assert names(run) == ["work"]


class Named:
    """May be called, and is no function: a module of a model, say."""

    def __call__(self) -> int:
        raise AssertionError

    def __str__(self) -> str:
        return "named"


def test_what_can_be_called_and_is_no_function_is_a_name(tmp_path: Path, applied: str) -> None:
    name: Any = Named()
    with gputrace.span(name):
        pass
    with recording(tmp_path, "host") as run:
        with gputrace.span(name):
            pass
        with gputrace.span(name, n=1):
            pass
    assert names(run) == ["named", "named"]


def test_a_function_with_args_or_as_a_window_is_a_name(tmp_path: Path) -> None:
    def work() -> None:
        pass

    name: Any = work
    with recording(tmp_path) as run:
        with gputrace.span(name, n=1):
            pass
        with gputrace.span(name, run.stream()):
            pass
        with gputrace.window(name):
            pass
    assert all("work" in str(each) for each in names(run))
    assert len(run.host) == 3


def test_decorating_leaves_the_spans_in_turn_as_they_were(tmp_path: Path) -> None:
    """The pure twin takes a span from its pool before it looks at a name."""
    with recording(tmp_path, "host") as run:
        for k in range(50):
            with gputrace.span(f"outer {k}"):

                @gputrace.span
                def work(n: int) -> int:
                    return n

                with gputrace.span("inner"):
                    assert work(k) == k
    assert sorted(map(str, names(run))) == sorted([f"outer {k}" for k in range(50)] + ["inner", "work"] * 50)
    assert [each.depth for each in run.slices if each.name == "work"] == [2] * 50
