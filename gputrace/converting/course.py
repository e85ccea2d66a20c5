"""A Perfetto trace read through once, some MB at a time: what one must know of all of it to write it in a second pass.

It keeps what grows with the tracks and the names of a trace, and nothing that grows with its slices.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from gputrace.reading.stream import ByteStream
from gputrace.table.events import BEGIN, END, INSTANT, unmatched
from gputrace.table.nesting import match
from gputrace.table.order import BEFORE_ALL, Order
from gputrace.table.perfetto import PerfettoReader

if TYPE_CHECKING:
    from gputrace.reading.stream import Limits
    from gputrace.table.events import Piece

_CHUNK_BYTES = 1 << 20


class Course:
    """``is_even``: events of each track follow one another in time, and an arrow has two ends; only then can a trace be
    written as it is read. ``start_ns`` and ``last_ns`` are the first time that it holds and the last of its slices;
    ``tracks``, ``clocks``, ``metadata`` and ``problems`` as in a `gputrace.table.trace.Trace`. Raises `InputError`.
    """

    def __init__(self, path: str, limits: Limits | None = None) -> None:
        self.path = path
        self.limits = limits
        self.start_ns, self.last_ns = 0, BEFORE_ALL
        self._lone = self._unbound = 0
        self._open = np.zeros(0, np.int64)  # by track
        events, samples = Order(), Order()
        starts: list[int] = []
        has_arrows = False
        with ByteStream(path, limits) as stream:
            reader = PerfettoReader(stream)
            for piece in _pieces(reader):
                starts.append(self._begins(piece))
                starts = [min(starts)]
                events.take(piece.track, piece.ts_ns)
                for ts_ns, track, _ in piece.samples:
                    samples.take(track, ts_ns)
                has_arrows |= bool(piece.arrows)
                self._pair(piece)
                self._unbound += sum(int((piece.kind[number] == INSTANT).sum()) for number, _, _ in piece.arrows)
        self.start_ns = starts[0] if starts and starts[0] < np.iinfo(np.int64).max else 0
        self.tracks = reader.descriptors.tracks()
        self.clocks = reader.clock_table()
        self.metadata = reader.metadata
        self.problems = reader.gathered.problems
        self.problems += unmatched(path, self._lone, self._unbound)
        ours = any(name.startswith("gputrace") for name in self.metadata)
        self.is_even = events.holds and samples.holds and (ours or not has_arrows)

    def pieces(self) -> Iterator[tuple[Piece, list[str]]]:
        """All of it once more: events, and texts by the ids that they have so far."""
        texts: list[str] = []
        with ByteStream(self.path, self.limits) as stream:
            reader = PerfettoReader(stream)
            for piece in _pieces(reader):
                texts += list(reader.gathered.strings)[len(texts) :]
                yield piece, texts

    def _begins(self, piece: Piece) -> int:
        """The first time of a piece, an end's apart."""
        times = [piece.ts_ns[piece.kind != END], *(ts_ns for ts_ns, _, _ in piece.samples)]
        return min(int(each.min(initial=np.iinfo(np.int64).max)) for each in times)

    def _pair(self, piece: Piece) -> None:
        """Count the ends that nothing is open for."""
        edges = np.flatnonzero((piece.kind == BEGIN) | (piece.kind == END))
        if not len(edges):
            return
        self.last_ns = max(self.last_ns, int(piece.ts_ns[edges].max()))
        order = edges[np.argsort(piece.track[edges], kind="stable")]
        track, is_begin = piece.track[order], piece.kind[order] == BEGIN
        alone = match(track, is_begin).partner < 0
        count = max(len(self._open), int(track.max()) + 1)
        ends = np.bincount(track[alone & ~is_begin], minlength=count)
        begins = np.bincount(track[alone & is_begin], minlength=count)
        still_open = np.zeros(count, np.int64)
        still_open[: len(self._open)] = self._open
        self._lone += int(np.maximum(ends - still_open, 0).sum())
        self._open = np.maximum(still_open - ends, 0) + begins


def _pieces(reader: PerfettoReader) -> Iterator[Piece]:
    for _ in reader.pieces(_CHUNK_BYTES):
        yield reader.gathered.let_go()
