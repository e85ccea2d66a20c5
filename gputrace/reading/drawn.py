"""How much a trace of ours draws: its slices, counted in the file.

For parts of one that a killed process left, whose own last count is older than they are. It knows no recording.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from gputrace.reading.fields import BYTES, VARINT, Malformed, fields
from gputrace.reading.layout import Events
from gputrace.reading.packets import packets
from gputrace.reading.stream import ByteStream

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    Part = tuple[str, int]

_BEGIN, _END = 1, 2
# Fields by number: of a packet, of a track's descriptor, of an event.
_SEQUENCE, _EVENT, _DESCRIPTOR = 10, 11, 60
_UUID, _THREAD, _PARENT = 1, 4, 5
_TYPE = 9
_TYPE_TAG = _TYPE << 3
#: Chrome's format has made-up pids for devices, from here on.
_MADE_UP = 1 << 31
_PIECE_BYTES = 1 << 20


class Drawn:
    """``slices`` on all rows; how many of them are ``windows`` of devices, and ``unfinished``: without an end."""

    def __init__(self) -> None:
        self.slices = 0
        self.windows = 0
        self.unfinished = 0

    def add(self, begins: int, ends: int, on_device: bool) -> None:
        """One row's."""
        self.slices += begins
        if on_device:
            self.windows += begins
        self.unfinished += max(begins - ends, 0)


def drawn(parts: Iterable[Part], suffix: str) -> Drawn | None:
    """What files draw that follow one another, each up to a number of bytes; None of a format of others.

    Raises `InputError` if one cannot be read.
    """
    if suffix == ".pftrace":
        return _of_packets(parts)
    return _of_lines(parts) if suffix == ".json" else None


class _Part(ByteStream):
    """The first bytes of a file."""

    def __init__(self, path: str, length: int) -> None:
        super().__init__(path)
        self._left = length

    def read(self, size: int) -> bytes:
        data = super().read(min(size, self._left))
        self._left -= len(data)
        return data


def _of_packets(parts: Iterable[Part]) -> Drawn:
    edges: Counter[tuple[int, int]] = Counter()  # by sequence and type
    threads: set[int] = set()  # uuids of tracks
    host: set[int] = set()  # sequences
    for path, length in parts:
        with _Part(path, length) as stream:
            for batch in packets(stream):
                events = Events(batch)
                of_event = np.stack([events.sequence[events.which], _types(events)])
                pairs, counts = np.unique(of_event, axis=1, return_counts=True)
                for sequence, type, count in zip(*pairs.tolist(), counts.tolist(), strict=True):
                    edges[sequence, type] += count
                for k in np.flatnonzero(~events.is_event).tolist():
                    try:
                        _look_into(batch.data, int(batch.bodies[k]), int(batch.ends[k]), edges, threads, host)
                    except Malformed:
                        continue
    found = Drawn()
    for sequence in {sequence for sequence, _ in edges}:
        found.add(edges[sequence, _BEGIN], edges[sequence, _END], sequence not in host)
    return found


def _types(events: Events) -> Any:
    """The types of events, which begin with them; 0 where one does not."""
    return np.where(events.padded[events.event_at] == _TYPE_TAG, events.padded[events.event_at + 1], 0).astype(np.int64)


def _look_into(
    data: bytes, start: int, end: int, edges: Counter[tuple[int, int]], threads: set[int], host: set[int]
) -> None:
    """Any other packet: an event of an unusual shape, or what describes a track."""
    found = {number: (kind, value, stop) for number, kind, _, value, stop in fields(data, start, end)}
    sequence = found.get(_SEQUENCE, (VARINT, 0, 0))[1]
    kind, value, stop = found.get(_EVENT, (VARINT, 0, 0))
    if kind == BYTES:
        edges[sequence, dict(_integers(data, value, stop)).get(_TYPE, 0)] += 1
    kind, value, stop = found.get(_DESCRIPTOR, (VARINT, 0, 0))
    if kind == BYTES:
        track = {number: inside for number, _, _, inside, _ in fields(data, value, stop)}
        # A lane hangs on its thread, a stream on its device.
        if _THREAD in track or track.get(_PARENT) in threads:
            host.add(sequence)
        if _THREAD in track:
            threads.add(track.get(_UUID, 0))


def _integers(data: bytes, start: int, end: int) -> Iterator[tuple[int, int]]:
    return ((number, value) for number, kind, _, value, _ in fields(data, start, end) if kind == VARINT)


def _of_lines(parts: Iterable[Part]) -> Drawn:
    edges: Counter[tuple[object, object, str]] = Counter()
    for path, length in parts:
        for line in _lines(path, length):
            # Of our lines the phase is what they begin with; metadata and counters need no look.
            if line.startswith((b'{"ph":"B"', b'{"ph":"E"')):
                try:
                    event = orjson.loads(line.rstrip(b","))
                except ValueError:
                    continue  # damaged
                edges[event.get("pid"), event.get("tid"), event["ph"]] += 1
    found = Drawn()
    for pid, tid in {(pid, tid) for pid, tid, _ in edges}:
        found.add(edges[pid, tid, "B"], edges[pid, tid, "E"], isinstance(pid, int) and pid >= _MADE_UP)
    return found


def _lines(path: str, length: int) -> Iterator[bytes]:
    with _Part(path, length) as stream:
        rest = b""
        while piece := stream.read(_PIECE_BYTES):
            *lines, rest = (rest + piece).split(b"\n")
            yield from lines
