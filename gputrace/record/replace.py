"""Writes a file that appears under its name only when it is whole, and replaces an older one then."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import IO

    Write = Callable[[bytes | memoryview], int]


class replacing:
    """``with replacing(path, unique, gzip=...) as write:``; if the block raises, an older file stays as it was.

    What is written lies beside ``path`` meanwhile, hidden, so that it can be put in its place in one step; ``unique``
    ends its name, and is the same if a killed write is repeated. Raises OSError.
    """

    def __init__(self, path: str, unique: str, *, gzip: bool = False) -> None:
        parent, name = os.path.split(path)
        self._path = path
        self._new = os.path.join(parent, f".{name[:48]}.{unique}")
        self._gzip = gzip
        self._file: IO[bytes] | None = None
        self._finish: Callable[[], object] = int

    def __enter__(self) -> Write:
        if os.path.lexists(self._new):
            os.unlink(self._new)  # of a write that was killed, or put there by somebody who would read along
        self._file = open(self._new, "xb", opener=_opener_like(self._path))
        if not self._gzip:
            return self._file.write
        write, self._finish = _compressing(self._file)
        return write

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._file is not None
        try:
            with self._file:
                if error is None:
                    self._finish()
            if error is None:
                os.replace(self._new, self._path)
        finally:
            if os.path.exists(self._new):
                os.unlink(self._new)  # gives a full disk its room back


def _compressing(file: IO[bytes]) -> tuple[Write, Callable[[], int]]:
    """A write and a finish that gzip into ``file``. No name and no time inside: the same bytes each time."""
    import zlib

    stream = zlib.compressobj(wbits=16 + zlib.MAX_WBITS)  # 16: with gzip's header and checksum
    return lambda data: file.write(stream.compress(data)), lambda: file.write(stream.flush())


def _opener_like(output: str) -> Callable[[str, int], int]:
    """Opens new files with the permissions of the output that will be replaced if that is ours, else those of any."""
    try:
        status = os.stat(output)
        mode = status.st_mode & 0o777 if status.st_uid == os.geteuid() else None
    except FileNotFoundError:
        mode = None

    def opener(path: str, flags: int) -> int:
        file = os.open(path, flags | os.O_NOFOLLOW, 0o666 if mode is None else mode)
        if mode is not None:
            os.fchmod(file, mode)  # whatever the umask took
        return file

    return opener
