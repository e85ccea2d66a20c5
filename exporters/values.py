"""What every format does with names and numbers that a trace's readers cannot take as they are."""

from __future__ import annotations


def clean(text: str) -> str:
    """``text`` as any reader can take it: encodable as UTF-8, and without NUL.

    A lone surrogate (half a character, as ``os.fsdecode`` makes of a bad byte) becomes U+FFFD. A NUL becomes U+2400,
    its picture: the engine keeps strings the C way and would drop the rest of the name without a word.
    """
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            text = "".join("\ufffd" if "\ud800" <= c <= "\udfff" else c for c in text)
    return text.replace("\0", "\u2400") if "\0" in text else text


def fits_int64(value: int) -> bool:
    """Whether the engine's only integer type, which is SQLite's, can hold ``value``."""
    return -(1 << 63) <= value < 1 << 63


def wide(value: int) -> str:
    """Text for an int too wide for a format: hexadecimal, as Python refuses to write 4,300 decimal digits."""
    return hex(value)


def nearest_double(value: int) -> float:
    """``value`` as a double; infinite beyond the largest."""
    try:
        return float(value)
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")
