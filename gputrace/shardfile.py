"""The file a traced process writes its shard to, careful with the program's descriptors.

Descriptors are the program's: it may close them all, give their numbers to files of its own, or have been started
without standard streams, so that a file opened for good would become its standard error. The one kept here has a number
that programs do not reach, and before each write it is asked whether it is still this file; if not, it is left alone
and the file is opened anew. It knows no format.
"""

from __future__ import annotations

import errno
import fcntl
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

_APPEND: Final = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)
#: More than this is not kept until the next flush.
KEPT_BYTES: Final = 1 << 18
#: More than this is not kept however long no descriptor can be had.
MOST_KEPT_BYTES: Final = 1 << 24
#: From here up, a descriptor's number is out of most programs' way.
OUT_OF_THE_WAY: Final = 200


class ShardFile:
    """Writes at the end of a file that exists, from memory, at each `flush`. Used by one thread at a time."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.closed = False
        self._kept: list[bytes] = []
        self._size = 0
        self._written = 0
        self._descriptor = -1
        self._identity = (0, 0)

    @property
    def length(self) -> int:
        """Bytes taken so far: the file's length once all of them are in it."""
        return self._written + self._size

    @property
    def kept(self) -> int:
        """Bytes taken that are not in the file yet."""
        return self._size

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
        try:
            if not self._is_ours():
                self._open()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE) and self._size < MOST_KEPT_BYTES:
                return  # the program has every descriptor in use for now
            self.closed = True
            raise
        data = memoryview(b"".join(self._kept))
        self._kept, self._size = [], 0
        try:
            while data:
                written = os.write(self._descriptor, data)
                self._written += written
                data = data[written:]
        except BaseException:
            self.closed = True
            raise

    def close(self) -> None:
        """Flush, and take no more."""
        try:
            if not self.closed:
                self.flush()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Let go of the descriptor, if it is still this file's, and take no more; what was not flushed is not written.

        For a forked child, whose parent goes on writing.
        """
        self.closed = True
        if self._is_ours():
            os.close(self._descriptor)
        self._descriptor = -1

    def _open(self) -> None:
        file = os.open(self.path, _APPEND)
        try:
            try:
                self._descriptor = fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, OUT_OF_THE_WAY)
            except OSError:  # the process may not have so many
                self._descriptor = fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, 3)
        finally:
            os.close(file)
        self._identity = _identity(self._descriptor)

    def _is_ours(self) -> bool:
        """Is the descriptor open, and still the file that was opened?"""
        try:
            return self._descriptor >= 0 and _identity(self._descriptor) == self._identity
        except OSError:
            return False


def _identity(descriptor: int) -> tuple[int, int]:
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino
