"""A format that says everything and hides nothing: a JSON line for each call. For tests that need no engine."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

from gputrace.model import BEGIN, COUNTER, END, INSTANT, LANE, SLICE, Exporter, Process, Recording, Track

if TYPE_CHECKING:
    from gputrace.model import Edge


class Rows(Exporter):
    @classmethod
    def whole(cls, shard: IO[bytes]) -> int:
        shard.seek(0)
        return shard.read().rfind(b"\n") + 1

    @classmethod
    def resume(cls, file: IO[bytes], recording: Recording, process: Process) -> Rows:
        made = cls.__new__(cls)
        made._file = file
        return made

    def __init__(self, file: IO[bytes], recording: Recording, process: Process) -> None:
        self._file = file
        self._say("process", process.pid, process.name)

    def open_track(self, track: Track) -> None:
        self._say("track", *self._facts(track))

    def reopen_track(self, track: Track) -> None:
        self._say("again", *self._facts(track))

    def write(self, track: Track, edges: Iterable[Edge]) -> None:
        for edge in edges:
            self._say("edge", track.id, *edge)

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def _facts(self, track: Track) -> list[Any]:
        return [track.id, track.kind, track.name, track.tid, track.parent.id if track.parent else 0]

    def _say(self, *row: Any) -> None:
        self._file.write(json.dumps(row, default=dict).encode() + b"\n")


@dataclass
class Found:
    """A slice or an instant: ``dur`` is -1 where it was not ended. ``row`` is its track's kind, thread and name."""

    row: tuple[Any, ...]
    name: str
    ts: int
    dur: int
    depth: int
    flow: int
    args: dict[str, Any]

    def key(self) -> tuple[Any, ...]:
        """Which lane a slice is on, and so how deep, may differ: a row's lanes are drawn as one."""
        args = sorted((name, repr(value)) for name, value in self.args.items())
        return (self.row, self.ts, self.name, self.dur, -1 if self.row[0] == LANE else self.depth, self.flow, args)


def slices(trace: bytes) -> list[Found]:
    """Every slice, sorted. Checks on its way what a trace has to keep: tracks are announced once, and before use;
    what ends has begun; no time goes back.
    """
    found: list[Found] = []
    rows: dict[int, tuple[Any, ...]] = {}
    tids: dict[int, int] = {}
    open_slices: dict[int, list[Found]] = {}
    last: dict[int, int] = {}
    for kind, *values in map(json.loads, trace.splitlines()):
        if kind == "track":
            id, what, name, tid, parent = values
            assert id not in rows
            tids[id] = tid or tids.get(parent, 0)
            rows[id], open_slices[id] = (what, tids[id], name), []
        elif kind == "again":
            assert values[0] in rows
            assert rows[values[0]] == (values[1], values[3] or tids[values[4]], values[2])
        elif kind == "edge":
            id, ts, edge, name, args, flow, end_ns = values
            stack = open_slices[id]
            assert ts >= last.get(id, 0)
            last[id] = max(ts, end_ns)
            if edge in (BEGIN, SLICE, INSTANT):
                dur = {BEGIN: -1, SLICE: end_ns - ts, INSTANT: 0}[edge]
                found.append(Found(rows[id], name, ts, dur, len(stack), flow, args or {}))
                if edge == BEGIN:
                    stack.append(found[-1])
            elif edge == END:
                slice = stack.pop()
                slice.dur = ts - slice.ts
                slice.args |= args or {}
    return sorted(found, key=Found.key)


def samples(trace: bytes) -> dict[str, list[tuple[int, Any]]]:
    """(time, value) of each counter by name, in the order of time."""
    found: dict[str, list[tuple[int, Any]]] = {}
    names = {}
    last: dict[int, int] = {}
    for kind, *values in map(json.loads, trace.splitlines()):
        if kind == "track":
            names[values[0]] = values[2]
        elif kind == "edge" and values[2] == COUNTER:
            assert values[1] >= last.get(values[0], 0)
            last[values[0]] = values[1]
            found.setdefault(names[values[0]], []).append((values[1], values[3]))
    return {name: sorted(found[name]) for name in sorted(found)}
