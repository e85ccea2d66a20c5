"""Chrome events on the timeline to the model's tracks and edges, and so to any exporter.

Edges of a track must come in order and nest, and events do neither, so they are sorted first. A slice that overlaps
another of its thread goes to a lane of that thread's: nothing is bent and nothing lost. What the model has no word for
is counted.

A process of the operating system becomes one of the model's; what a tool made up (a GPU, an annotation row) becomes a
group of the process it belongs to, so that arrows between the two stay whole.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gputrace.merging.events import event_of, text
from gputrace.merging.sorting import Sorter
from gputrace.model import BEGIN, COUNTER, COUNTER_TRACK, END, GROUP, INSTANT, LANE, STREAM, THREAD, Track
from gputrace.reading.chrome import time_ns

if TYPE_CHECKING:
    from gputrace.model import Exporter

    Event = dict[str, Any]
    Edges = list[list[Any]]

_BATCH = 256
_TID_LIMIT = 1 << 31  # a thread descriptor's is an int32
_MADE_UP_PID = 1 << 30
_SLICES = frozenset("XBEbneSTFiIRCstf")


class Transfer:
    """One input's events. ``add`` each, then ``write`` once.

    ``open_exporter`` makes the exporter of a process. ``left_out`` counts events by phase that could not be said;
    ``lanes`` slices that overlapped; ``cut`` ends without a begin; ``unfinished`` begins without an end.
    """

    def __init__(self, folder: str, open_exporter: Callable[[int, str, int | None], Exporter]) -> None:
        self._sorter = Sorter(folder)
        self._open_exporter = open_exporter
        self._count = 0
        self._names: dict[tuple[str, Any, Any], str] = {}
        self._orders: dict[tuple[Any, Any], int] = {}
        self._labels: dict[Any, str] = {}
        self._numbers: dict[int, int] = {}  # shard number: pid
        self._real: dict[int, int] = {}  # events by real pid
        self._processes: dict[int, _Process] = {}
        self._homes: dict[Any, _Process] = {}
        self._rows: dict[tuple[Any, ...], _Row] = {}
        self._async: dict[tuple[Any, ...], _Lane] = {}
        self._flow_numbers: dict[Any, int] = {}
        self.left_out: dict[str, int] = {}
        self.lanes = 0
        self.cut = 0
        self.unfinished = 0

    def add(self, event: Event, ns: int) -> None:
        """An event and its time on the timeline, as `events.Mover` gives them. Raises OSError."""
        phase = event.get("ph")
        if phase == "M":
            self._take_metadata(event)
        elif not isinstance(phase, str) or phase not in _SLICES or len(phase) != 1:
            self.left_out[str(phase)] = self.left_out.get(str(phase), 0) + 1
        else:
            pid = event.get("pid")
            if isinstance(pid, int) and 0 < pid < _MADE_UP_PID:
                self._real[pid] = self._real.get(pid, 0) + 1
            # Of slices that begin together the longest is the outermost; all else is in order as it stands.
            length = (time_ns(event.get("dur")) or 0) if phase == "X" else 0
            self._count += 1
            self._sorter.add((ns, -length, self._count, text(event)))

    def write(self) -> None:
        """Write all of them. Raises OSError, and what exporters raise."""
        for ns, negative_length, _, line in self._sorter:
            self._write(event_of(line), ns, -negative_length)
        for row in self._rows.values():
            row.finish()
            self.lanes += row.overlaps
            self.cut += row.cut
            self.unfinished += row.unfinished
        for process in self._processes.values():
            process.exporter.flush()
        self._sorter.close()

    def _take_metadata(self, event: Event) -> None:
        args = event.get("args") or {}
        pid, tid, name = event.get("pid"), event.get("tid"), event.get("name")
        if name in ("process_name", "thread_name"):
            self._names[name, pid, tid if name == "thread_name" else None] = str(args.get("name", ""))
        elif name in ("process_sort_index", "thread_sort_index") and isinstance(args.get("sort_index"), int):
            self._orders[pid, tid if name == "thread_sort_index" else None] = args["sort_index"]
        elif name == "process_labels":
            self._labels[pid] = str(args.get("labels", ""))
        elif name == "gputrace.process" and isinstance(args.get("number"), int) and isinstance(pid, int):
            self._numbers[args["number"]] = pid

    # Places.

    def _process(self, pid: int) -> _Process:
        if pid not in self._processes:
            name = self._names.get(("process_name", pid, None), "")
            self._processes[pid] = _Process(self._open_exporter(pid, name, self._orders.get((pid, None))))
        return self._processes[pid]

    def _home(self, pid: Any) -> tuple[_Process, Track | None]:
        """The process that a pid's rows go to, and the group in it if the pid is no process's own."""
        if isinstance(pid, int) and 0 < pid < _MADE_UP_PID:
            return self._process(pid), None
        if pid not in self._homes:
            owner = self._numbers.get((pid - (1 << 31)) >> 11) if isinstance(pid, int) else None
            if owner is None and self._real:
                owner = max(self._real, key=self._real.__getitem__)
            home = self._homes[pid] = self._process(owner if owner is not None else _MADE_UP_PID)
            name = self._names.get(("process_name", pid, None)) or str(pid)
            label = self._labels.get(pid, "")
            order = min(self._orders.get((pid, None), 0), (1 << 31) - 1)
            title = f"{name} · {label}" if label and label not in name else name
            home.groups[pid] = home.open(GROUP, title, order=order)
        home = self._homes[pid]
        return home, home.groups[pid]

    def _row(self, event: Event) -> _Row:
        pid, tid = event.get("pid"), event.get("tid")
        row = self._rows.get((pid, tid))
        if row is None:
            process, group = self._home(pid)
            name = self._names.get(("thread_name", pid, tid)) or ("" if isinstance(tid, int) else str(tid))
            order = min(self._orders.get((pid, tid), 0), (1 << 31) - 1)
            if group is None and isinstance(tid, int) and 0 <= tid < _TID_LIMIT:
                track = process.open(THREAD, name, tid=tid or 0, order=order)
            else:
                track = process.open(STREAM, name or f"stream {tid}", parent=group, order=order, lanes=True)
            row = self._rows[pid, tid] = _Row(process, track)
        return row

    # Events.

    def _write(self, event: Event, ns: int, length_ns: int) -> None:
        phase = event["ph"]
        if phase == "C":
            self._counter(event, ns)
            return
        if phase in "bneSTF":
            self._asynchronous(event, ns)
            return
        row = self._row(event)
        name, args = str(event.get("name", "")), _args(event)
        if phase == "X":
            row.begin(ns, name, args, ns + length_ns)
        elif phase == "B":
            row.begin(ns, name, args, None)
        elif phase == "E":
            row.end(ns, args)
        elif phase in "iIR":
            row.instant(ns, name, args)
        else:
            self._flow(event, ns, row)

    def _flow(self, event: Event, ns: int, row: _Row) -> None:
        key = (str(event.get("cat")), str(event.get("id")))
        if key not in self._flow_numbers:
            self._flow_numbers[key] = len(self._flow_numbers) + 1
        if not row.join(ns, self._flow_numbers[key], following=event["ph"] == "f" and event.get("bp") != "e"):
            self.left_out["arrow"] = self.left_out.get("arrow", 0) + 1

    def _asynchronous(self, event: Event, ns: int) -> None:
        """What spans no thread: a row by name, as many lanes as overlap."""
        pid, name = event.get("pid"), str(event.get("name", ""))
        id2 = event.get("id2") if isinstance(event.get("id2"), dict) else {}
        id = event.get("id") or (id2 or {}).get("local") or (id2 or {}).get("global")
        row = self._rows.get((pid, "async", name))
        if row is None:
            process, group = self._home(pid)
            row = _Row(process, process.open(STREAM, name, parent=group, lanes=True))
            self._rows[pid, "async", name] = row
        key = (pid, str(event.get("cat")), str(id), name)
        if event["ph"] in "bS":
            lane = row.empty_lane(ns)
            lane.begin(ns, name, _args(event), None)
            self._async[key] = lane
        elif event["ph"] in "eF":
            ended = self._async.pop(key, None)
            if ended is None or not ended.end(ns, _args(event)):
                self.cut += 1
        else:
            row.instant(ns, name, _args(event))

    def _counter(self, event: Event, ns: int) -> None:
        args = event.get("args")
        if not isinstance(args, dict):
            return
        for series, value in args.items():
            if isinstance(value, str):
                try:
                    value = float(value)
                except ValueError:
                    continue
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                continue
            pid, name = event.get("pid"), str(event.get("name", ""))
            key = (pid, "counter", name, series, str(event.get("id")))
            row = self._rows.get(key)
            if row is None:
                process, group = self._home(pid)
                title = name if len(args) == 1 and series in ("value", "") else f"{name} {series}"
                unit = series if series in ("ns", "bytes", "ppm", "percent") and len(args) == 1 else ""
                row = _Row(process, process.open(COUNTER_TRACK, name if unit else title, parent=group, unit=unit))
                self._rows[key] = row
            row.main.put([ns, COUNTER, value, None, 0, 0])


class _Process:
    """A process and the exporter that writes it."""

    def __init__(self, exporter: Exporter) -> None:
        self.exporter = exporter
        self.groups: dict[Any, Track] = {}
        self._tracks = 0

    def open(self, kind: str, name: str, *, lanes: bool = False, parent: Track | None = None, **more: Any) -> Track:
        """Announce a track. ``lanes``: others of its kind may be drawn in its row."""
        self._tracks += 1
        key = more.pop("merge_key", f"{name} {self._tracks}") if lanes else ""
        track = Track(self._tracks, kind, name, parent=parent, merge_key=key, **more)
        self.exporter.open_track(track)
        return track


class _Open:
    """A slice that is open: when it ends (None: not known yet), and its edge while that is not written."""

    __slots__ = ("edge", "end_flow", "end_ns")

    def __init__(self, edge: list[Any], end_ns: int | None) -> None:
        self.edge: list[Any] | None = edge
        self.end_ns = end_ns
        self.end_flow = 0


class _Lane:
    """A track's edges, in order."""

    def __init__(self, exporter: Exporter, track: Track) -> None:
        self.track = track
        self.open: list[_Open] = []
        self._exporter = exporter
        self._edges: Edges = []
        self._begun: list[_Open] = []  # whose edges are among these

    def put(self, edge: list[Any]) -> None:
        self._edges.append(edge)
        if len(self._edges) >= _BATCH:
            self.flush()

    def flush(self) -> None:
        if self._edges:
            self._exporter.write(self.track, self._edges)  # type: ignore[arg-type]
            self._edges = []
            for each in self._begun:
                each.edge = None
            self._begun = []

    def settle(self, ns: int) -> None:
        """End what ended by ``ns``."""
        while self.open and (end_ns := self.open[-1].end_ns) is not None and end_ns <= ns:
            self.put([end_ns, END, None, None, self.open.pop().end_flow, 0])

    def fits(self, end_ns: int | None) -> bool:
        if not self.open or self.open[-1].end_ns is None:
            return True
        return end_ns is not None and end_ns <= self.open[-1].end_ns

    def begin(self, ns: int, name: str, args: Any, end_ns: int | None, flow: int = 0) -> None:
        edge = [ns, BEGIN, name, args, flow, 0]
        begun = _Open(edge, end_ns)
        self.open.append(begun)
        self._begun.append(begun)
        self.put(edge)

    def end(self, ns: int, args: Any) -> bool:
        """End the innermost slice that has no end yet. False if there is none."""
        at = next((k for k in range(len(self.open) - 1, -1, -1) if self.open[k].end_ns is None), -1)
        if at < 0:
            return False
        while len(self.open) > at + 1:
            self.put([ns, END, None, None, self.open.pop().end_flow, 0])
        self.put([ns, END, None, args, self.open.pop().end_flow, 0])
        return True

    def join(self, flow: int) -> bool:
        """Give the innermost open slice an end of an arrow. False if it has two already."""
        slice = self.open[-1]
        if slice.edge is not None and not slice.edge[4]:
            slice.edge[4] = flow
        elif not slice.end_flow:
            slice.end_flow = flow
        else:
            return False
        return True


class _Row:
    """A thread or stream: its own track, and lanes for what overlaps."""

    def __init__(self, process: _Process, track: Track) -> None:
        self._process = process
        self.main = _Lane(process.exporter, track)
        self._lanes = [self.main]
        self._next_flow = 0
        self.overlaps = 0
        self.cut = 0
        self.unfinished = 0

    def begin(self, ns: int, name: str, args: Any, end_ns: int | None) -> None:
        """``end_ns`` is None where an END is to follow."""
        flow, self._next_flow = self._next_flow, 0
        for lane in self._lanes:
            lane.settle(ns)
            if lane.fits(end_ns):
                break
        else:
            lane = self._new_lane()
        self.overlaps += lane is not self.main
        lane.begin(ns, name, args, end_ns, flow)

    def end(self, ns: int, args: Any) -> None:
        for lane in self._lanes:
            lane.settle(ns)
        # The begin it belongs to is the last one that waits for an end, wherever that is drawn.
        waiting = [lane for lane in self._lanes if any(each.end_ns is None for each in lane.open)]
        if not waiting:
            self.cut += 1
            return
        waiting[-1].end(ns, args)

    def instant(self, ns: int, name: str, args: Any) -> None:
        self.main.settle(ns)
        self.main.put([ns, INSTANT, name, args, 0, 0])

    def join(self, ns: int, flow: int, *, following: bool) -> bool:
        """An arrow's end at ``ns``, on the slice open there or the one to begin next."""
        if following:
            self._next_flow = flow
            return True
        for lane in reversed(self._lanes):
            lane.settle(ns - 1)
            if lane.open:
                return lane.join(flow)
        return False

    def empty_lane(self, ns: int) -> _Lane:
        for lane in self._lanes:
            lane.settle(ns)
            if not lane.open:
                return lane
        return self._new_lane()

    def finish(self) -> None:
        for lane in self._lanes:
            while lane.open and lane.open[-1].end_ns is not None:
                end_ns = lane.open[-1].end_ns
                lane.put([end_ns, END, None, None, lane.open.pop().end_flow, 0])
            self.unfinished += len(lane.open)
            lane.flush()

    def _new_lane(self) -> _Lane:
        main = self.main.track
        kind, parent = (LANE, main) if main.kind == THREAD else (main.kind, main.parent)
        key = main.merge_key or "overlapping"
        name = "overlapping" if main.kind == THREAD else main.name
        track = self._process.open(kind, name, parent=parent, lanes=True, merge_key=key, order=main.order)
        lane = _Lane(self._process.exporter, track)
        self._lanes.append(lane)
        return lane


def _args(event: Event) -> dict[str, Any] | None:
    """An event's args as the model has them: what is no plain value as JSON text."""
    args = event.get("args")
    found: dict[str, Any] = {}
    if event.get("cat") and event["ph"] != "E":
        found["category"] = str(event["cat"])
    for key, value in args.items() if isinstance(args, dict) else ():
        found[key] = value if isinstance(value, (bool, int, float, str)) else json.dumps(value, ensure_ascii=False)
    return found or None
