"""JSON text of names and plain values, without the 3 ms that importing json costs a traced program's start.

What JSON cannot say, or the engine cannot read, is said in a string: NaN, the infinities, ints of over 64 bits.
"""

from __future__ import annotations

from .values import clean, fits_int64, wide

try:
    from _json import encode_basestring as _quote  # the C half of json
except ImportError:  # a Python without it
    from json.encoder import py_encode_basestring as _quote

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


def text(string: str) -> str:
    """``string`` in quotes; only quotes, backslashes and control characters are escaped.

    The engine takes any quote behind a backslash for part of the string, so a string that ends in an escaped backslash
    would cost the whole trace: that one is escaped by its number.
    """
    quoted: str = _quote(clean(string))
    return quoted[:-3] + '\\u005c"' if quoted.endswith('\\"') and string.endswith("\\") else quoted


def value(item: object) -> str:
    """A str, bool, int, float, or a list of them; anything else as its ``str``."""
    if isinstance(item, str):
        return text(item)
    if isinstance(item, bool):
        return "true" if item else "false"
    if isinstance(item, int):
        return int.__repr__(item) if fits_int64(item) else f'"{wide(item)}"'
    if isinstance(item, float):
        if item - item == 0:
            return float.__repr__(item)  # the shortest text that reads back as the same double
        return '"NaN"' if item != item else '"Infinity"' if item > 0 else '"-Infinity"'
    if isinstance(item, (list, tuple)):
        return f"[{','.join(map(value, item))}]"
    return text(str(item))


def mapping(values: Mapping[str, object]) -> str:
    """An object of such values."""
    return "{" + ",".join(f"{text(name)}:{value(item)}" for name, item in values.items()) + "}"
