"""Events that were read one by one, until a piece of the file is through. It knows no file format."""

from __future__ import annotations

import numpy as np

from gputrace.table.columns import as_floats, as_ids, as_ints
from gputrace.table.events import Chunk, Gathered


class Singly:
    """``rows`` are (time in ns, kind, track, name, category), the ids being those of a `Gathered`; ``samples`` (time,
    track, value). ``args`` are (row, piece, its table) and ``arrows`` (row, id, way), by places among the rows.
    """

    def __init__(self) -> None:
        self.rows: list[tuple[int, int, int, int, int]] = []
        self.args: list[tuple[int, bytes, int]] = []
        self.arrows: list[tuple[int, int, int]] = []
        self.samples: list[tuple[int, int, float]] = []

    def give(self, out: Gathered) -> None:
        """Gather them, and hold none any more."""
        if self.rows:
            ns, kind, track, name, category = zip(*self.rows, strict=True)
            first = out.add(
                Chunk(as_ints(ns), np.array(kind, np.int8), as_ids(track), as_ids(name), as_ids(category)),
            )
            if self.args:
                rows, data, tables = zip(*self.args, strict=True)
                out.add_args(first + as_ints(rows), as_ints(list(map(len, data))), as_ints(tables), b"".join(data))
            if self.arrows:
                rows, ids, ways = zip(*self.arrows, strict=True)
                out.add_arrows(first + as_ints(rows), as_ints(ids), as_ints(ways))
        if self.samples:
            ns, track, value = zip(*self.samples, strict=True)
            out.add_samples(as_ints(ns), as_ids(track), as_floats(value))
        for kept in (self.rows, self.args, self.arrows, self.samples):
            kept.clear()
