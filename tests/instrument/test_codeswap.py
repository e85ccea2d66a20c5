"""A swapped function is the one it was, to whoever calls, holds or inspects it."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from gputrace.instrument.codeswap import swap


class Around:
    """Notes what it was given and when it was left."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Around:
        self.calls.append((args, kwargs))
        return self

    def __enter__(self) -> Around:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self.calls.append("left" if kind is None else kind.__name__)

    def result(self, value: Any) -> Any:
        self.calls.append(value)
        return value


def plain(a: int, b: int = 2) -> tuple[Any, ...]:
    """Has a docstring."""
    return a, b


def every_kind(a: int, /, b: int, *rest: int, c: int = 3, d: int, **more: int) -> tuple[Any, ...]:
    return a, b, rest, c, d, more


def no_star(a: int = 1, *, c: int = 3) -> tuple[Any, ...]:
    return a, c


def closing_over(x: int, y: int) -> Callable[..., Any]:
    def inner(self: int, *args: int, **kwargs: int) -> tuple[Any, ...]:
        return y, x, self, args, kwargs

    return inner


CALLS: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = [
    (plain, (1,), {}),
    (plain, (1,), {"b": 5}),
    (every_kind, (1, 2, 3, 4), {"d": 6, "z": 7}),
    (every_kind, (1,), {"b": 2, "c": 5, "d": 6}),
    (no_star, (), {"c": 9}),
    (closing_over(4, 5), (1, 2), {"k": 3}),
    (lambda a, b=7: (a, b), (1,), {}),
]


@pytest.mark.parametrize(("function", "args", "kwargs"), CALLS)
def test_it_returns_what_it_returned(function: Any, args: Any, kwargs: Any) -> None:
    expected, signature, spec = function(*args, **kwargs), inspect.signature(function), inspect.getfullargspec(function)
    names, globals_before = dict(vars(function)), set(function.__globals__)
    around = Around()
    _, undo = swap(function, around)
    try:
        assert function(*args, **kwargs) == expected
        assert inspect.signature(function) == signature
        assert inspect.getfullargspec(function) == spec
        assert function.__code__.co_name == function.__name__
        assert vars(function) == names
        assert set(function.__globals__) == globals_before
        assert len(around.calls) == 2
        assert around.calls[1] == "left"
    finally:
        undo()
    assert function(*args, **kwargs) == expected
    assert len(around.calls) == 2


def test_it_is_the_same_to_those_who_hold_it() -> None:
    held, pickled, source = plain, pickle.dumps(plain), inspect.getsource(plain)
    around = Around()
    _, undo = swap(plain, around)
    try:
        assert held(3) == (3, 2)
        assert around.calls == [((3, 2), {}), "left"]
        assert pickle.loads(pickled) is plain
        assert pickle.dumps(plain) == pickled
        assert inspect.getsource(plain) == source
        assert plain.__doc__ == "Has a docstring."
    finally:
        undo()


def test_an_error_passes_through_it() -> None:
    def fails() -> None:
        raise LookupError("the program's own")

    around = Around()
    swap(fails, around)
    with pytest.raises(LookupError, match="the program's own"):
        fails()
    assert around.calls[-1] == "LookupError"


def test_wrong_arguments_are_refused_in_the_same_words() -> None:
    def takes_one(a: int) -> int:
        return a

    def message() -> str:
        with pytest.raises(TypeError) as refused:
            takes_one()  # type: ignore[call-arg]
        return str(refused.value)

    before = message()
    around = Around()
    swap(takes_one, around)
    assert message() == before
    assert around.calls == []


def test_what_it_returned_is_handed_on() -> None:
    def three() -> int:
        return 3

    around = Around()
    swap(three, around, with_result=True)
    assert three() == 3
    assert around.calls == [((), {}), 3, "left"]


def test_another_tools_code_is_left_when_ours_goes() -> None:
    def one() -> int:
        return 1

    _, undo = swap(one, Around())
    one.__code__ = (lambda: 2).__code__
    undo()
    assert one() == 2


def test_two_swaps_stand_around_one_function() -> None:
    def one() -> int:
        return 1

    outer, inner = Around(), Around()
    _, undo_inner = swap(one, inner)
    _, undo_outer = swap(one, outer)
    assert one() == 1
    assert outer.calls == inner.calls == [((), {}), "left"]
    undo_outer()
    assert one() == 1
    assert (len(outer.calls), len(inner.calls)) == (2, 4)
    undo_inner()
    assert one() == 1
    assert len(inner.calls) == 4


async def coroutine() -> None: ...


def generator() -> Any:
    yield 1


@pytest.mark.parametrize("function", [len, int, coroutine, generator, object()])
def test_what_is_no_plain_function_is_refused(function: Any) -> None:
    with pytest.raises(TypeError, match="no plain Python function"):
        swap(function, Around())
