"""What a file is, by its content: names and suffixes mislead.

It looks at a file's first bytes alone.
"""

from __future__ import annotations

import os
import shlex

from gputrace.errors import InputError
from gputrace.reading.fields import Malformed, varint, well_formed
from gputrace.reading.stream import ByteStream, Limits

PERFETTO = "perfetto"
CHROME = "chrome"

_HEAD_BYTES = 1 << 16
_PACKETS_LOOKED_AT = 16
#: Behind so many that hold something, what is none is damage. No text begins with as many.
_ENOUGH = 2
# First bytes of what people give a trace reader by mistake, and what to do with it.
_OTHERS = (
    (b"PK\x03\x04", "a zip archive: unpack it, and give the traces in it"),
    (b"\x28\xb5\x2f\xfd", "compressed by zstd: decompress it first (zstd -d)"),
    (b"\xfd7zXZ", "compressed by xz: decompress it first (xz -d)"),
    (b"BZh", "compressed by bzip2: decompress it first (bunzip2)"),
    (b"SQLite format 3\0", "an SQLite database, perhaps a report of Nsight Systems: export that as JSON"),
    (b"PERFILE2", "a recording of perf: convert it first (perf script)"),
    (b"\x10\x00\x04\x46\x78\x54\x16\x00", "a Fuchsia trace, which is not read"),
    (b"\x7fELF", "a program"),
    (b"<!", "a web page"),
    (b"<html", "a web page"),
)


def recognise(path: str, limits: Limits | None = None) -> str:
    """`PERFETTO` or `CHROME`. Raises `InputError` that says what the file seems to be instead."""
    refuse_folder(path)
    with ByteStream(path, limits) as stream:
        return of_head(stream.read(_HEAD_BYTES), path, stream.torn)


def refuse_folder(path: str) -> None:
    """Raises `InputError` for a folder, of traces or of a recording, where one trace is wanted."""
    if os.path.isdir(path):
        one = f"gputrace merge -o all.pftrace {shlex.quote(path)}"
        raise InputError(path, 0, f"is a folder: give a trace in it, or make one of it first, by {one}")


def of_head(head: bytes, path: str, torn: str = "") -> str:
    """The same by a file's first bytes, unzipped. ``torn`` says why there are no more, if that is not its end."""
    if not head:
        raise InputError(path, 0, torn or "is empty")
    for magic, what in _OTHERS:
        if head.startswith(magic):
            raise InputError(path, 0, f"is no trace but {what}")
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if text[:1] in (b"[", b"{"):
        return CHROME
    if _begins_with_packets(head):
        return PERFETTO
    raise InputError(path, 0, "is not a trace: neither Perfetto's packets nor Chrome's JSON begin it")


def _begins_with_packets(head: bytes) -> bool:
    i = seen = 0
    while i < len(head) and seen < _PACKETS_LOOKED_AT:
        if head[i] != 0x0A:
            return seen >= _ENOUGH
        try:
            length, body = varint(head, i + 1, len(head))
        except Malformed:
            return bool(seen)
        if body + length > len(head):  # larger than what was read, or torn
            return bool(seen) or _fields_begin(head, body)
        if not well_formed(head, body, body + length):
            return seen >= _ENOUGH
        i = body + length
        seen += bool(length)
    return True


def _fields_begin(head: bytes, i: int) -> bool:
    """Does a message's first field begin at ``i``? For one that is not whole."""
    try:
        key, _ = varint(head, i, len(head))
    except Malformed:
        return False
    return key >> 3 > 0 and key & 7 in (0, 1, 2, 5)
