"""What passes from the tracer to an exporter: tracks, edges, the process and the recording.

It knows no device, no clock arithmetic and no file format. Every time is integer nanoseconds of the host's
CLOCK_MONOTONIC; exporters add the recording's one BOOTTIME offset themselves. Plain classes with slots, and no import
at all: a traced program pays for importing this before its first line runs. Names under ``TYPE_CHECKING`` are for type
checkers alone.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import IO, Protocol

    class Output(Protocol):
        """What a shard is written to: these and nothing else."""

        @property
        def closed(self) -> bool: ...
        def write(self, data: bytes, /) -> int: ...
        def flush(self) -> None: ...
        def close(self) -> None: ...

    ArgValue = bool | int | float | str
    Args = Mapping[str, ArgValue]
    #: (ts_ns, kind, name or counter value or None, args or None, flow id or 0, end_ns or 0); one tuple an edge.
    Edge = tuple[int, int, str | int | float | None, Args | None, int, int]

#: The arg that a `Flow` stands under.
FLOW = "gputrace.flow"


class Flow(int):
    """Among the args of a BEGIN or SLICE, under `FLOW`: no fact to show but a further flow id, whose slices may lie on
    one track. They count from 2^43, where no span's number comes.
    """

    __slots__ = ()


# Kinds of edge. END carries no name: it closes the innermost open slice of its track. SLICE is a begin and an end in
# one, at ts_ns and end_ns, with nothing between on its track: most slices hold no other, and one costs half of two.
BEGIN = 1
END = 2
INSTANT = 3
COUNTER = 4
SLICE = 5

# Kinds of track.
THREAD = "thread"  # a host thread of the process; has tid, no parent
LANE = "lane"  # host slices that may not nest on the thread's own track (tasks, generators); parent a THREAD
GROUP = "group"  # a device: holds streams and counters, no slices of its own
STREAM = "stream"  # a stream's slices; parent a GROUP
COUNTER_TRACK = "counter"  # parent a GROUP, or none: the process


class Track:
    """One row of the trace.

    ``id`` is unique in its process and counts from 1. ``order`` sorts siblings. Tracks of one parent that share a
    ``merge_key`` (a str) are lanes: drawn as one row. ``unit`` is a counter's unit: "bytes", "ns", "ppm", "percent" or
    "" (none). ``tid`` is the operating system's thread id, for THREAD tracks alone. ``labels`` are facts about a track
    to keep with it (a device's name, its driver).
    """

    __slots__ = ("id", "kind", "labels", "merge_key", "name", "order", "parent", "tid", "unit")

    def __init__(
        self,
        id: int,
        kind: str,
        name: str,
        *,
        parent: Track | None = None,
        tid: int = 0,
        order: int = 0,
        merge_key: str = "",
        unit: str = "",
        labels: Args | None = None,
    ) -> None:
        self.id = id
        self.kind = kind
        self.name = name
        self.parent = parent
        self.tid = tid
        self.order = order
        self.merge_key = merge_key
        self.unit = unit
        self.labels = labels

    def __repr__(self) -> str:
        return f"Track({self.id}, {self.kind!r}, {self.name!r})"


class Process:
    """One process image of a recording: what its shard says about itself.

    ``number`` is the shard's number, unique in the recording (fork and exec take a new one). ``claim_number()`` takes
    one more, for an exporter that ran out of ids under this one. Raises OSError if the shard folder is gone.
    ``order`` sorts processes: by their numbers where None is given, else by rank.
    """

    __slots__ = ("claim_number", "command_line", "name", "number", "order", "pid", "start_ns")

    def __init__(
        self,
        number: int,
        pid: int,
        name: str,
        command_line: list[str],
        start_ns: int,
        claim_number: Callable[[], int],
        order: int | None = None,
    ) -> None:
        self.number = number
        self.order = number if order is None else order
        self.pid = pid
        self.name = name
        self.command_line = command_line
        self.start_ns = start_ns
        self.claim_number = claim_number


class Recording:
    """What every shard of one recording shares, decided once by whoever started it.

    ``id`` is 32 hex digits, random. ``base_ns`` is the recording's start (CLOCK_MONOTONIC): formats whose times are
    small numbers count from it. ``boottime_offset_ns`` is BOOTTIME minus MONOTONIC.
    """

    __slots__ = ("base_ns", "boottime_offset_ns", "id")

    def __init__(self, id: str, base_ns: int, boottime_offset_ns: int) -> None:
        self.id = id
        self.base_ns = base_ns
        self.boottime_offset_ns = boottime_offset_ns


class ClockSnapshot:
    """The three host clocks read together, in ns: CLOCK_BOOTTIME, CLOCK_MONOTONIC, CLOCK_REALTIME."""

    __slots__ = ("boottime_ns", "monotonic_ns", "realtime_ns")

    def __init__(self, boottime_ns: int, monotonic_ns: int, realtime_ns: int) -> None:
        self.boottime_ns = boottime_ns
        self.monotonic_ns = monotonic_ns
        self.realtime_ns = realtime_ns


class Exporter:
    """A trace format: subclass this and register it under the entry-point group ``gputrace.exporters``.

    The entry point's name is the suffix without its dot (``pftrace`` for ``trace.pftrace``); its value is the class.
    Gzip is not the format's business: ``NAME.suffix.gz`` is compressed after the shards are joined.

    An instance writes one *shard*: what one process adds to the trace. A trace is ``header``, then each shard cut to
    ``whole``, then ``footer``; so a shard must make sense after any other shard, and must be good up to its last whole
    record at any moment, because its process may be killed.

    Edges of one track arrive sorted by time, properly nested, at one timestamp ends before begins and outer begins
    before inner. ``write`` may be called for tracks in any order. All calls come from one thread.
    """

    @classmethod
    def header(
        cls,
        recording: Recording,
        snapshots: Iterable[ClockSnapshot],
        metadata: Mapping[str, object],
    ) -> bytes:
        """Bytes before the first shard. ``metadata``: str, int, float, bool or list of str, by name."""
        return b""

    @classmethod
    def footer(cls) -> bytes:
        """Bytes after the last shard."""
        return b""

    @classmethod
    def whole(cls, shard: IO[bytes]) -> int:
        """Length in bytes of the shard's longest prefix that loads: cuts a record torn by a kill or a full disk."""
        raise NotImplementedError

    def __init__(self, file: Output, recording: Recording, process: Process) -> None:
        """``file`` is empty, and takes ``write``, ``flush`` and ``close`` alone."""
        raise NotImplementedError

    @classmethod
    def resume(cls, file: IO[bytes], recording: Recording, process: Process) -> Exporter:
        """An instance that goes on where a killed process left its shard, which has said already what the process is.

        What is written to ``file``, which is empty, comes right behind the shard, cut to its last whole record. It is
        of host tracks and counters alone, so of a window's flow just one end is there. Raises NotImplementedError if
        the format cannot: what the process had not put into its shard is lost then, which the recording's summary says.
        """
        raise NotImplementedError

    def reopen_track(self, track: Track) -> None:
        """Take up a THREAD or LANE track that the resumed shard announced, with all that is open on it: as
        `open_track`, but nothing is announced. The track is as it was, but for its ``order``.
        """
        raise NotImplementedError

    def open_track(self, track: Track) -> None:
        """Announce a track. Its parent was announced before. Called once a track, before its first edge."""
        raise NotImplementedError

    def close_track(self, track: Track) -> None:
        """No edge of this track will follow (its thread ended): what was kept for it can go."""

    def write(self, track: Track, edges: Iterable[Edge]) -> None:
        """Add edges of one track. An edge is (ts_ns, kind, name, args, flow, end_ns); see ``Edge``.

        ``args`` may be empty. Slices of one flow id, on different tracks, are joined by an arrow from the earlier one;
        0 is no flow. An END may carry args: they belong to the slice it closes. A COUNTER edge has its value (int or
        float) as the name. An arg may be a `Flow`.
        """
        raise NotImplementedError

    def native(self, track: Track) -> object:
        """What the compiled core needs to encode this track's edges itself, announced before. A format that the core
        does not know leaves this as it is: it is then given edges.
        """
        raise NotImplementedError

    def write_native(self, data: bytes) -> None:
        """Add what the core encoded: whole records."""
        raise NotImplementedError

    def metadata(self, values: Mapping[str, object]) -> None:
        """Facts about this process known only now (counts of dropped windows); may be called more than once."""

    def flush(self) -> None:
        """Hand everything written so far to the operating system."""
        raise NotImplementedError

    def close(self) -> None:
        """Flush, and let go of the file. Must not fail if called twice."""
        raise NotImplementedError
