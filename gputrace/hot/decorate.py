"""A span as a decorator: one span a call of a function, a coroutine or a generator.

The decorated function is as it was to whoever inspects it: name, signature, and whether it is a coroutine. It knows no
buffer; it opens spans as anyone does.
"""

from __future__ import annotations

import functools
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from typing import Any
# As in `inspect`, which costs 10 ms to import: a library's decorators are paid for with tracing off too.
CO_GENERATOR, CO_COROUTINE, CO_ASYNC_GENERATOR = 0x20, 0x80, 0x200


def decorate(function: Any, open_span: Callable[[], AbstractContextManager[Any]]) -> Any:
    """``function`` with ``open_span()`` around each call.

    A coroutine's span lasts from its first step to its return, a generator's from its first item asked for to its end;
    classmethod and staticmethod objects are decorated inside. Raises `TypeError` for what cannot be called.
    """
    if isinstance(function, (classmethod, staticmethod)):
        return type(function)(decorate(function.__func__, open_span))
    if not callable(function):
        raise TypeError(f"gputrace.span(...) decorates a function, a coroutine or a generator, not {function!r}")
    flags = _code_flags(function)
    if flags & CO_COROUTINE:

        @functools.wraps(function)
        async def coroutine(*args: Any, **kwargs: Any) -> Any:
            with open_span():
                return await function(*args, **kwargs)

        return coroutine
    if flags & CO_ASYNC_GENERATOR:

        @functools.wraps(function)
        async def async_generator(*args: Any, **kwargs: Any) -> Any:
            with open_span():
                inner = function(*args, **kwargs)
                step = inner.asend(None)
                try:
                    while True:
                        try:
                            item = await step
                        except StopAsyncIteration:
                            return
                        try:
                            sent = yield item
                        except GeneratorExit:
                            raise
                        except BaseException as error:
                            step = inner.athrow(error)
                        else:
                            step = inner.asend(sent)
                finally:
                    await inner.aclose()

        return async_generator
    if flags & CO_GENERATOR:

        @functools.wraps(function)
        def generator(*args: Any, **kwargs: Any) -> Any:
            with open_span():
                return (yield from function(*args, **kwargs))

        return generator

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with open_span():
            return function(*args, **kwargs)

    return call


def _code_flags(function: Any) -> int:
    """What kind of function this is, seen through methods, partials and `inspect.markcoroutinefunction`."""
    while isinstance(function, functools.partial):
        function = function.func
    function = getattr(function, "__func__", function)
    code = getattr(function, "__code__", None)
    flags: int = getattr(code, "co_flags", 0)
    inspect = sys.modules.get("inspect")
    if inspect is not None and inspect.iscoroutinefunction(function):
        flags |= CO_COROUTINE
    return flags
