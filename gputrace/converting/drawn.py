"""A trace's columns to the model's tracks and edges, and so to any exporter: for a part of a trace.

A slice that overlaps another of its track goes to a lane of that track's. It knows no file format.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from gputrace.converting.places import Places
from gputrace.model import BEGIN, COUNTER, END, INSTANT
from gputrace.table.columns import UNFINISHED

if TYPE_CHECKING:
    from gputrace.converting.places import OpenExporter
    from gputrace.model import Edge
    from gputrace.table.args import Args
    from gputrace.table.trace import Trace


class Drawing:
    """Writes a trace. ``open_exporter`` makes the exporter of a process: its pid, its name, and its order.

    ``arrows_lost`` counts those that found no room, as a slice can bear two ends.
    """

    def __init__(self, trace: Trace, open_exporter: OpenExporter) -> None:
        self._trace = trace
        self._places = Places(trace.tracks, open_exporter)
        self.arrows_lost = 0
        self._begin_flow, self._end_flow = self._flows()

    def write(self) -> None:
        """Write all of it. Raises what exporters raise."""
        slices, instants, counters = self._trace.slices, self._trace.instants, self._trace.counters
        pieces = model_args(instants.args)
        moments: dict[int, list[Edge]] = {}
        for row, (ns, id) in enumerate(zip(instants.ts_ns.tolist(), instants.track_id.tolist(), strict=True)):
            args = with_category(pieces.get(row), instants.strings[int(instants.category_id[row])])
            moments.setdefault(id, []).append((ns, INSTANT, instants.names[row], args, 0, 0))
        # Slices are in order, so a stable sort leaves them so on each track and lane.
        order = np.lexsort((slices.lane, slices.track_id))
        pieces = model_args(slices.args)
        for track, lane, rows in runs(order, slices.track_id, slices.lane):
            edges = self._edges(rows.tolist(), pieces)
            if not lane and track in moments:
                # Behind what else is at their time: so they lie where they lay, and sorting keeps each list's order.
                edges = sorted([*edges, *moments.pop(track)], key=lambda edge: edge[0])
            self._places.put(track, lane, edges)
        for track, edges in moments.items():
            self._places.put(track, 0, edges)
        order = np.argsort(counters.track_id, kind="stable")
        for track, _, rows in runs(order, counters.track_id, np.zeros(len(counters), np.int32)):
            samples = zip(counters.ts_ns[rows].tolist(), counters.value[rows].tolist(), strict=True)
            self._places.put(track, 0, [(ns, COUNTER, as_int(value), None, 0, 0) for ns, value in samples])
        self._places.flush()

    def _edges(self, rows: list[int], pieces: dict[int, dict[str, Any]]) -> list[Edge]:
        """Begins and ends of slices of one lane, which are in order."""
        slices = self._trace.slices
        edges: list[Edge] = []
        open_rows: list[int] = []

        def end(row: int) -> None:
            if slices.dur_ns[row] != UNFINISHED:
                end_ns = int(slices.ts_ns[row] + slices.dur_ns[row])
                edges.append((end_ns, END, None, None, self._end_flow.get(row, 0), 0))

        for row in rows:
            parent = int(slices.parent[row])
            while open_rows and open_rows[-1] != parent:
                end(open_rows.pop())
            args = with_category(pieces.get(row), slices.strings[int(slices.category_id[row])])
            flow = self._begin_flow.get(row, 0)
            edges.append((int(slices.ts_ns[row]), BEGIN, slices.names[row], args, flow, 0))
            open_rows.append(row)
        while open_rows:
            end(open_rows.pop())
        return edges

    def _flows(self) -> tuple[dict[int, int], dict[int, int]]:
        """A number for each arrow, by the rows that it is between: at their begins, else at the end of the first."""
        slices, flows = self._trace.slices, self._trace.flows
        begins: dict[int, int] = {}
        ends: dict[int, int] = {}
        for number, (source, target) in enumerate(zip(flows.source.tolist(), flows.target.tolist(), strict=True), 1):
            end_ns = slices.ts_ns[source] + slices.dur_ns[source]
            ends_first = slices.dur_ns[source] != UNFINISHED and end_ns <= slices.ts_ns[target]
            if target in begins or source == target or (source in begins and (source in ends or not ends_first)):
                self.arrows_lost += 1
                continue
            begins[target] = number
            (ends if source in begins else begins)[source] = number
        return begins, ends


def runs(order: Any, track: Any, lane: Any) -> Iterator[tuple[int, int, Any]]:
    """(track, lane, rows) of rows that are sorted by both."""
    if not len(order):
        return
    tracks, lanes = track[order], lane[order]
    cuts = np.flatnonzero((np.diff(tracks) != 0) | (np.diff(lanes) != 0)) + 1
    for rows in np.split(order, cuts):
        yield int(track[rows[0]]), int(lane[rows[0]]), rows


def model_args(args: Args | dict[int, dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """Args by row as the model has them: what is no plain value as JSON text."""
    return {
        row: {
            key: value if isinstance(value, (bool, int, float, str)) else json.dumps(value, ensure_ascii=False)
            for key, value in found.items()
        }
        for row, found in args.items()
    }


def with_category(args: dict[str, Any] | None, category: str) -> dict[str, Any] | None:
    return {"category": category, **(args or {})} if category else args


def as_int(value: float) -> int | float:
    return int(value) if value.is_integer() and abs(value) < 1 << 53 else value
