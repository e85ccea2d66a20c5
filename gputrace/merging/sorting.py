"""Sorts more items than memory holds: by runs in an unnamed temporary file, merged as they are read back.

It knows nothing of the items but that `marshal` writes them.
"""

from __future__ import annotations

import heapq
import marshal
import tempfile
from collections.abc import Iterator
from typing import IO, Any

#: Items sorted in memory at a time; some 100 MB of events.
RUN_ITEMS = 200_000
_READ_ITEMS = 2_000


class Sorter:
    """Takes tuples with `add`, and gives them back in order by iterating once. ``folder`` takes the temporary file."""

    def __init__(self, folder: str, run_items: int = RUN_ITEMS) -> None:
        self._folder = folder
        self._run_items = run_items
        self._items: list[tuple[Any, ...]] = []
        self._file: IO[bytes] | None = None
        self._runs: list[list[tuple[int, int]]] = []  # of each, where its pieces lie

    def add(self, item: tuple[Any, ...]) -> None:
        """An item: its first members are what is sorted by, and no two have all of those alike. Raises OSError."""
        self._items.append(item)
        if len(self._items) >= self._run_items:
            self._spill()

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        self._items.sort()
        if not self._runs:
            yield from self._items
            return
        yield from heapq.merge(*(self._read(run) for run in self._runs), self._items)

    def close(self) -> None:
        """Let go of the temporary file."""
        self._items = []
        if self._file is not None:
            self._file.close()

    def _spill(self) -> None:
        self._items.sort()
        if self._file is None:
            self._file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115 - `close` does
        file, run = self._file, []
        file.seek(0, 2)
        for start in range(0, len(self._items), _READ_ITEMS):
            data = marshal.dumps(self._items[start : start + _READ_ITEMS])
            run.append((file.tell(), len(data)))
            file.write(data)
        self._runs.append(run)
        self._items = []

    def _read(self, run: list[tuple[int, int]]) -> Iterator[tuple[Any, ...]]:
        assert self._file is not None
        for place, size in run:
            self._file.seek(place)
            yield from marshal.loads(self._file.read(size))
