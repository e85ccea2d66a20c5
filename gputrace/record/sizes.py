"""Sizes as people write them: "64MB". It knows nothing of what they bound."""

from __future__ import annotations

from gputrace.errors import UsageError

_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
#: Below this there is no room for the threads of a plain program.
LEAST_BYTES = 1 << 20
MOST_BYTES = 1 << 40


def size_in_bytes(size: int | str) -> int:
    """A size as bytes: an int, or a number with a unit, "64MB" or "1.5g". A MB has 2^20 bytes; case does not matter.

    Raises `UsageError` for what is no size, and beyond `LEAST_BYTES` (1 MB) to `MOST_BYTES` (1024 GB).
    """
    found = size if isinstance(size, int) else _parsed(size)
    if not LEAST_BYTES <= found <= MOST_BYTES:
        unit = "" if isinstance(size, int) or size.strip()[-1:].isalpha() else " (write its unit, like 64MB)"
        raise UsageError(f"{size!r} is {found:,.15g} bytes{unit}, and must be from 1MB to 1024GB")
    return round(found)


def _parsed(text: str) -> float:
    number = text.strip().lower().removesuffix("b").removesuffix("i")
    unit = number[-1:] if number[-1:].isalpha() else ""
    number = number.removesuffix(unit).rstrip()
    if unit not in _UNITS or not number.isascii() or not number.replace(".", "", 1).isdecimal():
        raise UsageError(f"{text!r} is no size: write it like 64MB")
    return float(number) * _UNITS[unit]
