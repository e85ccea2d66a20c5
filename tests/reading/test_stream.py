"""A file's bytes, unzipped within bounds, and what is told of a torn one."""

from __future__ import annotations

import gzip
import os
import random
import zlib
from pathlib import Path

import pytest

from gputrace.errors import InputError
from gputrace.reading.stream import ByteStream, Limits

DATA = random.Random(5).randbytes(1000) * 700


def read(path: Path, size: int = 100_003, limits: Limits | None = None) -> tuple[bytes, str]:
    with ByteStream(str(path), limits) as stream:
        pieces = []
        while piece := stream.read(size):
            pieces.append(piece)
            assert len(piece) == size or not stream.read(1)
        data = b"".join(pieces)
        assert stream.place == len(data)
        return data, stream.torn


@pytest.mark.parametrize("size", [1_000, 65_536, 10_000_000])
def test_plain_and_gzipped(tmp_path: Path, size: int) -> None:
    (tmp_path / "a").write_bytes(DATA)
    (tmp_path / "b").write_bytes(gzip.compress(DATA))
    (tmp_path / "c").write_bytes(gzip.compress(DATA[:5]) + gzip.compress(DATA[5:]) + bytes(512))
    for name in "abc":
        assert read(tmp_path / name, size) == (DATA, "")


@pytest.mark.parametrize("written", [False, True])
def test_a_pipe_is_told_and_not_waited_for(tmp_path: Path, written: bool) -> None:
    os.mkfifo(tmp_path / "a.json")
    kept = os.open(tmp_path / "a.json", os.O_RDWR) if written else None  # a writer, as of the shell's <(...)
    try:
        with pytest.raises(InputError, match=r"a\.json: is a pipe, .*: write it to a file first"):
            ByteStream(str(tmp_path / "a.json"))
    finally:
        if kept is not None:
            os.close(kept)


def test_cut_anywhere(tmp_path: Path) -> None:
    whole = gzip.compress(DATA)
    for cut in (3, 9, 100, len(whole) // 2, len(whole) - 8, len(whole) - 1):
        (tmp_path / "a").write_bytes(whole[:cut])
        data, torn = read(tmp_path / "a")
        assert DATA.startswith(data)
        assert torn == "the gzip stream is cut short"
    assert len(data) == len(DATA)


def test_damaged_inside_and_behind(tmp_path: Path) -> None:
    whole = bytearray(gzip.compress(DATA))
    (tmp_path / "a").write_bytes(whole + b"hello")
    assert read(tmp_path / "a") == (DATA, "5 or more bytes behind the gzip stream are no part of it")
    whole[len(whole) // 2] ^= 0xFF
    (tmp_path / "a").write_bytes(whole)
    assert read(tmp_path / "a")[1].startswith("the gzip stream is ")


def test_a_bomb_is_refused_before_it_fills_memory(tmp_path: Path) -> None:
    stream = zlib.compressobj(9, wbits=31)
    bomb = b"".join(stream.compress(bytes(1 << 20)) for _ in range(100)) + stream.flush()
    assert len(bomb) < 400_000
    (tmp_path / "a.json.gz").write_bytes(bomb)
    with pytest.raises(InputError, match="unfolds to more than 200 times its size") as failure:
        read(tmp_path / "a.json.gz", 1 << 20)
    assert failure.value.place < 90 << 20
    assert read(tmp_path / "a.json.gz", 1 << 20, Limits(ratio=2_000)) == (bytes(100 << 20), "")
    with pytest.raises(InputError, match="unfolds to more than 1,000 bytes"):
        read(tmp_path / "a.json.gz", 100, Limits(most_bytes=1_000))


def test_what_cannot_be_opened(tmp_path: Path) -> None:
    for path, why in [(tmp_path / "none", "No such file or directory"), (tmp_path, "Is a directory")]:
        with pytest.raises(InputError, match=why) as failure:
            read(path)
        assert str(path) in str(failure.value)
