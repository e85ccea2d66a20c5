"""A shard of ours with rot in it: finds what can be read before and after, and writes that to another file.

Rot is a changed byte, a zeroed block, a piece that is gone. What still reads as a record is taken for one: a digit that
became another is not seen. Around what is lost nothing is guessed: slices that were open there are ended there and say
so, ends of what began there are left out, and so are events whose times cannot be known any more.
"""

from __future__ import annotations

from typing import IO, TYPE_CHECKING

from gputrace.reading import mendedlines, mendedpackets

if TYPE_CHECKING:
    from collections.abc import Callable, Container

    #: Called with the bytes that are lost: what to write the others to, or None.
    Opened = Callable[[int], IO[bytes] | None]

    Mender = Callable[[IO[bytes], int, IO[bytes] | None, Container[int]], tuple[int, int]]

_MENDERS: dict[str, Mender] = {".pftrace": mendedpackets.mend, ".json": mendedlines.mend}


def mend(path: str, length: int, suffix: str, to: Opened, numbers: Container[int]) -> tuple[int, int]:
    """Write what is good of the first ``length`` bytes of a shard to the file that ``to`` opens, if anything is bad.

    ``to`` is given the bytes that are lost, and may decline. Returns them, and how many rows end there though good
    records of theirs follow; (0, 0) if all is good, ``to`` declined or the format is another's. ``numbers`` are the
    shard numbers of its recording. Raises OSError.
    """
    mender = _MENDERS.get(suffix)
    if mender is None:
        return 0, 0
    with open(path, "rb") as shard:
        lost, rows = mender(shard, length, None, numbers)
        mended = to(lost) if lost or rows else None
        if mended is None:
            return 0, 0
        shard.seek(0)
        with mended:
            return mender(shard, length, mended, numbers)
