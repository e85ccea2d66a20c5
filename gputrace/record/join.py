"""Puts a recording's shards together into one trace.

It knows no format: an exporter says where a shard's last whole record ends, and what stands before and after them all.
Streaming, whatever the size; the output appears under its name only when it is whole.
"""

from __future__ import annotations

import io
import os

from gputrace.record.replace import replacing

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any

    from gputrace.model import Exporter
    from gputrace.record.salvage import Salvaged
    from gputrace.shards import ShardFolder

    #: Called with (bytes done, bytes in all) of the shards as they are read.
    Progress = Callable[[int, int], None]

_CHUNK = 1 << 20


def join(
    folder: ShardFolder,
    output: str,
    exporter: type[Exporter],
    *,
    gzip: bool,
    metadata: Mapping[str, object],
    salvaged: Mapping[int, Salvaged] | None = None,
    progress: Progress | None = None,
) -> int:
    """Write the trace to ``output`` and return its size in bytes; 0, and no file, if no shard holds anything.

    ``salvaged`` says, by shard number, which shards go on in a tail (`gputrace.record.salvage`).
    The folder is left as it was: remove it with `remove` once the trace is there. An existing output is replaced at the
    end or, if anything fails, kept. Raises OSError, or whatever the exporter raises.
    """
    shards = list(_parts(folder, exporter, salvaged or {}))
    if not shards:
        return 0

    with replacing(output, folder.recording.id[:12] + ".joined", gzip=gzip) as write:
        write(exporter.header(folder.recording, folder.snapshots(), metadata))
        done, total = 0, sum(length for _, length in shards)
        for path, length in shards:
            for chunk in _chunks(path, length):
                write(chunk)
                done += len(chunk)
                if progress:
                    progress(done, total)
        write(exporter.footer())
    return os.path.getsize(output)


def remove(path: str) -> None:
    """Remove a shard folder. What a process that still runs puts there meanwhile is removed too, within reason."""
    for _ in range(3):
        try:
            for name in os.listdir(path):
                os.unlink(os.path.join(path, name))
            os.rmdir(path)
        except FileNotFoundError:
            if not os.path.exists(path):
                return
        except OSError:
            continue
        else:
            return


def _parts(
    folder: ShardFolder, exporter: type[Exporter], salvaged: Mapping[int, Salvaged]
) -> Iterator[tuple[str, int]]:
    """The files that make the trace, in order, and how much of each."""
    for number in folder.numbers():
        yield from parts_of(folder, number, exporter, salvaged.get(number))


def parts_of(
    folder: ShardFolder, number: int, exporter: type[Exporter], tail: Salvaged | None
) -> Iterator[tuple[str, int]]:
    """The same of one process."""
    path = folder.shard_path(number)
    if tail is not None:
        length = tail.length
    elif folder.report(number).get("shard_bytes") == (size := os.path.getsize(path)):
        length = size  # all that the process said it wrote, so nothing is torn: reading it would take long
    else:
        length = whole(path, exporter)
    if length:
        yield (tail.path if tail is not None else "") or path, length
    if tail is not None and tail.tail:
        yield folder.tail_path(number), tail.tail


def whole(path: str, exporter: type[Exporter], most: int | None = None) -> int:
    """Length in bytes of what is good of a shard, looking at no more than its first ``most`` bytes."""
    size = os.path.getsize(path)
    if most is None or most >= size:
        with open(path, "rb") as shard:
            return exporter.whole(shard) if size else 0
    with io.BufferedReader(_Beginning(path, most)) as shard:
        return exporter.whole(shard) if most else 0


class _Beginning(io.RawIOBase):
    """The first ``size`` bytes of a file, as if there were no more."""

    def __init__(self, path: str, size: int) -> None:
        self._file = io.FileIO(path)
        self._size = size

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        if whence == os.SEEK_END:
            offset, whence = self._size + offset, os.SEEK_SET
        return self._file.seek(offset, whence)

    def readinto(self, buffer: Any, /) -> int:
        left = max(self._size - self._file.tell(), 0)
        return self._file.readinto(memoryview(buffer)[:left]) or 0

    def close(self) -> None:
        self._file.close()
        super().close()


def _chunks(path: str, length: int) -> Iterator[bytes]:
    with open(path, "rb", buffering=0) as shard:
        while length and (chunk := shard.read(min(length, _CHUNK))):
            length -= len(chunk)
            yield chunk
