"""Runs something around a Python function by replacing its code, and not the function.

Whoever holds the function (a name imported from its module, a subclass, a pickle, a compiler that asks for its
identity) holds the same one as before, with the same parameters, defaults, closure and place in the source. It knows no
framework.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, FunctionType
    from typing import Any, Final
else:
    # As `types` has it, which by now may be a file of the program's.
    FunctionType = type(lambda: None)

_VARARGS: Final = 0x04
_VARKEYWORDS: Final = 0x08
#: Frames of these can be suspended: a wrapper would end before they do.
_SUSPENDABLE: Final = 0x20 | 0x80 | 0x200

# What stands in the text for the two functions, which the code carries as constants: nothing is put into the globals of
# the function's module.
_ORIGINAL: Final = "<gputrace original>"
_AROUND: Final = "<gputrace around>"

# The names behind `return` are never read: they make the closure's cells the code's own, in the same order.
_TEXT: Final = """\
def make({free}):
    def wrapper({parameters}):
        _gputrace_original, _gputrace_around = {original!r}, {around!r}
        with _gputrace_around({arguments}) as _gputrace_span:
            return {returned}
        ({free})
    return wrapper
"""


def swap(
    function: Any, around: Callable[..., Any], *, with_result: bool = False
) -> tuple[CodeType, Callable[[], bool]]:
    """Have ``with around(...)`` stand around each call of a function; return its new code and what puts the old back,
    which says whether it did: not where another's code stands there by then.

    ``around`` gets what the function gets: positional parameters in order, the others by name. It and the context
    manager that it returns must raise nothing. ``with_result``: what the block is entered as is given what the function
    returned (``result(value)``), and returns it. Raises `TypeError` for what is no plain Python function.
    """
    if not isinstance(function, FunctionType) or function.__code__.co_flags & _SUSPENDABLE:
        raise TypeError(f"{function!r} is no plain Python function")
    old = function.__code__
    original = FunctionType(old, function.__globals__, function.__name__, function.__defaults__, function.__closure__)
    original.__kwdefaults__ = function.__kwdefaults__
    original.__qualname__ = function.__qualname__
    new = _wrapper(old, original, around, with_result)
    function.__code__ = new

    def undo() -> bool:
        if function.__code__ is not new:
            return False  # somebody put theirs there since, and keeps ours for the original
        function.__code__ = old
        return True

    return new, undo


def _wrapper(old: CodeType, original: FunctionType, around: Callable[..., Any], with_result: bool) -> CodeType:
    parameters, arguments = _signature(old)
    call = f"_gputrace_original({arguments})"
    text = _TEXT.format(
        free=", ".join(old.co_freevars),
        parameters=parameters,
        arguments=arguments,
        original=_ORIGINAL,
        around=_AROUND,
        returned=f"_gputrace_span.result({call})" if with_result else call,
    )
    names: dict[str, Any] = {}
    exec(compile(text, old.co_filename, "exec"), names)
    made: CodeType = names["make"](*old.co_freevars).__code__
    assert made.co_freevars == old.co_freevars
    return made.replace(
        co_name=old.co_name,
        co_qualname=old.co_qualname,
        co_firstlineno=old.co_firstlineno,
        co_consts=_filled(made.co_consts, {_ORIGINAL: original, _AROUND: around}),
    )


def _filled(constants: tuple[Any, ...], values: dict[str, Any]) -> tuple[Any, ...]:
    """The constants with functions for their stand-ins; a pair of these is one constant."""
    found: list[Any] = []
    for constant in constants:
        if isinstance(constant, tuple):
            found.append(_filled(constant, values))
        else:
            found.append(values.get(constant, constant) if isinstance(constant, str) else constant)
    return tuple(found)


def _signature(code: CodeType) -> tuple[str, str]:
    """A function's parameters as its ``def`` has them, without defaults, and the arguments that pass them all on."""
    names = list(code.co_varnames)
    count, keywords = code.co_argcount, code.co_kwonlyargcount
    positional, named, rest = names[:count], names[count : count + keywords], names[count + keywords :]
    parameters, arguments = [*positional], [*positional]
    if code.co_posonlyargcount:
        parameters.insert(code.co_posonlyargcount, "/")
    if code.co_flags & _VARARGS:
        star = f"*{rest.pop(0)}"
        parameters.append(star)
        arguments.append(star)
    elif named:
        parameters.append("*")
    parameters += named
    arguments += [f"{name}={name}" for name in named]
    if code.co_flags & _VARKEYWORDS:
        parameters.append(f"**{rest[0]}")
        arguments.append(f"**{rest[0]}")
    return ", ".join(parameters), ", ".join(arguments)
