"""Shards that hold damage in their middle: what is good of them is written beside them and taken in their place.

It knows no format: whoever does, mends.
"""

from __future__ import annotations

import os
from functools import partial

from gputrace.counts import Counts
from gputrace.record.join import whole
from gputrace.record.salvage import Salvaged, private

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Container
    from typing import IO

    from gputrace.model import Exporter
    from gputrace.shards import ShardFolder
    from gputrace.textfiles import Values

    #: `gputrace.reading.mending.mend`.
    Mend = Callable[[str, int, str, Callable[[int], IO[bytes] | None], Container[int]], tuple[int, int]]


def mend_all(folder: ShardFolder, exporter: type[Exporter], salvaged: dict[int, Salvaged], mend: Mend) -> None:
    """Mend what needs it, and say so in ``folder.damage`` and ``salvaged``. Raises OSError."""
    numbers = folder.numbers()
    for number in numbers:
        path, to = folder.shard_path(number), folder.mended_path(number)
        tail = salvaged.get(number)
        length = os.path.getsize(path) if tail is None else tail.length
        torn = None if tail is not None else partial(_is_torn, path, exporter, length, folder.report(number))
        lost, rows = mend(path, length, folder.suffix, partial(_opened, to, torn), {*numbers})
        if not lost:
            continue
        also = ", nor what was in its ring" if tail is not None and tail.tail else ""
        # Such a row's times are counted from one event to the next, and some are gone.
        ended = f"; {rows:,} of its rows {'end' if rows > 1 else 'ends'} at the damage" if rows else ""
        said = f"is damaged, and {lost:,} of its {length:,} bytes cannot be used{also}{ended}"
        folder.damage[f"{number}.shard"] = said
        salvaged[number] = Salvaged(os.path.getsize(to), 0, Counts(), path=to)


def _opened(path: str, torn: Callable[[int], bool] | None, lost: int) -> IO[bytes] | None:
    """A torn end is cut off as the shard is read: nothing is written for it, as on a disk that is full."""
    return None if torn is not None and torn(lost) else open(path, "wb", opener=private)


def _is_torn(path: str, exporter: type[Exporter], length: int, report: Values, lost: int) -> bool:
    """Is nothing bad but the end, as a kill leaves it: beyond what the process ever said was written?"""
    good, wrote = length - lost, report.get("shard_bytes", 0)
    return good == whole(path, exporter) and (not isinstance(wrote, int) or wrote <= good)
