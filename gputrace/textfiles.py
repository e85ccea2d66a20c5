"""The small text files of a recording's folder: values by name, or lines, each with a check against damage.

Values are ``key=12``, ``key="text`` and, once an item of a list, ``key+"text``; their last line checks the file. A line
of a file that several processes append to ends in a tab and its check. The check finds a changed byte, a zeroed block
and a missing end; it is no secret, so it tells nothing of who wrote. A traced program pays for this import.
"""

from __future__ import annotations

import os

from gputrace.descriptors import write_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Final

    Value = int | str | list[str]
    Values = dict[str, Value]

# O_NOFOLLOW: whoever may write into the folder must not have us read or write elsewhere.
_APPEND: Final = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
_REPLACE: Final = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
_CHECK: Final = b"check="
#: A prime: two texts of one length that differ in no more than three bytes side by side never leave one remainder.
_PRIME: Final = (1 << 32) - 5
#: No number of ours has more digits, and reading one of thousands would raise.
_MOST_DIGITS: Final = 20


class Damaged(Exception):
    """A file is not as it was written. Its text says in what way."""


def write_values(path: str, values: Mapping[str, Value]) -> None:
    """Replace a file: whole or not at all. Raises OSError."""
    new = f"{path}.{os.getpid()}.new"
    data = _format(values)
    write_file(new, _REPLACE, data + b"%s%d\n" % (_CHECK, _sum(data)))
    os.replace(new, path)


def read_values(path: str) -> Values:
    """What `write_values` wrote. Raises OSError where it cannot be read, `Damaged` where it is not what was written."""
    data = read(path)
    body, mark, check = data.rpartition(_CHECK)
    if not data:
        raise Damaged("is empty")
    if not mark or check != b"%d\n" % _sum(body):
        raise Damaged("is cut short or damaged")
    return _parse(body)


def append_line(path: str, line: str) -> None:
    """Add a line; newlines in it become spaces. Raises OSError."""
    data = encode(line.replace("\n", " "))
    # One write to a file opened for appending: lines of several processes do not mix.
    write_file(path, _APPEND, data + b"\t%d\n" % _sum(data))


def read_lines(path: str) -> tuple[list[str], int]:
    """The lines as they were added, and the number of those that are damaged, as a last one without its end is. Raises
    OSError where it cannot be read, `Damaged` where nothing is left.
    """
    data = read(path)
    if not data:
        raise Damaged("is empty")
    good: list[str] = []
    lines = data.removesuffix(b"\n").split(b"\n")
    for line in lines if data.endswith(b"\n") else lines[:-1]:
        text, _, check = line.rpartition(b"\t")
        if check == b"%d" % _sum(text):
            good.append(text.decode("utf-8", "surrogateescape"))
    return good, len(lines) - len(good)


def read(path: str) -> bytes:
    """All of a file. Raises OSError."""
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    with open(file, "rb", buffering=0) as raw:
        return raw.readall()


def encode(text: str) -> bytes:
    """Command lines and paths may hold bytes that are no UTF-8; other lone surrogates become "?"."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace")


def _sum(data: bytes) -> int:
    # zlib would be an import in every traced program. The length is in it, as zeros in front add nothing.
    return (int.from_bytes(data, "big") + (len(data) << 16)) % _PRIME


def _format(values: Mapping[str, Value]) -> bytes:
    lines = []
    for key, value in values.items():
        if isinstance(value, list):
            lines += [f'{key}+"{_escape(item)}\n' for item in value]
        elif isinstance(value, int):
            lines.append(f"{key}={int(value)}\n")
        else:
            lines.append(f'{key}="{_escape(value)}\n')
    return encode("".join(lines))


def _parse(data: bytes) -> Values:
    values: Values = {}
    for line in data.decode("utf-8", "surrogateescape").split("\n")[:-1]:
        key, quote, text = line.partition('"')
        if not quote:
            key, _, number = line.partition("=")
            digits = number.removeprefix("-")
            if digits.isascii() and digits.isdecimal() and len(digits) <= _MOST_DIGITS:
                values[key] = int(number)
        elif key.endswith("="):
            values[key[:-1]] = _unescape(text)
        elif key.endswith("+"):
            items = values.setdefault(key[:-1], [])
            if isinstance(items, list):
                items.append(_unescape(text))
    return values


def _escape(text: str) -> str:
    return str(text).replace("\\", "\\\\").replace("\n", "\\n")


def _unescape(text: str) -> str:
    return "\\".join(part.replace("\\n", "\n") for part in text.split("\\\\"))
