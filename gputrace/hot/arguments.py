"""Span arguments made safe to keep: ints, floats, strings and bools as they are, the rest as a short string.

Done when the span is opened, on the program's own thread: the collector must never call into the program's objects,
and what they say later is not what they said then.
"""

from __future__ import annotations

from gputrace.fence import let_through
from gputrace.model import FLOW, Flow

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Final

    from gputrace.model import Args, ArgValue

#: Characters kept of a string that was passed, of one made from something else, and of a name.
LONGEST_STRING: Final = 4096
LONGEST_DESCRIPTION: Final = 200
LONGEST_NAME: Final = 1 << 17
#: Characters that the args of one slice may have, keys, strings and wide ints together, and `ARG_COST` more for each:
#: with a name they fit into one record of the compiled twin's ring.
MOST_ARGS: Final = 1 << 18
ARG_COST: Final = 16
#: The arg that says how many others there was no room for.
LEFT_OUT: Final = "args left out"

_PLAIN = frozenset((float, bool, Flow))
_WIDE: Final = 1 << 63
#: So many args whose strings are no longer than `LONGEST_STRING` have room whatever they are.
_FEW: Final = 31


def sanitize(args: dict[str, Any]) -> dict[str, ArgValue]:
    """The args as an exporter may have them. A value whose ``__str__`` fails costs that arg alone, and so does one that
    there is no room for (`LEFT_OUT`). Raises nothing.
    """
    for name, value in args.items():
        kind = type(value)
        if kind is int:
            if not -_WIDE <= value < _WIDE:
                break
        elif kind not in _PLAIN and not (kind is str and len(value) <= LONGEST_STRING):
            break
        if type(name) is not str or len(name) > LONGEST_STRING:
            break
    else:
        if len(args) <= _FEW:
            return args
    safe: dict[str, ArgValue] = {}
    left, left_out = MOST_ARGS, 0
    for name, value in args.items():
        try:
            made = plain(value)
        except Exception as error:  # a value that cannot say what it is
            let_through(error)
            continue
        name = str.__str__(name)  # of a kind of the program's, whose hash and equality may be anything
        cost = ARG_COST + len(name) + _length(made)
        if cost > left:
            left_out += made if name == LEFT_OUT and type(made) is int else 1  # it says how many before it
            continue
        left -= cost
        safe[name] = made
    if left_out:
        safe[LEFT_OUT] = left_out
    return safe


def of_window(args: Args) -> Args:
    """A span's args for its window: what the host's slice follows, the window does not follow once more."""
    if FLOW in args:
        return {name: value for name, value in args.items() if name != FLOW}
    return args


def _length(value: ArgValue) -> int:
    """How many characters a value has: a wide int is kept in hexadecimal."""
    if type(value) is str:
        return len(value)
    if type(value) is int and not -_WIDE <= value < _WIDE:
        return len(hex(value))
    return 0


def plain(value: Any) -> ArgValue:
    """One value as an exporter may have it. Raises what the value's own methods raise."""
    kind = type(value)
    if kind is int or kind in _PLAIN:
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
        return f"<{type_name(value)} on the device>"
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
        return name if len(name) <= LONGEST_NAME else shorten(name, LONGEST_NAME)
    try:
        return shorten(str(name), LONGEST_DESCRIPTION)
    except Exception as error:  # whatever the program's object raises
        let_through(error)
        return f"<{type_name(name)}>"


def kind_name(kind: Any) -> str:
    try:
        return shorten(str(kind.__name__), LONGEST_DESCRIPTION)
    except Exception as error:  # it was called by hand, with anything
        let_through(error)
        return "error"


_name_of_type = type.__dict__["__name__"].__get__


def type_name(value: object) -> str:
    """What the value's type is called, whatever a metaclass of the program's says."""
    return shorten(_name_of_type(type(value)), LONGEST_DESCRIPTION)


def describe(error: object) -> str:
    if type(error) is str:
        return shorten(error, LONGEST_DESCRIPTION)
    name = type_name(error)
    try:
        text = str.__str__(str(error))  # which may be of a kind of the program's
    except Exception as raised:  # whatever the program's object raises
        let_through(raised)
        text = ""
    return shorten(f"{name}: {text}", LONGEST_DESCRIPTION) if text else name
