"""What a process that was killed had not put into its shard yet: taken from its ring, drawn, and written as a tail.

The shard is kept up to the last epoch that is whole in it, and the tail comes right behind it in the trace. Nothing but
the tail is written, and that in one step, so a salvage that was itself killed is simply repeated. It knows no format
and no device: a ring holds host slices, instants and counters.
"""

from __future__ import annotations

import os
from heapq import heappop, heappush

from gputrace.counts import Counts
from gputrace.errors import OutputError
from gputrace.model import COUNTER, LANE, THREAD, Process, Track
from gputrace.record import alive
from gputrace.record.join import whole
from gputrace.record.ringfile import BEGIN, END, EXPLICIT, INSTANT, SAMPLE, Ring
from gputrace.shards import NUMBER_LIMIT
from gputrace.timeline import HostTimeline
from gputrace.tracks import Tracks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any, Final

    from gputrace.model import Args, Edge, Exporter
    from gputrace.record.ringfile import OpenSpan, RingEdge, RingThread
    from gputrace.shards import ShardFolder

#: Edges drawn between two writes.
_BATCH: Final = 4096
#: Beyond this, a track's id is garbage: it makes others overflow.
_MOST_TRACKS: Final = 1 << 24
#: A span's number from here on is garbage: formats keep no more for each process's arrows.
_MOST_SPANS: Final = 1 << 43
#: A made-up thread id, beyond any that Linux gives, for a thread of which nothing but its number is known.
_NO_TID: Final = 1 << 30
_NOT_RECORDED: Final = "not recorded: "


class Salvaged:
    """What came of one ring: ``length`` bytes of the shard are to be taken, then ``tail`` bytes of the tail's file.

    ``counts`` are the tail's slices and what was done to them. ``lost`` is the number of edges that the format could
    not add to the shard, which is whole as it stands then. ``path`` is what to take in place of the shard, "" if the
    shard itself.
    """

    __slots__ = ("counts", "length", "lost", "path", "tail")

    def __init__(self, length: int, tail: int, counts: Counts, lost: int = 0, path: str = "") -> None:
        self.path = path
        self.length = length
        self.tail = tail
        self.counts = counts
        self.lost = lost


def salvage_all(folder: ShardFolder, exporter: type[Exporter], running: set[int]) -> dict[int, Salvaged]:
    """Write the tails of all processes that left a ring and are not among ``running``, which are pids.

    By shard number; without those whose rings hold nothing more, or cannot be read. Raises OSError if a tail cannot be
    written, and what the exporter raises.
    """
    images = dict(folder.writers())
    taken = set(folder.numbers())
    # From the top, where no process will look for long: an exporter may need one, and the folder is not to gain any.
    spare = (number for number in range(NUMBER_LIMIT - 1, 0, -1) if number not in taken)
    found = {}
    for number in folder.rings():
        image = images.get(number, "")
        if number not in taken or alive.pid_of(image) in running:
            continue
        try:
            ring = Ring(folder.ring_path(number))
        except OSError as error:
            folder.damage[f"{number}.ring"] = f"cannot be read ({error.strerror})"
            continue
        except ValueError as error:
            # Without a report either, it was killed while it made it, at the latest.
            if folder.report(number):
                folder.damage[f"{number}.ring"] = str(error)
            continue
        with ring:
            process = _process(folder, ring, number, image, lambda: _next(spare))
            salvaged = _salvage(folder, ring, exporter, process)
        if salvaged is not None:
            found[number] = salvaged
    return found


def _salvage(folder: ShardFolder, ring: Ring, exporter: type[Exporter], process: Process) -> Salvaged | None:
    shard = folder.shard_path(process.number)
    epoch = ring.epoch(os.path.getsize(shard))
    threads = ring.threads(epoch)
    edges = sum(1 for thread in threads for _ in ring.outline(thread, epoch))
    if not edges:
        return None
    length = whole(shard, exporter, ring.length(epoch))
    path = folder.tail_path(process.number)
    new = f"{path}.new"
    with open(new, "wb", opener=private) as file:
        try:
            # What a process had described, and nothing else, is in a shard; an empty one is begun here.
            writer = (exporter.resume if length else exporter)(file, folder.recording, process)
        except NotImplementedError:
            os.unlink(new)
            return Salvaged(whole(shard, exporter), 0, Counts(), edges)
        tail = _Tail(ring, epoch, writer, resumed=length > 0)
        for thread in threads.values():
            tail.draw(thread)
        tail.draw_samples()
        writer.close()
    os.replace(new, path)
    return Salvaged(length, os.path.getsize(path), tail.counts)


class _Tail:
    """Draws what one ring holds beyond an epoch. ``resumed``: behind a shard, whose tracks are taken up again."""

    def __init__(self, ring: Ring, epoch: int, writer: Exporter, *, resumed: bool) -> None:
        self.counts = Counts()
        self._ring = ring
        self._epoch = epoch
        self._writer = writer
        self._resumed = resumed
        self._open: dict[int, list[OpenSpan]] = {}  # by thread
        self._samples: list[tuple[int, str, str, int | float]] = []
        threads = ring.threads(epoch).values()
        for span in ring.open_spans(epoch) if resumed else []:
            if span.track <= _MOST_TRACKS:
                self._open.setdefault(span.thread, []).append(span)
        seen = [thread.track for thread in threads] + [span.track for spans in self._open.values() for span in spans]
        seen.append(ring.tracks)
        self._tracks = Tracks(lambda: writer, max((id for id in seen if id <= _MOST_TRACKS), default=0))
        self._strays = self._find_strays([thread.number for thread in threads])

    def draw(self, thread: RingThread) -> None:
        """Write what is left of a thread, as its collector would have."""
        batch: list[_Begin | _End | _Instant] = []
        numbers: list[int] = []
        timeline: HostTimeline | None = None
        edges = self._of(thread)
        edge = next(edges, None)
        while edge is not None:
            if timeline is None:
                timeline = self._timeline(thread)
            if edge.kind == BEGIN:
                batch.append(_Begin(edge))
                numbers.append(edge.number)
            else:
                batch.append(_End(edge) if edge.kind == END else _Instant(edge))
            edge = next(edges, None)
            if edge is None or len(batch) >= _BATCH:
                timeline.add(batch, iter(numbers).__next__, [])
                timeline.flush(self._writer.write)
                batch, numbers = [], []

    def draw_samples(self) -> None:
        """Write the counters' values of all threads, a row a name, in order of time."""
        rows: dict[str, tuple[Track, list[Edge]]] = {}
        for ns, name, unit, value in sorted(self._samples, key=lambda sample: sample[0]):
            if name not in rows:
                rows[name] = (self._tracks.counter(name, unit), [])
            rows[name][1].append((ns, COUNTER, value, None, 0, 0))
        for track, edges in rows.values():
            self._writer.write(track, edges)

    def _of(self, thread: RingThread) -> Iterator[RingEdge]:
        """A thread's edges in order, with the ends that other threads gave its spans; its samples are put aside.

        What closes nothing, or opens what is open, comes of a span that was cut short, or of garbage.
        """
        is_open = {span.number for span in self._open.get(thread.number, [])}
        strays: list[tuple[int, int]] = []  # a heap of (ns, number)
        for number in is_open & self._strays.keys():
            heappush(strays, (self._strays[number].ns, number))
        for edge in self._ring.edges(thread.number, self._epoch):
            while strays and strays[0][0] < edge.ns:
                number = heappop(strays)[1]
                is_open.remove(number)
                yield self._strays.pop(number)
            if edge.kind == SAMPLE:
                self._samples.append((edge.ns, edge.name, edge.unit, edge.value))
            elif edge.kind == INSTANT:
                yield edge
            elif edge.kind == END:
                if edge.number in is_open and edge.number not in self._strays:
                    is_open.remove(edge.number)
                    yield edge
            elif 0 < edge.number < _MOST_SPANS and edge.number not in is_open:
                is_open.add(edge.number)
                yield edge
                if edge.number in self._strays:
                    heappush(strays, (max(self._strays[edge.number].ns, edge.ns), edge.number))
        while strays:
            yield self._strays.pop(heappop(strays)[1])

    def _find_strays(self, threads: list[int]) -> dict[int, RingEdge]:
        """Ends that stand in another thread's ring than their begins, by number: any thread may close a window."""
        stray: set[int] = set()
        for thread in threads:
            is_open = {span.number for span in self._open.get(thread, [])}
            for kind, number, _ in self._ring.outline(thread, self._epoch):
                if kind == BEGIN:
                    is_open.add(number)
                elif kind == END and number not in is_open:
                    stray.add(number)
                elif kind == END:
                    is_open.discard(number)
        found: dict[int, RingEdge] = {}
        for thread in threads if stray else []:
            for edge in self._ring.edges(thread, self._epoch):
                if edge.kind == END and edge.number in stray:
                    found.setdefault(edge.number, edge)
        return found

    def _timeline(self, thread: RingThread) -> HostTimeline:
        """A thread's timeline, with everything open on it that is open in the shard."""
        tid = thread.tid or _NO_TID + (thread.number & 0xFFFFFF)
        known = self._resumed and 0 < thread.track <= _MOST_TRACKS
        if known:
            track = Track(thread.track, THREAD, thread.name or f"thread {tid}", tid=tid)
            self._writer.reopen_track(track)
        else:
            track = self._tracks.thread(thread.name, tid)
        lanes: dict[int, list[int]] = {}  # the numbers open on each lane, outermost first
        home: list[int] = []
        scopes: dict[int, int | None] = {}  # of each lane's outermost
        for span in self._open.get(thread.number, []):
            scopes.setdefault(span.track, None if span.scope == EXPLICIT else span.scope)
            (home if span.track == track.id else lanes.setdefault(span.track, [])).append(span.number)
        reopen = iter(lanes)

        def open_lane(index: int) -> Track:
            id = next(reopen, None)
            if id is None:
                return self._tracks.lane(track, index)
            lane = Track(id, LANE, "tasks", parent=track, order=index, merge_key="tasks")
            self._writer.reopen_track(lane)
            return lane

        timeline = HostTimeline(track, open_lane, self.counts)
        timeline.home.stack.extend(home)
        for id, numbers in lanes.items():
            lane = timeline.lanes.choose(None, 0)
            for number in numbers:
                timeline.lanes.begin(lane, number, scopes[id])
        return timeline


# What `HostTimeline` takes for spans: a begin and an end each, as they were read.


class _Begin:
    __slots__ = ("args", "error", "flow", "gpu", "host_open", "name", "queue", "reason", "scope", "t0")

    def __init__(self, edge: RingEdge) -> None:
        self.host_open = False
        self.name = edge.name
        self.args: Args | None = edge.args
        self.t0 = edge.ns
        self.scope = None if edge.scope == EXPLICIT else edge.scope
        self.queue: Any = edge if edge.has_stream else None  # anything: it has a flow
        self.gpu = self.error = self.reason = None
        self.flow = 0


class _End:
    """What went wrong is said by fields, as a span does, whose end then says it in its args again."""

    __slots__ = ("error", "flow", "gpu", "host_open", "queue", "reason", "t1")

    def __init__(self, edge: RingEdge) -> None:
        args = edge.args or {}
        self.host_open = True
        self.flow = edge.number
        self.t1 = edge.ns
        self.error = args.get("error")
        self.gpu = self.queue = None
        self.reason = args.get("ended")
        if self.reason is None and "gpu" in args:
            self.reason = str(args["gpu"]).removeprefix(_NOT_RECORDED)
            self.queue = edge


class _Instant:
    __slots__ = ("args", "host_open", "name", "t0", "value")

    def __init__(self, edge: RingEdge) -> None:
        self.host_open = self.value = None
        self.name = edge.name
        self.args = edge.args
        self.t0 = edge.ns


def _process(folder: ShardFolder, ring: Ring, number: int, image: str, claim_number: Callable[[], int]) -> Process:
    """What is known of a process that is over: its command line only where its shard says so."""
    _, _, rest = image.partition(" ")
    start, _, executable = rest.partition(" ")
    reported = folder.report(number).get("pid")
    pid = reported if isinstance(reported, int) else ring.pid or alive.pid_of(image)
    boottime_ns = int(start) * 1_000_000_000 // os.sysconf("SC_CLK_TCK") if start.isdecimal() else 0
    start_ns = max(boottime_ns - folder.recording.boottime_offset_ns, 0)
    name = ring.process_name or os.path.basename(executable) or f"process {pid}"
    return Process(number, pid, name, [], start_ns, claim_number)


def _next(spare: Iterator[int]) -> int:
    number = next(spare, None)
    if number is None:
        raise OutputError("all shard numbers are taken")
    return number


def private(path: str, flags: int) -> int:
    """Opens a file of the folder to write it."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)
