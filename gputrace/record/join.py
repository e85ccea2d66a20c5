"""Puts a recording's shards together into one trace.

It knows no format: an exporter says where a shard's last whole record ends, and what stands before and after them all.
Streaming, whatever the size; the output appears under its name only when it is whole.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import IO

    from gputrace.model import Exporter
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
    progress: Progress | None = None,
) -> int:
    """Write the trace to ``output`` and return its size in bytes; 0, and no file, if no shard holds anything.

    The folder is left as it was: remove it with `remove` once the trace is there. An existing output is replaced at the
    end or, if anything fails, kept. Raises OSError, or whatever the exporter raises.
    """
    shards = [(path, length) for path in map(folder.shard_path, folder.numbers()) if (length := _whole(path, exporter))]
    if not shards:
        return 0

    # Beside the output, so that it can be put in its place in one step; the same name if a killed join is repeated.
    parent, name = os.path.split(output)
    new = os.path.join(parent, f".{name[:48]}.{folder.recording.id[:12]}.joined")
    try:
        with open(new, "wb", opener=_opener_like(output)) as file:
            write, finish = _compressing(file) if gzip else (file.write, lambda: 0)
            write(exporter.header(folder.recording, folder.snapshots(), metadata))
            done, total = 0, sum(length for _, length in shards)
            for path, length in shards:
                for chunk in _chunks(path, length):
                    write(chunk)
                    done += len(chunk)
                    if progress:
                        progress(done, total)
            write(exporter.footer())
            finish()
        size = os.path.getsize(new)
        os.replace(new, output)
    except BaseException:
        if os.path.exists(new):
            os.unlink(new)  # gives a full disk its room back
        raise
    return size


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


def _whole(path: str, exporter: type[Exporter]) -> int:
    """Length in bytes of what is good of a shard."""
    with open(path, "rb") as shard:
        return exporter.whole(shard) if os.fstat(shard.fileno()).st_size else 0


def _chunks(path: str, length: int) -> Iterator[bytes]:
    with open(path, "rb", buffering=0) as shard:
        while length and (chunk := shard.read(min(length, _CHUNK))):
            length -= len(chunk)
            yield chunk


def _compressing(file: IO[bytes]) -> tuple[Callable[[bytes], int], Callable[[], int]]:
    """A write and a finish that gzip into ``file``. No name and no time inside: the same bytes each time."""
    import zlib

    stream = zlib.compressobj(wbits=16 + zlib.MAX_WBITS)  # 16: with gzip's header and checksum
    return lambda data: file.write(stream.compress(data)), lambda: file.write(stream.flush())


def _opener_like(output: str) -> Callable[[str, int], int]:
    """Opens files with the permissions of the output that will be replaced, else those of any new file."""
    mode = os.stat(output).st_mode & 0o777 if os.path.exists(output) else None

    def opener(path: str, flags: int) -> int:
        file = os.open(path, flags | os.O_NOFOLLOW, 0o666)
        if mode is not None:
            os.fchmod(file, mode)
        return file

    return opener
