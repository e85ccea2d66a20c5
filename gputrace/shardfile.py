"""The file a traced process writes its shard to, without holding on to a descriptor of the program's process.

Descriptors are the program's: it may close them all, give their numbers to files of its own, or have been started
without standard streams, so that a file opened for good would become its standard error. This file is opened by its
path for each flush, away from 0, 1 and 2, and closed again: some 20 us, twenty times a second. It knows no format.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

_APPEND: Final = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)
#: More than this is not kept until the next flush.
KEPT_BYTES: Final = 1 << 18


class ShardFile:
    """Writes at the end of a file that exists, from memory, at each `flush`. Used by one thread at a time."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.closed = False
        self._kept: list[bytes] = []
        self._size = 0

    def write(self, data: bytes) -> int:
        """Take all of ``data``. Raises OSError if it had to be written at once and could not be."""
        if self.closed:
            raise ValueError("write to a closed file")
        self._kept.append(data)
        self._size += len(data)
        if self._size > KEPT_BYTES:
            self.flush()
        return len(data)

    def flush(self) -> None:
        """Hand everything to the operating system. Raises OSError; what was written by then may end in a torn record,
        and nothing is written after it.
        """
        if not self._kept:
            return
        data = memoryview(b"".join(self._kept))
        self._kept, self._size = [], 0
        file = _away_from_stdio(os.open(self.path, _APPEND))
        try:
            while data:
                data = data[os.write(file, data) :]
        except BaseException:
            self.closed = True
            raise
        finally:
            os.close(file)

    def close(self) -> None:
        """Flush, and take no more."""
        if not self.closed:
            self.flush()
            self.closed = True


def _away_from_stdio(file: int) -> int:
    """The same file by a number that no program takes for a standard stream."""
    if file > 2:
        return file
    import fcntl  # only a program started without its standard streams comes here

    try:
        return fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, 3)
    finally:
        os.close(file)
