"""A process that writes a ring and a shard as the compiled core does, and can be killed between any two stores.

    core = Core(folder, exporter, kill_at=17)
    with contextlib.suppress(Killed):
        thread = core.thread("MainThread", 4242)
        number = core.begin(thread, "step", args={"n": 1})
        core.end(thread, number)
        core.commit()                  # an epoch: what the ring holds goes into the shard
    core.die()                         # N.ring and N.shard are in the folder, as a SIGKILL leaves them
    core.edges                         # what was committed to the ring or written: what no reader may lose

It is written from the format's description and shares no code with the reader.
"""

from __future__ import annotations

import io
import itertools
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gputrace.counts import Counts
from gputrace.model import COUNTER, Exporter, Flow, Process, Track
from gputrace.shards import ShardFolder
from gputrace.timeline import HostTimeline
from gputrace.tracks import Tracks

HEADER = 65536
PIECE = 65536
EXPLICIT = (1 << 64) - 1
EDGES, NAMES, THREADS, OPEN = 1, 2, 3, 4
BEGIN, END, INSTANT, SAMPLE, FILL = 1, 2, 3, 4, 255
PID = 4242


class Killed(Exception):
    """The process is no more."""


@dataclass
class Edge:
    """One edge, as the program meant it. ``thread`` is whose ring it stands in, ``owner`` whose span it is."""

    kind: int
    ns: int
    thread: int
    owner: int
    number: int = 0
    name: str = ""
    args: dict[str, Any] = field(default_factory=dict)
    scope: int = 0
    stream: bool = False
    value: int | float = 0
    unit: str = ""


class Span:
    """What `HostTimeline` is given for an edge: the same object for a span's two."""

    def __init__(self, edge: Edge) -> None:
        self.number = edge.number
        self.host_open: bool | None = False if edge.kind == BEGIN else None
        self.name, self.args = edge.name, edge.args or None
        self.t0 = self.t1 = edge.ns
        self.scope = None if edge.scope == EXPLICIT else edge.scope
        self.queue = edge if edge.stream else None
        self.flow = 0
        self.gpu = self.error = self.reason = None
        self.value = edge.value if edge.kind == SAMPLE else None
        self.unit = edge.unit

    def close(self, edge: Edge) -> None:
        self.t1 = edge.ns
        self.error = edge.args.get("error")
        self.reason = edge.args.get("ended")
        self.gpu = self.queue  # so that the reason is said as it is


class Shard:
    """The collector's half: edges in, an exporter's bytes out. Knows what is open on which track."""

    def __init__(self, file: io.BytesIO, exporter: type[Exporter], folder: ShardFolder, number: int) -> None:
        process = Process(number, PID, "train.py", ["python", "train.py"], folder.recording.base_ns, folder.claim)
        self.exporter = exporter(file, folder.recording, process)
        self.tracks = Tracks(lambda: self.exporter)
        self.counts = Counts()
        self.timelines: dict[int, HostTimeline] = {}
        self.track_of: dict[int, Track] = {}  # by thread
        self.spans: dict[int, Span] = {}
        self.rows: dict[str, Track] = {}
        self.highest = 0

    def add(self, edges: list[Edge], names: dict[int, tuple[str, int]]) -> None:
        """Draw edges, which are in order of time. ``names``: name and tid of each thread by number."""
        samples: list[Span] = []
        for owner in dict.fromkeys(edge.owner for edge in edges):
            mine, numbers = [], []
            for edge in edges:
                if edge.owner != owner:
                    continue
                if edge.kind == END:
                    span = self.spans.pop(edge.number)
                    span.close(edge)
                else:
                    span = Span(edge)
                    if edge.kind == BEGIN:
                        self.spans[edge.number] = span
                        numbers.append(edge.number)
                mine.append(span)
            if owner not in self.timelines:
                track = self.track_of[owner] = self._seen(self.tracks.thread(*names[owner]))
                self.timelines[owner] = HostTimeline(
                    track, lambda index, track=track: self._seen(self.tracks.lane(track, index)), self.counts
                )
            samples += self.timelines[owner].add(mine, iter(numbers).__next__, [])
            self.timelines[owner].flush(self.tracks.write)
        for sample in sorted(samples, key=lambda sample: sample.t0):
            if sample.name not in self.rows:
                self.rows[sample.name] = self._seen(self.tracks.counter(sample.name, sample.unit))
            assert sample.value is not None
            self.tracks.write(self.rows[sample.name], [(sample.t0, COUNTER, sample.value, None, 0, 0)])
        self.exporter.flush()

    def open(self) -> dict[int, tuple[int, int]]:
        """(thread, track id) of each open span, by number."""
        found = {}
        for thread, timeline in self.timelines.items():
            for lane in (timeline.home, *timeline.lanes.lanes):
                found.update(dict.fromkeys(lane.stack, (thread, lane.track.id)))
        return found

    def _seen(self, track: Track) -> Track:
        self.highest = max(self.highest, track.id)
        return track


class Ring:
    """The file's bytes, stored in the order that the format asks for. ``step`` is called before each store."""

    def __init__(self, first: int = 64) -> None:
        self.steps = 0
        self.kill_at: int | None = None
        self.first = first  # where in its first piece a thread begins: near the end, so that pieces fill up soon
        self.data = bytearray(HEADER)
        self.data[:16] = struct.pack("<8sII", b"gputrng1", 1, PIECE)
        self.names: dict[str, int] = {}
        self.threads: dict[int, int] = {}  # where its entry is
        self.open: dict[int, int] = {}  # likewise
        self.sequences: dict[int, int] = {}
        self.current: dict[int, tuple[int, int, int]] = {}  # by thread: its piece, how long it is, where to write
        self.pieces: list[tuple[int, int, int]] = []  # (thread, where, how long), in use, oldest first
        self.free: list[tuple[int, int]] = []  # (where, units)
        self.tables = {kind: self._take(kind, 1) for kind in (NAMES, THREADS, OPEN)}
        self.ends = dict.fromkeys((NAMES, THREADS), 64)
        self.steps = 0

    def store(self, at: int, form: str, *values: Any) -> None:
        if self.steps == self.kill_at:
            raise Killed
        self.steps += 1
        struct.pack_into("<" + form, self.data, at, *values)

    def load(self, at: int, form: str = "Q") -> int:
        return int(struct.unpack_from("<" + form, self.data, at)[0])

    def name(self, text: str) -> int:
        if text not in self.names:
            id, at = len(self.names) + 1, self.tables[NAMES] + self.ends[NAMES]
            raw = encoded(text)
            self.store(at + 8, f"{len(raw)}s", raw)
            self.store(at + 4, "I", len(raw))
            self.store(at, "I", id)
            self.names[text] = id
            self.ends[NAMES] += 8 + (len(raw) + 7) // 8 * 8
        return self.names[text]

    def thread(self, number: int, name: str, tid: int) -> None:
        at = self.threads[number] = self.tables[THREADS] + self.ends[THREADS]
        self.ends[THREADS] += 128
        raw = encoded(name)[:96]
        self.store(at + 4, "III", tid, 0, len(raw))
        self.store(at + 32, f"{len(raw)}s", raw)
        self.store(at, "I", number)

    def record(self, edge: Edge, intern: bool) -> None:
        payload = b""
        name = 0
        if edge.kind != END:
            name = self.name(edge.name) if intern else 0
            payload = b"" if name else text(edge.name)
        unit = self.name(edge.unit) if edge.unit else 0
        for key, value in edge.args.items():
            id = self.name(key) if intern else 0
            kind, body = argument(value)
            payload += struct.pack("<BI", kind, id) + (b"" if id else text(key)) + body
        slots = (len(payload) + 31) // 32
        at = self._room(edge.thread, 32 * (1 + slots))
        self.store(at + 32, f"{len(payload)}s", payload)
        self.store(at + 8, "q", edge.ns)
        flags = 0
        if edge.kind == SAMPLE:
            flags = int(isinstance(edge.value, float))
            self.store(at + 16, "d" if flags else "q", edge.value)
            self.store(at + 24, "Q", unit)
        else:
            flags = int(edge.stream)
            self.store(at + 16, "QQ", edge.number, edge.scope)
        self.store(at, "Q", edge.kind | flags << 8 | slots << 16 | name << 32)

    def _room(self, thread: int, size: int) -> int:
        """Where a record of this size goes."""
        piece, length, at = self.current.get(thread, (0, 0, 0))
        if not piece or at + size > length:
            if piece and at + 32 <= length:
                self.store(piece + at, "Q", FILL)
            first = 64 if piece else self.first
            units = -(-(first + size) // PIECE)
            sequence = self.sequences[thread] = self.sequences.get(thread, 0) + 1
            piece, length, at = self._take(EDGES, units, thread, sequence, first), units * PIECE, first
            self.pieces.append((thread, piece, length))
        self.current[thread] = (piece, length, at + size)
        return piece + at

    def _take(self, kind: int, units: int, thread: int = 0, sequence: int = 0, first: int = 64) -> int:
        at = next((at for at, size in self.free if size == units), 0)
        if at:
            self.free.remove((at, units))
            self.store(at + 64, f"{units * PIECE - 64}s", b"")
        else:
            at = len(self.data)
            self.data += bytes(units * PIECE)
        self.store(at + 4, "II", units, thread)
        self.store(at + 16, "QQQQ", sequence, first, first, 0)
        self.store(at, "I", kind)
        return at

    def consume(self, epoch: int) -> None:
        """Note that all that is there is this epoch's."""
        for thread, piece, length in self.pieces:
            current, _, at = self.current[thread]
            self.store(piece + 24, "Q", self.load(piece + 32))
            self.store(piece + 40, "Q", epoch)
            self.store(piece + 32, "Q", at if piece == current else length)

    def recycle(self) -> None:
        for thread, piece, length in list(self.pieces):
            if piece != self.current[thread][0]:
                self.pieces.remove((thread, piece, length))
                self.store(piece, "I", 0)
                self.free.append((piece, length // PIECE))

    def note_open(self, wanted: dict[int, tuple[int, int, int]], epoch: int) -> None:
        for number in [number for number in self.open if number not in wanted]:
            if not self.load(self.open[number] + 24):
                self.store(self.open[number] + 24, "Q", epoch)
        for number, (thread, track, scope) in wanted.items():
            if number not in self.open:
                used = set(self.open.values())
                at = next(at for at in itertools.count(self.tables[OPEN] + 64, 40) if at not in used)
                self.open[number] = at
                self.store(at + 8, "IIQQQ", thread, track, epoch, 0, scope)
                self.store(at, "Q", number)

    def forget_closed(self, epoch: int) -> None:
        for number, at in list(self.open.items()):
            if 0 < self.load(at + 24) <= epoch:
                self.store(at, "Q", 0)
                del self.open[number]


class Core:
    """One traced process. ``first``: see `Ring`. ``kill_at``: at which store it is killed; None: at `die`."""

    def __init__(
        self, folder: ShardFolder, exporter: type[Exporter], *, first: int = 64, kill_at: int | None = None
    ) -> None:
        self.folder = folder
        self.number = folder.claim()
        folder.write_report(self.number, {"pid": PID})
        self.ring = Ring(first)
        self.ring.kill_at = kill_at
        self.edges: list[Edge] = []
        self.threads: dict[int, tuple[str, int]] = {}
        self.owners: dict[int, int] = {}
        self.file = io.BytesIO()
        self.written = 0
        self.shard = Shard(self.file, exporter, folder, self.number)
        self.taken = 0
        self._next = itertools.count(1).__next__
        self._path = Path(folder.shard_path(self.number))

    def thread(self, name: str, tid: int) -> int:
        number = len(self.threads) + 1
        self.ring.thread(number, name, tid)
        self.threads[number] = (name, tid)
        return number

    def begin(
        self,
        thread: int,
        ns: int,
        name: str,
        scope: int = 0,
        args: dict[str, Any] | None = None,
        *,
        stream: bool = False,
        intern: bool = True,
    ) -> int:
        number = self._next()
        self._add(Edge(BEGIN, ns, thread, thread, number, name, args or {}, scope, stream), intern)
        self.owners[number] = thread
        return number

    def end(self, thread: int, ns: int, number: int, args: dict[str, Any] | None = None, intern: bool = True) -> None:
        self._add(Edge(END, ns, thread, self.owners[number], number, "", args or {}), intern)

    def instant(self, thread: int, ns: int, name: str, args: dict[str, Any] | None = None, intern: bool = True) -> None:
        self._add(Edge(INSTANT, ns, thread, thread, 0, name, args or {}), intern)

    def sample(self, thread: int, ns: int, name: str, value: int | float, unit: str = "", intern: bool = True) -> None:
        self._add(Edge(SAMPLE, ns, thread, thread, 0, name, value=value, unit=unit), intern)

    def commit(self) -> None:
        """One epoch, in the order of stores that makes it whole or not there."""
        ring = self.ring
        epoch = ring.load(16) + 1
        self.shard.add(self.edges[self.taken :], self.threads)
        self.taken = len(self.edges)
        ring.store(48, "Q", self.shard.highest)
        for thread, track in self.shard.track_of.items():
            if not ring.load(ring.threads[thread] + 8, "I"):
                ring.store(ring.threads[thread] + 16, "Q", epoch)
                ring.store(ring.threads[thread] + 8, "I", track.id)
        scopes = {edge.number: edge.scope for edge in self.edges if edge.kind == BEGIN}
        ring.note_open({n: (*where, scopes[n]) for n, where in self.shard.open().items()}, epoch)
        ring.consume(epoch)
        data = self.file.getvalue()
        ring.store(32 + 8 * (epoch & 1), "Q", len(data))
        ring.store(24, "Q", epoch)
        # The write itself can be cut anywhere: after a byte, in its middle, before its last. There may be none to do.
        for end in (self.written + 1, (self.written + len(data)) // 2, len(data) - 1, len(data)):
            if self.written < end <= len(data):
                ring.store(0, "0s", b"")
                with self._path.open("ab") as shard:
                    shard.write(data[self.written : end])
                self.written = end
        ring.store(16, "Q", epoch)
        ring.forget_closed(epoch)
        ring.recycle()

    def die(self) -> None:
        Path(self.folder.ring_path(self.number)).write_bytes(self.ring.data)

    def _add(self, edge: Edge, intern: bool) -> None:
        self.ring.record(edge, intern)
        self.edges.append(edge)


def encoded(name: str) -> bytes:
    return name.encode("utf-8", "surrogatepass")


def text(name: str) -> bytes:
    return struct.pack("<I", len(encoded(name))) + encoded(name)


def argument(value: Any) -> tuple[int, bytes]:
    if isinstance(value, Flow):
        return 6, struct.pack("<q", value)
    if isinstance(value, bool):
        return 1, struct.pack("<B", value)
    if isinstance(value, int):
        return (2, struct.pack("<q", value)) if -(1 << 63) <= value < 1 << 63 else (5, text(hex(value)))
    return (3, struct.pack("<d", value)) if isinstance(value, float) else (4, text(value))
