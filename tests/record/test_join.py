"""Shards become one trace, or the trace that was there stays and the shards too."""

from __future__ import annotations

import contextlib
import errno
import gzip
import os
import resource
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from gputrace.model import Exporter, Recording
from gputrace.record.join import join, remove
from gputrace.shards import ShardFolder


class Lines(Exporter):
    """A format of lines: what is after the last newline was torn."""

    @classmethod
    def header(cls, recording: Recording, snapshots: object, metadata: object) -> bytes:
        return b"header\n"

    @classmethod
    def footer(cls) -> bytes:
        return b"footer\n"

    @classmethod
    def whole(cls, shard: IO[bytes]) -> int:
        return shard.read().rfind(b"\n") + 1


class Broken(Lines):
    @classmethod
    def footer(cls) -> bytes:
        raise OSError(errno.ENOSPC, "No space left on device")


@pytest.fixture
def folder(tmp_path: Path) -> ShardFolder:
    path = tmp_path / "shards"
    path.mkdir()
    return ShardFolder.create(str(path), Recording("ab" * 16, 0, 0), ".lines", "tests:Lines", "host")


def fill(folder: ShardFolder, *shards: bytes) -> None:
    for shard in shards:
        Path(folder.shard_path(folder.claim())).write_bytes(shard)


def test_shards_in_order_cut_to_their_last_whole_record(folder: ShardFolder, tmp_path: Path) -> None:
    fill(
        folder, b"one\ntwo\nto", b"", b"torn before its first newline", b"three\n", *[b"%d\n" % n for n in range(4, 12)]
    )
    output = tmp_path / "out.lines"
    size = join(folder, str(output), Lines, gzip=False, metadata={})
    expected = b"header\none\ntwo\nthree\n" + b"".join(b"%d\n" % n for n in range(4, 12)) + b"footer\n"
    assert output.read_bytes() == expected
    assert size == len(expected)
    assert sorted(os.listdir(tmp_path)) == ["out.lines", "shards"]


class Refusing(Lines):
    @classmethod
    def whole(cls, shard: IO[bytes]) -> int:
        raise AssertionError("it was looked into")


def test_a_shard_as_long_as_its_process_said_is_not_looked_into(folder: ShardFolder, tmp_path: Path) -> None:
    fill(folder, b"one\n", b"two\nto")
    folder.write_report(0, {"shard_bytes": 4})
    with pytest.raises(AssertionError, match="looked into"):
        join(folder, str(tmp_path / "out.lines"), Refusing, gzip=False, metadata={})
    folder.write_report(1, {"shard_bytes": 4})  # two bytes of a write that failed follow
    join(folder, str(tmp_path / "out.lines"), Lines, gzip=False, metadata={})
    assert (tmp_path / "out.lines").read_bytes() == b"header\none\ntwo\nfooter\n"
    os.truncate(folder.shard_path(1), 4)
    assert join(folder, str(tmp_path / "out.lines"), Refusing, gzip=False, metadata={})


def test_nothing_traced_writes_nothing(folder: ShardFolder, tmp_path: Path) -> None:
    fill(folder, b"", b"torn")
    output = tmp_path / "out.lines"
    output.write_text("before")
    assert join(folder, str(output), Lines, gzip=False, metadata={}) == 0
    assert output.read_text() == "before"


def test_gzip_is_the_same_each_time(folder: ShardFolder, tmp_path: Path) -> None:
    fill(folder, b"one\n" * 1000)
    for name in ("a", "b"):
        size = join(folder, str(tmp_path / name), Lines, gzip=True, metadata={})
    a, b = (tmp_path / "a").read_bytes(), (tmp_path / "b").read_bytes()
    assert a == b
    assert size == len(a) < 200
    assert gzip.decompress(a) == b"header\n" + b"one\n" * 1000 + b"footer\n"


def test_progress_counts_to_the_end(folder: ShardFolder, tmp_path: Path) -> None:
    fill(folder, b"x" * 2_500_000 + b"\n", b"y\n")
    seen: list[tuple[int, int]] = []
    join(folder, str(tmp_path / "out"), Lines, gzip=False, metadata={}, progress=lambda *a: seen.append(a))
    assert len(seen) > 2
    assert seen == sorted(seen)
    assert seen[-1] == (2_500_003, 2_500_003)


@pytest.mark.parametrize("compress", [False, True])
def test_an_existing_output_is_kept_if_the_join_fails(folder: ShardFolder, tmp_path: Path, compress: bool) -> None:
    fill(folder, b"one\n")
    output = tmp_path / "out.lines"
    output.write_text("before")
    with pytest.raises(OSError, match="No space left"):
        join(folder, str(output), Broken, gzip=compress, metadata={})
    assert output.read_text() == "before"
    assert sorted(os.listdir(tmp_path)) == ["out.lines", "shards"]
    assert folder.numbers() == [0]


def test_a_file_system_that_takes_no_more(folder: ShardFolder, tmp_path: Path) -> None:
    fill(folder, b"x" * 300_000 + b"\n")
    with files_at_most(100_000), pytest.raises(OSError, match="File too large"):
        join(folder, str(tmp_path / "out.lines"), Lines, gzip=False, metadata={})
    assert os.listdir(tmp_path) == ["shards"]


def test_permissions_of_a_replaced_output_are_kept(folder: ShardFolder, tmp_path: Path) -> None:
    fill(folder, b"one\n")
    output = tmp_path / "out.lines"
    output.touch(0o600)
    join(folder, str(output), Lines, gzip=False, metadata={})
    assert stat.S_IMODE(output.stat().st_mode) == 0o600
    join(folder, str(tmp_path / "new.lines"), Lines, gzip=False, metadata={})
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE((tmp_path / "new.lines").stat().st_mode) == 0o666 & ~umask


def test_remove(folder: ShardFolder) -> None:
    fill(folder, b"one\n")
    remove(folder.path)
    assert not os.path.exists(folder.path)
    remove(folder.path)


@contextlib.contextmanager
def files_at_most(size: int) -> Iterator[None]:
    """No file may grow past ``size`` bytes: a real disk's refusal, without filling one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
