"""The bytes of a file, whether gzipped or not, with a bound on what it may unfold to.

It knows no trace format.
"""

from __future__ import annotations

import os
import stat
import zlib
from typing import IO

from gputrace.errors import InputError
from gputrace.remote import to_open

GZIP_MAGIC = b"\x1f\x8b"
_STEP = 1 << 18


class Limits:
    """What a file may unfold to before it is taken for a bomb.

    ``ratio`` is bytes out for each byte in, looked at beyond ``free_bytes``: gzip itself ends at 1,032, traces stay
    below 60. ``most_bytes`` is the size of all that comes out; ``most_record_bytes`` that of one packet or event.
    """

    def __init__(
        self,
        *,
        ratio: int = 200,
        free_bytes: int = 64 << 20,
        most_bytes: int = 1 << 40,
        most_record_bytes: int = 256 << 20,
    ) -> None:
        self.ratio = ratio
        self.free_bytes = free_bytes
        self.most_bytes = most_bytes
        self.most_record_bytes = most_record_bytes

    def check(self, path: str, taken: int, given: int) -> None:
        """Raises `InputError` if ``given`` bytes are too many to have come of ``taken``."""
        if given > self.most_bytes:
            raise InputError(path, given, f"it unfolds to more than {self.most_bytes:,} bytes")
        if given > self.free_bytes and given > self.ratio * max(taken, 1):
            raise InputError(
                path,
                given,
                f"it unfolds to more than {self.ratio} times its size, as no trace does: it was made to fill memory. "
                "If you trust it, gunzip it first",
            )


class ByteStream:
    """Reads a file from its start, unzipping on the way. ``place`` is the offset of the next byte, unzipped;
    ``taken`` counts bytes of the file itself.

    ``torn`` says how the file ends before its time ("" if it does not, as far as it was read): what was good of it
    comes out all the same. Raises `InputError` for a file that cannot be read, or unfolds beyond ``limits``.
    """

    def __init__(self, path: str, limits: Limits | None = None) -> None:
        self.path = str(path)  # of one that was fetched, what it is told as alone
        self.limits = limits or Limits()
        self.place = 0
        self.torn = ""
        self.taken = 0
        self._kept = b""  # unzipped and not yet asked for
        self._done = False
        try:
            self._file: IO[bytes] = open(to_open(path), "rb", buffering=0, opener=_at_once)  # noqa: SIM115 - closed with this
            status = os.fstat(self._file.fileno())
            if stat.S_ISFIFO(status.st_mode):
                self._file.close()
                raise InputError(path, 0, "is a pipe, and a trace is read more than once: write it to a file first")
            self.size = status.st_size
            head = self._file.read(2)
            self._file.seek(0)
        except OSError as error:
            raise InputError(path, 0, f"cannot be read: {error.strerror}") from error
        self.gzipped = head == GZIP_MAGIC
        self._inflate = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS) if self.gzipped else None
        self._input = b""

    def read(self, size: int) -> bytes:
        """The next ``size`` bytes; fewer only at the end."""
        if not self.gzipped:
            data = self._read_file(size)
            while len(data) < size and (more := self._read_file(size - len(data))):
                data += more
        else:
            pieces, have = [self._kept], len(self._kept)
            while have < size and (more := self._unzip(max(size - have, _STEP))):
                pieces.append(more)
                have += len(more)
            data = b"".join(pieces)
            data, self._kept = data[:size], data[size:]
        self.place += len(data)
        return data

    def _read_file(self, size: int) -> bytes:
        try:
            data = self._file.read(size)
        except OSError as error:
            raise InputError(self.path, self.place, f"cannot be read: {error.strerror}") from error
        self.taken += len(data)
        return data

    def _unzip(self, most: int) -> bytes:
        """Some unzipped bytes, at most ``most``; none at the end."""
        assert self._inflate is not None
        while not self._done:
            if not self._input:
                self._input = self._read_file(_STEP)
            if self._inflate.eof:  # one member ended: another may follow, or zeros that a block device padded with
                if not self._input.strip(b"\0"):
                    if not self._input:
                        self._done = True
                    self._input = b""
                    continue
                if not self._input.startswith(GZIP_MAGIC[: len(self._input)]):
                    self._end(f"{len(self._input):,} or more bytes behind the gzip stream are no part of it")
                    break
                self._inflate = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
            at_end = not self._input
            try:
                out = self._inflate.decompress(self._input, most)
            except zlib.error as error:
                self._end(f"the gzip stream is damaged ({error})")
                break
            self._input = self._inflate.unused_data if self._inflate.eof else self._inflate.unconsumed_tail
            if out:
                self.limits.check(self.path, self.taken, self.place + len(self._kept) + len(out))
                return out
            if at_end and not self._inflate.eof:
                self._end("the gzip stream is cut short")
        return b""

    def _end(self, torn: str) -> None:
        self._done = True
        self.torn = torn

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> ByteStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _at_once(path: str, flags: int) -> int:
    """Opens a file without waiting, as a pipe would have one wait until somebody writes to it."""
    return os.open(path, flags | os.O_NONBLOCK)
