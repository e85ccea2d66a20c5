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
_FIXED32 = 5

_MASK64 = (1 << 64) - 1
_SMALL = [bytes((n,)) for n in range(0x80)]
_pack_double = Struct("<d").pack
_pack_fixed64 = Struct("<Q").pack

#: Bytes of a file looked at in one step while its messages are counted.
CHUNK = 1 << 16

#: Bytes at the end of those messages in which each is looked into: a file system loses whole pages.
TAIL = 1 << 12


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
    left out. So is a message that zeros completed: one malformed packet, and the engine refuses the trace. Messages
    are looked into at the end alone, as that is where a file is torn; before that their lengths are enough. None is
    empty. ``number`` is below 16: its tag is one byte. The file is read ``CHUNK`` by chunk from its start.
    """
    first = tag(number, BYTES)[0]
    end = file.seek(0, 2)
    place = 0  # every message before this is complete
    suspect = last = 0  # where the last two chunks began
    while place < end:
        suspect, last = last, place
        file.seek(place)
        chunk = file.read(CHUNK)
        size, room = len(chunk), end - place
        # A tag and its length take at most eleven bytes; where fewer are left, the next chunk begins here. At the end
        # of the file no chunk is longer, and bytes that are missing read as a length of 0.
        limit = size - 10 if size < room else size
        i = 0
        while i < limit:
            length, body = chunk[i + 1] if i + 1 < size else 0, i + 2
            if length >= 0x80:
                length, body = _read(chunk, i + 1)
            if chunk[i] != first or not length or body + length > room:
                break
            i = body + length
        place += i
        if i < limit:
            break  # torn here
    file.seek(suspect)
    tail = file.read(place - suspect)
    i = 0
    while i < len(tail):
        length, body = _read(tail, i + 1)
        if i >= len(tail) - TAIL and not _well_formed(tail, body, body + length):
            break
        i = body + length
    return suspect + i


def _well_formed(data: bytes, i: int, end: int) -> bool:
    """Whether fields, of whatever meaning, fill ``data[i:end]`` exactly."""
    while i < end:
        key, i = _read(data, i)
        kind = key & 7
        if kind == VARINT:
            _, i = _read(data, i)
        elif kind == FIXED64:
            i += 8
        elif kind == BYTES:
            length, i = _read(data, i)
            i = i + length if i else 0
        elif kind == _FIXED32:
            i += 4
        else:
            return False
        if not i or not key >> 3:  # cut short; or field 0, which nothing has
            return False
    return i == end


def _read(data: bytes, i: int) -> tuple[int, int]:
    """A varint at ``i`` and where what follows it starts, or 0 there if it is cut short or too long."""
    value = shift = 0
    for place in range(i, min(i + 10, len(data))):
        byte = data[place]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place + 1
        shift += 7
    return 0, 0
