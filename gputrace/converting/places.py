"""A trace's tracks as the model has them, announced to their process's exporter when something is first put there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from gputrace.model import COUNTER_TRACK, GROUP, LANE, STREAM, THREAD, Track
from gputrace.table import tracks as kinds

if TYPE_CHECKING:
    from gputrace.model import Edge, Exporter
    from gputrace.table.tracks import Track as Row

    OpenExporter = Callable[[int, str, int], Exporter]

_KINDS = {kinds.THREAD: THREAD, kinds.LANE: LANE, kinds.GROUP: GROUP, kinds.COUNTER: COUNTER_TRACK}
_TID_LIMIT = 1 << 31  # a thread descriptor's is an int32


class Places:
    """Those of ``tracks``. ``open_exporter`` makes the exporter of a process: its pid, its name, and its order."""

    def __init__(self, tracks: Sequence[Row], open_exporter: OpenExporter) -> None:
        self._tracks = tracks
        self._open_exporter = open_exporter
        self._exporters: dict[tuple[int, str], Exporter] = {}
        self._counts: dict[tuple[int, str], int] = {}
        self._made: dict[tuple[int, int], tuple[Exporter, Track]] = {}  # by track and lane

    def put(self, id: int, lane: int, edges: Sequence[Edge]) -> None:
        """Write edges of a track, or of a lane beside it. Raises what exporters raise."""
        exporter, track = self._track(id, lane)
        exporter.write(track, edges)

    def flush(self) -> None:
        for exporter in self._exporters.values():
            exporter.flush()

    def _exporter(self, row: Row) -> Exporter:
        """That of the process a track is of."""
        key = row.pid, row.process
        if key not in self._exporters:
            order = next((t.order for t in self._tracks if t.kind == kinds.PROCESS and t.pid == row.pid), 0)
            pid = row.pid if 0 < row.pid < 1 << 31 else 0
            self._exporters[key] = self._open_exporter(pid, row.process, order)
        return self._exporters[key]

    def _track(self, id: int, lane: int) -> tuple[Exporter, Track]:
        """Where a track's slices go, announced on the way; those of a lane beside the track itself."""
        if (id, lane) in self._made:
            return self._made[id, lane]
        row = self._tracks[id]
        exporter = self._exporter(row)
        parent: Track | None = None
        if lane:
            main = self._track(id, 0)[1]
            parent = main if main.kind == THREAD else main.parent
            kind = LANE if main.kind in (THREAD, LANE) else STREAM
            key = main.merge_key or f"overlapping {id}"
            made = self._new(row, kind, row.name, parent, key)
        else:
            if row.parent >= 0:
                parent = self._track(row.parent, 0)[1]
            kind = _KINDS.get(row.kind, STREAM)
            if kind == THREAD and not 0 <= row.tid < _TID_LIMIT:
                kind = STREAM
            if kind == LANE and parent is None:
                kind = STREAM
            key = "" if kind not in (LANE, STREAM) else f"row {row.row}"
            made = self._new(row, kind, row.name, parent, key)
        exporter.open_track(made)
        self._made[id, lane] = exporter, made
        return self._made[id, lane]

    def _new(self, row: Row, kind: str, name: str, parent: Track | None, key: str) -> Track:
        process = row.pid, row.process
        number = self._counts[process] = self._counts.get(process, 0) + 1
        tid = row.tid if kind == THREAD else 0
        labels = {name: str(value) for name, value in row.labels.items() if name != "command_line"} or None
        return Track(
            number, kind, name, parent=parent, tid=tid, order=row.order, merge_key=key, unit=row.unit, labels=labels
        )
