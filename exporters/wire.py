"""The protobuf wire format: as much of it as writing and cutting a trace takes.

It knows no message: field numbers are its callers'. https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

from struct import Struct

from .values import clean

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import IO

# Wire types: what the three low bits of a tag say of the value behind it.
VARINT = 0
FIXED64 = 1
BYTES = 2

_MASK64 = (1 << 64) - 1
_SMALL = [bytes((n,)) for n in range(0x80)]
_pack_double = Struct("<d").pack
_pack_fixed64 = Struct("<Q").pack

#: Bytes of a file looked at in one step while its messages are counted.
CHUNK = 1 << 20


def varint(value: int) -> bytes:
    """``value`` in seven bits a byte, least first. A negative one is written as its 64-bit complement: ten bytes."""
    if 0 <= value < 0x80:
        return _SMALL[value]
    if 0 <= value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    value &= _MASK64
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def tag(number: int, wire_type: int) -> bytes:
    """What stands before a field's value."""
    return varint(number << 3 | wire_type)


def integer(number: int, value: int) -> bytes:
    """A field of any varint type (int64, uint64, bool, enum). ``value`` lies in -2^63 .. 2^64 - 1."""
    return tag(number, VARINT) + varint(value)


def double(number: int, value: float) -> bytes:
    """A double field; NaN and the infinities are values like any other."""
    return tag(number, FIXED64) + _pack_double(value)


def fixed64(number: int, value: int) -> bytes:
    """A fixed64 field."""
    return tag(number, FIXED64) + _pack_fixed64(value)


def message(number: int, body: bytes) -> bytes:
    """A field of bytes, or of an encoded message."""
    return tag(number, BYTES) + sized(body)


def sized(body: bytes) -> bytes:
    """``body`` behind its length: such a field without its tag."""
    return varint(len(body)) + body


def string(number: int, value: str) -> bytes:
    """A string field, its text made fit for readers."""
    return message(number, clean(value).encode())


def whole_messages(file: IO[bytes], number: int) -> int:
    """Length in bytes of the longest prefix of ``file`` that is whole messages of field ``number`` and nothing else.

    It stops at the first byte that is not the field's tag, so a tail of zeros (space set aside and never written) is
    left out. ``number`` is below 16: its tag is one byte. The file is read ``CHUNK`` by chunk from its start.
    """
    first = tag(number, BYTES)[0]
    end = file.seek(0, 2)
    place = 0  # every message before this is whole
    while place < end:
        file.seek(place)
        chunk = file.read(CHUNK)
        i, size = 0, len(chunk)
        # A tag and its length take at most eleven bytes; where fewer are left, the next chunk begins here. At the end
        # of the file no chunk is longer, and `_length` sees for itself that bytes are missing.
        limit = size - 10 if place + size < end else size
        while i < limit:
            if chunk[i] != first:
                return place + i
            length, body = _length(chunk, i + 1)
            if not body or place + body + length > end:
                return place + i
            i = body + length
        if not i:
            return place  # the file shrank while we read
        place += i
    return place


def _length(data: bytes, i: int) -> tuple[int, int]:
    """A message's length and where its body starts, or 0 there if the length is cut short or longer than a varint."""
    value = shift = 0
    for place in range(i, min(i + 10, len(data))):
        byte = data[place]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place + 1
        shift += 7
    return 0, 0
