"""A shard's file, written whole batch by whole batch or not at all any more."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import IO


class Output:
    """Writes to ``file``, buffered or not.

    A disk that fills up takes half a batch. Were there room again later, what came then would stand behind a torn
    record and be lost with it, or be read as part of it: so after a failure every write fails.
    """

    __slots__ = ("_file", "_torn")

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._torn = False

    def write(self, data: bytes) -> None:
        """All of ``data``. Raises OSError if it cannot be written now, or something before it could not."""
        if self._torn:
            raise OSError("an earlier write to this shard failed: nothing can follow a torn record")
        self._torn = True
        written = self._file.write(data)
        while written is not None and written < len(data):  # a file without a buffer may take less than it is given
            data = data[written:]
            written = self._file.write(data)
        self._torn = False

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        """Flush and let go of the file; again, nothing."""
        if not self._file.closed:
            self._file.close()
