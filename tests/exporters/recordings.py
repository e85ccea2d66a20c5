"""Recordings to write, and what each means: the slices that a true trace of them must show.

``Script`` gathers tracks and edges of a process; ``write`` makes a trace of some scripts in a format; ``meant`` works
out, with a stack and nothing of the exporters, what the engine has to find; ``seen`` is what it found.
"""

from __future__ import annotations

import io
import itertools
import json
import math
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gputrace.exporters.chrome import Chrome
from gputrace.exporters.perfetto import Perfetto

from gputrace.model import (
    BEGIN,
    COUNTER,
    COUNTER_TRACK,
    END,
    GROUP,
    INSTANT,
    LANE,
    SLICE,
    STREAM,
    THREAD,
    ClockSnapshot,
    Exporter,
    Process,
    Recording,
    Track,
)
from tests.engine import Engine, counters, slices

BASE = 7_000_000_000_123
RECORDING = Recording("5f3a9c0d2b7e4816a1d8c36e90f74b52", BASE, 31_000_000_456)
FORMATS = [Perfetto, Chrome]


class Script:
    """One process and what its tracks do, in the order it is to be written."""

    def __init__(self, number: int = 0, pid: int = 4242, name: str = "train.py") -> None:
        claimed = itertools.count(900)
        self.process = Process(number, pid, name, ["python", name], BASE - 50, lambda: next(claimed))
        self.tracks: list[Track] = []
        self.batches: list[tuple[Track, list[Any]]] = []

    def track(self, kind: str, name: str, **more: Any) -> Track:
        track = Track(more.pop("id", len(self.tracks) + 1), kind, name, **more)
        self.tracks.append(track)
        return track

    def thread(self, name: str = "MainThread", **more: Any) -> Track:
        return self.track(THREAD, name, **{"tid": self.process.pid + len(self.tracks), **more})

    def stream(self, name: str = "stream 7", **more: Any) -> Track:
        """A stream on the script's first device."""
        groups = [track for track in self.tracks if track.kind == GROUP]
        group = groups[0] if groups else self.track(GROUP, "GPU 0 · NVIDIA H200")
        return self.track(STREAM, name, parent=group, **more)

    def add(self, track: Track, *edges: Any) -> None:
        """Edges as in the model, but counted from BASE, and cut short where the rest is None and 0."""
        blank = (None, None, None, None, 0, 0)
        whole = [(*e, *blank[len(e) :]) for e in edges]
        self.batches.append((track, [(BASE + e[0], *e[1:5], BASE + e[5] if e[1] == SLICE else 0) for e in whole]))

    def shard(self, exporter: type[Exporter], recording: Recording = RECORDING) -> bytes:
        file = io.BytesIO()
        writer = exporter(file, recording, self.process)
        for track in self.tracks:
            writer.open_track(track)
        for track, edges in self.batches:
            writer.write(track, edges)
        writer.flush()
        return file.getvalue()


SNAPSHOTS = [
    ClockSnapshot(BASE + RECORDING.boottime_offset_ns + after, BASE + after, 1_780_000_000_000_000_000 + after)
    for after in (10_000_000_000, 0)
]


def join(exporter: type[Exporter], shards: Iterable[bytes], metadata: Mapping[str, object] | None = None) -> bytes:
    """A trace of shards, each cut to what is whole of it."""
    cut = [shard[: exporter.whole(io.BytesIO(shard))] for shard in shards]
    return exporter.header(RECORDING, SNAPSHOTS, metadata or {}) + b"".join(cut) + exporter.footer()


def write(exporter: type[Exporter], *scripts: Script) -> bytes:
    return join(exporter, [script.shard(exporter) for script in scripts])


# --- what it means ----------------------------------------------------------------------------------------------------


@dataclass
class Meant:
    """A slice, in the words that both formats are compared in. Times are CLOCK_MONOTONIC, in ns."""

    track: tuple[str, ...]
    name: str
    ts: int
    dur: int
    depth: int
    args: dict[str, Any] = field(default_factory=dict)
    flows_to: list[tuple[Any, ...]] = field(default_factory=list)

    def key(self) -> tuple[Any, ...]:
        return (self.track, self.ts, self.depth, self.dur, self.name, repr(sorted(self.args.items())), self.flows_to)


def meant(exporter: type[Exporter], *scripts: Script) -> list[Meant]:
    """Every slice that ``scripts`` describe, as the format can say it, sorted."""
    found: list[Meant] = []
    for script in scripts:
        flows: dict[int, list[Meant]] = defaultdict(list)
        open_slices: dict[int, list[Meant]] = defaultdict(list)
        last: dict[int, tuple[int, int]] = {}
        marks: dict[int, int] = defaultdict(int)
        for track, edges in script.batches:
            stack, path = open_slices[track.id], path_of(exporter, script.process, track)
            for ts, kind, name, args, flow, end_ns in edges:
                # An instant is a slice of no length, and the engine stacks those that meet at one time.
                marks[track.id] = marks[track.id] + 1 if kind == INSTANT and last.get(track.id) == (ts, kind) else 0
                last[track.id] = ts, kind
                if kind in (BEGIN, SLICE, INSTANT):
                    dur = {BEGIN: -1, SLICE: end_ns - ts, INSTANT: 0}[kind]
                    depth = len(stack) + marks[track.id]
                    slice = Meant(path, name_of(exporter, name), ts, dur, depth, args_of(exporter, args))
                    found.append(slice)
                    if kind == BEGIN:
                        stack.append(slice)
                elif kind == END:
                    slice = stack.pop()
                    slice.dur = ts - slice.ts
                    slice.args |= args_of(exporter, args)
                if flow:
                    flows[flow].append(slice)
        for first, second in flows.values():
            first.flows_to.append((second.track, second.name, second.ts))
    return sorted(found, key=Meant.key)


def seen(exporter: type[Exporter], engine: Engine) -> list[Meant]:
    """Every slice that the engine found, sorted alike."""
    offset = RECORDING.boottime_offset_ns if exporter is Perfetto else -BASE
    found = {
        s.id: Meant(s.track, "" if s.name is None else s.name, s.ts - offset, s.dur, s.depth, args_seen(s.args))
        for s in slices(engine)
    }
    for s in slices(engine):
        for id in s.flows_to:
            found[s.id].flows_to.append((found[id].track, found[id].name, found[id].ts))
    return sorted(found.values(), key=Meant.key)


def samples_meant(exporter: type[Exporter], *scripts: Script) -> dict[tuple[str, ...], list[tuple[int, float]]]:
    """(ts, value) of every counter by its path."""
    found: dict[tuple[str, ...], list[tuple[int, float]]] = defaultdict(list)
    for script in scripts:
        for track, edges in script.batches:
            for ts, kind, value, *_ in edges:
                if kind == COUNTER:
                    found[path_of(exporter, script.process, track)].append((ts, _digits(value)))
    return dict(found)


def samples_seen(exporter: type[Exporter], engine: Engine) -> dict[tuple[str, ...], list[tuple[int, float]]]:
    offset = RECORDING.boottime_offset_ns if exporter is Perfetto else -BASE
    return {path: [(ts - offset, _digits(v)) for ts, v in samples] for path, samples in counters(engine).items()}


# --- how each format says it ------------------------------------------------------------------------------------------


def path_of(exporter: type[Exporter], process: Process, track: Track) -> tuple[str, ...]:
    """Where the engine has to draw ``track``."""
    own, name = f"{process.name} {process.pid}", name_of(exporter, track.name)
    if track.kind == THREAD:
        return own, f"{track.name} {track.tid}"
    if exporter is Perfetto:
        return *(path_of(exporter, process, track.parent) if track.parent else (own,)), name
    if track.parent is not None and track.parent.kind == GROUP:
        first_pid = (1 << 31) + (process.number << 11)
        own = f"{track.parent.name} ({process.name} {process.pid}) {first_pid}"
    if track.kind == COUNTER_TRACK:
        return own, f"{name} {track.unit or 'value'}"
    assert track.kind in (LANE, STREAM)
    return own, f"{name} {(1 << 31) + track.id}"


def name_of(exporter: type[Exporter], name: str) -> str:
    """A name as the engine shows it: what no reader can take is replaced, and an empty one is called so from JSON."""
    return _shown(exporter, name) or ("" if exporter is Perfetto else "[No name]")


def args_of(exporter: type[Exporter], args: Mapping[str, Any] | None) -> dict[str, Any]:
    """Args as the engine shows them: protobuf's keys lose what makes a path of them, JSON's numbers their width."""
    found = {}
    for key, value in (args or {}).items():
        key = _shown(exporter, key)
        if exporter is Perfetto:
            key = re.sub(r"[.\[\]]", "_", key)
        if isinstance(value, str):
            value = _shown(exporter, value)
        elif isinstance(value, float) and exporter is Chrome:
            if not math.isfinite(value):
                value = "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        elif isinstance(value, int) and not -(1 << 63) <= value < 1 << (64 if exporter is Perfetto else 63):
            value = hex(value)
        found[key] = value
    return args_seen(found)


def _shown(exporter: type[Exporter], text: str) -> str:
    """Text as the engine shows it. Its JSON reader undoes escapes only in a string that has an escaped quote."""
    text = "".join("\ufffd" if 0xD800 <= ord(c) < 0xE000 else c for c in text).replace("\0", "\u2400")
    if exporter is Perfetto:
        return text
    escaped = json.dumps(text, ensure_ascii=False)[1:-1]
    if escaped.endswith("\\") or '\\"' in escaped:
        return text if '\\"' in escaped else escaped[:-2] + "\\u005c"
    return escaped


def args_seen(args: Mapping[str, Any]) -> dict[str, Any]:
    """NaN is equal to nothing, and 1 to True: say values so that they compare."""
    return {name: repr(_digits(v)) if isinstance(v, float) else f"{type(v).__name__} {v!r}" for name, v in args.items()}


def _digits(value: float) -> float:
    """What the engine's JSON reader gets right: twelve digits, and zero, mostly, for what is too small for them.

    That the file has every digit is for another test.
    """
    if abs(value) < sys.float_info.min:
        return math.copysign(0.0, value)
    return float(f"{float(value):.12g}")
