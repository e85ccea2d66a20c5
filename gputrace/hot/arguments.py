"""Span arguments made safe to keep: ints, floats, strings and bools as they are, the rest as a short string.

Done when the span is opened, on the program's own thread: the collector must never call into the program's objects,
and what they say later is not what they said then.
"""

from __future__ import annotations

from gputrace.fence import let_through

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Final

    from gputrace.model import ArgValue

#: Characters kept of a string that was passed, and of one made from something else.
LONGEST_STRING: Final = 4096
LONGEST_DESCRIPTION: Final = 200

_PLAIN = frozenset((int, float, bool))


def sanitize(args: dict[str, Any]) -> dict[str, ArgValue]:
    """The args as an exporter may have them. A value whose ``__str__`` fails costs that arg alone. Raises nothing."""
    for value in args.values():
        kind = type(value)
        if kind not in _PLAIN and not (kind is str and len(value) <= LONGEST_STRING):
            break
    else:
        return args
    safe: dict[str, ArgValue] = {}
    for name, value in args.items():
        try:
            safe[name] = plain(value)
        except Exception as error:  # a value that cannot say what it is
            let_through(error)
    return safe


def plain(value: Any) -> ArgValue:
    """One value as an exporter may have it. Raises what the value's own methods raise."""
    kind = type(value)
    if kind in _PLAIN:
        return value  # type: ignore[no-any-return]
    if isinstance(value, str):
        return shorten(str(value), LONGEST_STRING)
    # Subclasses lose their class here: an enum is its value, a numpy float is a float.
    if isinstance(value, bool):
        return bool(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    if on_device(value):
        return f"<{kind.__name__} on the device>"
    if kind.__module__ == "numpy" and getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
        return plain(value.item()) if type(value.item()) is not kind else shorten(str(value), LONGEST_DESCRIPTION)
    return shorten(str(value), LONGEST_DESCRIPTION)


def on_device(value: Any) -> bool:
    """Does reading this value wait for a GPU? True for device arrays and tensors of any framework."""
    kind = type(value)
    if kind.__module__ in ("builtins", "numpy"):
        return False
    return bool(getattr(value, "is_cuda", False)) or hasattr(value, "__cuda_array_interface__")


def shorten(text: str, longest: int) -> str:
    """At most ``longest`` characters of the text, the last of them an ellipsis where some were cut.

    As a str and no subclass: what a ``__str__`` gives may have methods of the program's.
    """
    text = str.__str__(text)
    return text if len(text) <= longest else text[: longest - 1] + "…"


def as_name(name: Any) -> str:
    """A name as exporters may have it, made on the program's own thread."""
    if type(name) is str:
        return name
    try:
        return shorten(str(name), LONGEST_DESCRIPTION)
    except Exception as error:  # whatever the program's object raises
        let_through(error)
        return f"<{type(name).__name__}>"


def kind_name(kind: Any) -> str:
    try:
        return str(kind.__name__)
    except Exception as error:  # it was called by hand, with anything
        let_through(error)
        return "error"


def describe(error: object) -> str:
    if type(error) is str:
        return shorten(error, LONGEST_DESCRIPTION)
    name = type(error).__name__
    try:
        text = str(error)
    except Exception as raised:  # whatever the program's object raises
        let_through(raised)
        text = ""
    return shorten(f"{name}: {text}", LONGEST_DESCRIPTION) if text else name
