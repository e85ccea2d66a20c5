"""Files opened inside a traced program, careful with its descriptors.

Descriptors are the program's: it may close them all, give their numbers to files of its own, or have been started
without standard streams, so that a file opened there for a while becomes its standard error. What is opened here is
never a standard stream, is moved at once to a number that programs do not reach, and is asked whether it is still the
same file just before it is written to or closed. (Between the asking and the call, a program's thread may still get in:
microseconds.) It knows neither shards nor formats.
"""

from __future__ import annotations

import errno
import fcntl
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

    Identity = tuple[int, int]

#: From here up, a descriptor's number is out of most programs' way.
OUT_OF_THE_WAY: Final = 200
#: The first number that is no standard stream's.
_FIRST_FREE: Final = 3
#: So often in a row a program may close a file between its opening and its use.
TRIES: Final = 10


class OwnFile:
    """An open file of ours. Raises OSError where it cannot be opened; EBADF if the program closed it meanwhile."""

    __slots__ = ("descriptor", "identity")

    def __init__(self, path: str, flags: int, mode: int = 0o600) -> None:
        plugs = _plug_standard_streams()
        try:
            low = os.open(path, flags | os.O_CLOEXEC, mode)
            self.descriptor, self.identity = _move(low), (-1, -1)
        finally:
            for plug, null in plugs.items():
                _close_if(plug, null)
        status = os.fstat(self.descriptor)
        there = status.st_dev, status.st_ino
        if there != _named(path):
            os.close(self.descriptor)  # of the program's file that has the low number now
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), path)
        self.identity = there
        if flags & os.O_CREAT and status.st_mode & mode != mode:
            os.fchmod(self.descriptor, mode)  # the program's umask took what we need ourselves
        _close_if(low, there)

    def ours(self) -> bool:
        """Is the descriptor open, and still the file that was opened?"""
        return self.descriptor >= 0 and _is(self.descriptor, self.identity)

    def write(self, data: bytes | memoryview) -> int:
        """Bytes written of ``data``. Raises OSError; EBADF where the program has closed it."""
        if not self.ours():
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        return os.write(self.descriptor, data)

    def close(self) -> None:
        """Let go of the descriptor if it is still this file's."""
        _close_if(self.descriptor, self.identity)
        self.descriptor = -1


def write_file(path: str, flags: int, data: bytes) -> None:
    """Write all of ``data`` into a file opened with ``flags``. Raises OSError.

    In one write where the system takes it in one, so that lines appended by several processes do not mix.
    """
    left, tries = memoryview(data), TRIES
    while left:
        try:
            file = OwnFile(path, flags)
            try:
                while left:
                    left = left[file.write(left) :]
            finally:
                file.close()
        except OSError as error:
            tries -= 1
            if error.errno != errno.EBADF or not tries:
                raise
            if flags & os.O_TRUNC:
                left = memoryview(data)


def identity(descriptor: int) -> Identity:
    """(device, inode) of an open file. Raises OSError."""
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino


def _plug_standard_streams() -> dict[int, Identity]:
    """Descriptors of the null device where the program has no standard streams, so that what is opened next is not its
    standard error for a moment, in which another thread may write to it.
    """
    plugs: dict[int, Identity] = {}
    for number in range(_FIRST_FREE):
        try:
            os.fstat(number)
        except OSError:
            plug = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
            plugs[plug] = identity(plug)
    return plugs


def _move(low: int) -> int:
    try:
        return fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, OUT_OF_THE_WAY)
    except OSError:  # the process may not have so many
        try:
            return fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, _FIRST_FREE)
        except OSError as error:
            if error.errno != errno.EBADF:
                os.close(low)
            raise


def _named(path: str) -> Identity | None:
    try:
        status = os.stat(path, follow_symlinks=False)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _is(descriptor: int, wanted: Identity) -> bool:
    try:
        return identity(descriptor) == wanted
    except OSError:
        return False


def _close_if(descriptor: int, wanted: Identity) -> None:
    if descriptor >= 0 and _is(descriptor, wanted):
        os.close(descriptor)
