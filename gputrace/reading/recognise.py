"""What a file is, by its content: names and suffixes mislead.

It looks at a file's first bytes alone, and of a short file at all of them.
"""

from __future__ import annotations

import os
import shlex

from gputrace.errors import InputError
from gputrace.reading.fields import BYTES, Malformed, fields, varint, well_formed
from gputrace.reading.stream import ByteStream, Limits

PERFETTO = "perfetto"
CHROME = "chrome"

_HEAD_BYTES = 1 << 16
_PACKETS_LOOKED_AT = 16
#: Behind so many that hold something, what is none is damage. No text begins with as many.
_ENOUGH = 2
#: Fields of a packet that hold no event: times and ids, how it was carried, clocks, tracks, and what a tracing service
#: says of the recording. Numbers as in the package's trace_packet.proto.
SAY_NO_EVENT = frozenset({3, 6, 8, 10, 12, 13, 33, 35, 36, 41, 42, 43, 44, 45, 58, 59, 60, 69, 79, 87, 89, 98})
#: Of our own traces: what the first packet begins with, its sequence (see `exporters/perfetto.py`), and what is in the
#: last.
_OUR_BEGIN, _OUR_END = b"\x50\x80\x20", b"gputrace.end"
_CHROME_EVENTS, _CHROME_METADATA = 5, 2
#: Of fewer nobody can say what they begin.
_FEW_BYTES = 16
_AGAIN = "Copy or fetch it again, and look whether a disk is full"
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
    """`PERFETTO` or `CHROME`. Raises `InputError` that says what the file seems to be instead, `BareHead` of one that
    is cut short before its first event.
    """
    refuse_folder(path)
    with ByteStream(path, limits) as stream:
        head = stream.read(_HEAD_BYTES)
        torn = stream.torn
    kind = _of_head(head, path, torn)
    if len(head) < _HEAD_BYTES and (_is_bare if kind == PERFETTO else _is_bare_json)(head, path, torn):
        raise BareHead(path)
    return kind


class BareHead(InputError):
    """The beginning of a trace, and no event behind it."""

    def __init__(self, path: str) -> None:
        super().__init__(
            path,
            0,
            f"is only the beginning of a trace: it is cut short or damaged before its first event. {_AGAIN}",
        )


def refuse_folder(path: str) -> None:
    """Raises `InputError` for a folder, of traces or of a recording, where one trace is wanted."""
    if os.path.isdir(path):
        one = f"gputrace merge -o all.pftrace {shlex.quote(path)}"
        raise InputError(path, 0, f"is a folder: give a trace in it, or make one of it first, by {one}")


def _of_head(head: bytes, path: str, torn: str = "") -> str:
    """The same by a file's first bytes, unzipped. ``torn`` says why there are no more, if that is not its end."""
    if torn and len(head) < _FEW_BYTES:
        raise InputError(path, 0, f"{torn} before its first event. {_AGAIN}")
    if not head:
        raise InputError(path, 0, "is empty")
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


def _is_bare(head: bytes, path: str, torn: str) -> bool:
    from gputrace.reading.packets import frame  # this module is needed without numpy, too

    found, end, _ = frame(head)
    if any(_holds_event(head, *span) for span in found.spans()):
        return False
    cut_between = head.startswith(_OUR_BEGIN, 2) and _OUR_END not in head
    return end < len(head) or bool(torn) or cut_between


def _holds_event(data: bytes, start: int, end: int) -> bool:
    try:
        for number, kind, _, value, stop in fields(data, start, end):
            if number == _CHROME_EVENTS and kind == BYTES:
                if any(inner[0] != _CHROME_METADATA for inner in fields(data, value, stop)):
                    return True
            elif number not in SAY_NO_EVENT:
                return True
    except Malformed:
        return False
    return False


def _is_bare_json(head: bytes, path: str, torn: str) -> bool:
    from gputrace.reading.chrome import ChromeReader  # what `query` needs of this module does without a JSON parser

    with ByteStream(path) as stream:
        reader = ChromeReader(stream)
        try:
            if any(event.get("ph") != "M" for events in reader.batches() for event in events):
                return False
        except InputError:
            if reader.cut_short:
                return True
            raise
        return not reader.closed or bool(torn)


def _fields_begin(head: bytes, i: int) -> bool:
    """Does a message's first field begin at ``i``? For one that is not whole."""
    try:
        key, _ = varint(head, i, len(head))
    except Malformed:
        return False
    return key >> 3 > 0 and key & 7 in (0, 1, 2, 5)
