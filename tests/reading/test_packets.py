"""Where packets lie: the quick way finds exactly what a walk byte by byte does, whatever the bytes."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gputrace.errors import InputError
from gputrace.reading import packets as module
from gputrace.reading.fields import Malformed, encode_bytes, encode_integer, fields, varint, well_formed
from gputrace.reading.packets import frame, packets, whole
from gputrace.reading.stream import ByteStream, Limits


def walked(data: bytes) -> tuple[list[tuple[int, int, int]], int, bool]:
    """(start, body, end) of each packet, where they end, and whether what follows is no packet: one after another."""
    found, i = [], 0
    while i < len(data):
        if data[i] != 0x0A:
            return found, i, True
        try:
            length, body = varint(data, i + 1, len(data))
        except Malformed:
            return found, i, len(data) - i > 10
        if body + length > len(data):
            break
        found.append((i, body, body + length))
        i = body + length
    return found, i, False


def quick(data: bytes) -> tuple[list[tuple[int, int, int]], int, bool]:
    found, end, damaged = frame(data)
    assert module._whole_bytes(data) == (data, end, damaged)
    return list(zip(found.starts.tolist(), found.bodies.tolist(), found.ends.tolist(), strict=True)), end, damaged


def made(chance: random.Random, size: int, lengths: list[int]) -> bytearray:
    data = bytearray()
    while len(data) < size:
        length = chance.choice(lengths)
        # Bytes that look like tags and lengths lead a chain astray most.
        body = (
            bytes(chance.choices([10, 0, 1, 130, 255, 80], k=length))
            if chance.random() < 0.5
            else chance.randbytes(length)
        )
        data += encode_bytes(1, body)
    return data


@pytest.mark.parametrize("lengths", [[3, 10, 15], [1, 5, 15, 200, 3_000], [0, 1], [40_000, 300_000], [20_000, 2]])
@pytest.mark.parametrize("harm", ["none", "cut", "flipped", "zeros", "noise"])
def test_as_a_walk_byte_by_byte(lengths: list[int], harm: str) -> None:
    chance = random.Random(str((lengths, harm)))
    for _ in range(4):
        data = made(chance, chance.choice([70_000, 150_000, 300_000]), lengths)
        if harm == "cut":
            del data[-chance.randrange(1, 60) :]
        elif harm == "flipped":
            data[chance.randrange(len(data))] ^= chance.randrange(1, 256)
        elif harm == "zeros":
            data += bytes(chance.randrange(1, 20_000))
        elif harm == "noise":
            data[chance.randrange(len(data)) :] = chance.randbytes(5_000)
        assert quick(bytes(data)) == walked(bytes(data))


def test_a_chain_that_never_falls_into_step() -> None:
    # Each packet holds what looks like a packet of just its length, one byte off: blind chains stay blind.
    body = bytes([0x0A, 14]) + bytes([0x0A, 14] * 7)
    data = encode_bytes(1, body[:16]) * 20_000
    assert quick(data) == walked(data)


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.binary(max_size=300), st.integers(0, 400))
def test_any_bytes(data: bytes, times: int) -> None:
    data = data * (1 + times)
    assert quick(data) == walked(data)


def test_pieces_are_put_together(tmp_path: Path) -> None:
    data = bytes(made(random.Random(3), 500_000, [3, 15, 200, 30_000]))
    (tmp_path / "x").write_bytes(data + b"\x0a\x7fcut")
    for chunk in (1 << 10, 1 << 16, 1 << 20):
        stream = ByteStream(str(tmp_path / "x"))
        found = []
        for batch in packets(stream, chunk):
            found += [bytes(batch.data[start:end]) for start, end in zip(batch.starts, batch.ends, strict=True)]
            assert batch.place + len(batch.data) <= stream.place
        assert b"".join(found) == data
        assert b"".join(whole(ByteStream(str(tmp_path / "x")), chunk)) == data
        assert stream.torn == f"from byte {len(data):,} on it holds a packet cut short"


@pytest.mark.parametrize(
    ("tail", "what"), [(bytes(900), "zeros"), (b"\x0a\x05", "a packet cut short"), (b"hello, world", "no packet")]
)
def test_what_follows_the_packets_is_told(tmp_path: Path, tail: bytes, what: str) -> None:
    data = encode_bytes(1, b"P\x01") * 3
    (tmp_path / "x").write_bytes(data + tail)
    stream = ByteStream(str(tmp_path / "x"))
    assert sum(len(batch) for batch in packets(stream)) == 3
    assert stream.torn == f"from byte {len(data)} on it holds {what}"


def test_a_packet_beyond_the_limit(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(encode_bytes(1, b"P\x01") + b"\x0a" + b"\xff\xff\xff\xff\x07" + bytes(3 << 20))
    stream = ByteStream(str(tmp_path / "x"), Limits(most_record_bytes=1 << 20))
    with pytest.raises(InputError, match=r"it holds a packet of over 1,048,576 bytes \(at byte 4\)"):
        list(packets(stream, 1 << 16))


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.binary(max_size=80))
def test_fields_of_any_bytes(data: bytes) -> None:
    try:
        found = list(fields(data, 0, len(data)))
    except Malformed:
        assert not well_formed(data, 0, len(data))
        return
    assert well_formed(data, 0, len(data))
    assert b"".join(data[start:stop] for _, _, start, _, stop in found) == data


def test_fields_say_what_was_put_in() -> None:
    data = encode_integer(1, 300) + encode_bytes(2, b"abc") + encode_integer(47, (1 << 64) - 1)
    one, two, three = fields(data, 0, len(data))
    assert (one[0], one[3]) == (1, 300)
    assert data[two[3] : two[4]] == b"abc"
    assert (three[0], three[3]) == (47, (1 << 64) - 1)


def test_the_quick_way_is_taken() -> None:
    assert module._FEW_BYTES < 70_000  # or the tests above prove nothing
