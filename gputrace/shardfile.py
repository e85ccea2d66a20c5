"""The file a traced process writes its shard to, careful with the program's descriptors.

The file stays open, out of the program's way (`gputrace.descriptors`); where the program has closed it all the same, it
is opened anew. It knows no format.
"""

from __future__ import annotations

import errno
import os

from gputrace.descriptors import OwnFile
from gputrace.fence import let_through

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

_APPEND: Final = os.O_WRONLY | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0)
#: More than this is not kept until the next flush, when others may do the collector's work beside a slow disk.
KEPT_BYTES: Final = 1 << 22
#: More than this is not kept however long no descriptor can be had.
MOST_KEPT_BYTES: Final = 1 << 24


class ShardFile:
    """Writes at the end of a file that exists, from memory, at each `flush`. Used by one thread at a time."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.closed = False
        self._kept: list[bytes] = []
        self._size = 0
        self._written = 0
        self._file: OwnFile | None = None

    @property
    def length(self) -> int:
        """Bytes taken so far: the file's length once all of them are in it."""
        return self._written + self._size

    @property
    def written(self) -> int:
        """Bytes that are in the file, but for those of a write that failed midway."""
        return self._written

    @property
    def kept(self) -> int:
        """Bytes taken that are not in the file yet."""
        return self._size

    def open(self) -> None:
        """Open the file, if it is not open and can be: else the next flush tries it again."""
        try:
            self._open()
        except OSError as error:
            let_through(error)

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
            file = self._open()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE, errno.EBADF) and self._size < MOST_KEPT_BYTES:
                return  # the program has every descriptor in use for now, or closes them all
            self.closed = True
            raise
        data = memoryview(b"".join(self._kept))
        self._kept, self._size = [], 0
        try:
            left = data
            while left:
                left = left[os.write(file.descriptor, left) :]
            self._written += len(data)
        except BaseException:
            self.closed = True
            raise

    def _open(self) -> OwnFile:
        if self._file is None or not self._file.ours():
            self._file = OwnFile(self.path, _APPEND)
        return self._file

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
        if self._file is not None:
            self._file.close()
        self._file = None
