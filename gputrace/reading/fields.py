"""One protobuf message's fields as they lie in the bytes, without knowing the message.

https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

from collections.abc import Iterator

VARINT = 0
FIXED64 = 1
BYTES = 2
FIXED32 = 5


class Malformed(ValueError):
    """The bytes are no message. ``place`` is where in them that shows."""

    def __init__(self, place: int) -> None:
        super().__init__(f"no protobuf message at byte {place}")
        self.place = place


def varint(data: bytes, i: int, end: int) -> tuple[int, int]:
    """The value at ``i`` (64 bits, unsigned), and where it ends. Raises `Malformed` if that is not before ``end``."""
    value = shift = 0
    for place in range(i, min(i + 10, end)):
        byte = data[place]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, place + 1
        shift += 7
    raise Malformed(i)


def fields(data: bytes, i: int, end: int) -> Iterator[tuple[int, int, int, int, int]]:
    """(number, wire type, start, value, stop) of each field of ``data[i:end]``.

    ``data[start:stop]`` is the whole field with its tag. ``value`` is a varint's value; of the others, where the
    contents begin: they end at ``stop``. Raises `Malformed`.
    """
    while i < end:
        start = i
        key = data[i]
        i += 1
        if key >= 0x80:
            key, i = varint(data, start, end)
        kind = key & 7
        if kind == VARINT:
            value, i = varint(data, i, end)
        elif kind == BYTES:
            length, value = varint(data, i, end)
            i = value + length
        elif kind == FIXED64:
            value = i
            i += 8
        elif kind == FIXED32:
            value = i
            i += 4
        else:
            raise Malformed(start)
        if i > end or not key >> 3:
            raise Malformed(start)
        yield key >> 3, kind, start, value, i


def well_formed(data: bytes, i: int, end: int) -> bool:
    """Do fields, of whatever meaning, fill ``data[i:end]`` exactly?"""
    try:
        for _ in fields(data, i, end):
            pass
    except Malformed:
        return False
    return True


def encode_varint(value: int) -> bytes:
    """``value`` (0 .. 2^64 - 1) in seven bits a byte, least first."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def encode_integer(number: int, value: int) -> bytes:
    """A varint field."""
    return encode_varint(number << 3) + encode_varint(value & 0xFFFF_FFFF_FFFF_FFFF)


def encode_bytes(number: int, body: bytes) -> bytes:
    """A field of bytes, a string or a message."""
    return encode_varint(number << 3 | BYTES) + encode_varint(len(body)) + body
