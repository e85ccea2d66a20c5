"""A trace whose file ends before its time: that it does, and what of it can be given to another reader.

Perfetto's trace processor says nothing of a packet that is cut short, and refuses all of a torn gzip stream or of an
unclosed JSON object.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator

import numpy as np

from gputrace.errors import InputError
from gputrace.reading import packets, recognise
from gputrace.reading.chrome import ChromeReader
from gputrace.reading.stream import ByteStream
from gputrace.remote import to_open

#: Bytes looked at, or given, at once.
PIECE_BYTES = 1 << 20
_ESCAPED = re.compile(rb"\\.", re.DOTALL)
_QUOTE = ord('"')
_IS_BRACKET = np.isin(np.arange(256), list(b"[]{}"))


def is_torn(path: str) -> bool:
    """Does it end before its time? False for what gputrace does not know, and for a pipe, which can be read once.

    Raises `BareHead` where nothing of it can be read.
    """
    if not os.path.isfile(to_open(path)):
        return False
    try:
        kind = recognise.recognise(path)
        with ByteStream(path) as stream:
            if kind == recognise.CHROME:
                return not _closes(stream) or bool(stream.torn)
            for _ in packets.whole(stream):
                pass
            return bool(stream.torn)
    except recognise.BareHead:
        raise
    except InputError:
        return False


def _closes(stream: ByteStream) -> bool:
    """Is every bracket of a JSON text closed, but for that of a list of events, which may stay open?"""
    escape, opened, in_string = b"", b"", False
    while data := stream.read(PIECE_BYTES):
        text = _ESCAPED.sub(b"", escape + data)
        escape = b"\\" if text.endswith(b"\\") else b""  # of what the next piece begins with
        bytes_ = np.frombuffer(text, np.uint8)
        inside = np.cumsum(bytes_ == _QUOTE, dtype=np.uint8) % 2 != in_string  # uint8 wraps, and stays odd or even
        opened = _unmatched(opened + bytes_[_IS_BRACKET[bytes_] & ~inside].tobytes())
        in_string = bool(inside[-1]) if len(inside) else in_string
    return not in_string and opened in (b"", b"[")


def _unmatched(brackets: bytes) -> bytes:
    while True:
        fewer = brackets.replace(b"[]", b"").replace(b"{}", b"")
        if len(fewer) == len(brackets):
            return fewer
        brackets = fewer


def readable(path: str, tell: Callable[[str], None]) -> Iterator[bytes]:
    """What can be read of a torn trace, as one that is whole; ``tell`` is given a line for each thing that cannot.

    Raises `InputError` if nothing can.
    """
    with ByteStream(path) as stream:
        if recognise.recognise(path) == recognise.PERFETTO:
            for found in packets.whole(stream):
                yield from (bytes(found[at : at + PIECE_BYTES]) for at in range(0, len(found), PIECE_BYTES))
            notes = [f"{stream.torn}: what is before that is read"]
        else:
            reader = ChromeReader(stream)
            yield from _as_a_list(reader)
            notes = reader.notes
    for note in notes:
        tell(f"{path}: {note}")


def _as_a_list(reader: ChromeReader) -> Iterator[bytes]:
    import orjson

    comma = b"["
    for events in reader.batches():
        yield comma + b",\n".join(map(orjson.dumps, events))
        comma = b",\n"
    yield b"]" if comma != b"[" else b"[]"
