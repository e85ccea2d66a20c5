"""Chrome's JSON format (``.json``): one event a line, read by anything, four times the size of Perfetto's.

The array form, because an array that was never closed still loads and an object does not. A shard has no opening
bracket; the recording's ``header`` brings it. https://github.com/google/trace-viewer holds the format's description.

- ``ts`` is in us with three decimals, made from integer ns without a float, and counts from the recording's
  ``base_ns``. The header's first event says what that is. A time before the base becomes 0.000, because the engine
  drops negative ones.
- JSON knows no tracks but (process, thread). A GROUP becomes a process of its own, so that a device's streams and
  counters stay together and no counter meets its like of another device; lanes are threads of their own. Made-up
  pids, and tids among real ones, are 2^31 and up: no Linux id goes beyond 2^22.
- Flows are ``s`` on the edge written first and ``f`` on the second, each right behind the slice's begin.
- The engine reads integers as int64 and takes others for garbage, so wider ones are hexadecimal strings. JSON has no
  NaN and no infinities: they are strings too. Viewers in JavaScript round integers beyond 2^53.
- Backslashes and control characters are escaped as JSON asks. The engine undoes escapes only in a string that has an
  escaped quote, and shows them as they stand (``\\n``) in any other.
"""

from __future__ import annotations

from gputrace.model import BEGIN, COUNTER, COUNTER_TRACK, END, FLOW, GROUP, LANE, SLICE, THREAD, Exporter, Flow

from . import jsontext
from .output import Output
from .values import fits_int64, nearest_double

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import IO

    from gputrace.model import Args, ClockSnapshot, Edge, Process, Recording, Track

_MADE_UP = 1 << 31  # the first pid or tid that no operating system gives
_GROUPS_A_PROCESS = 1 << 11  # pids for groups: 20 bits of process number, 11 of these
_RECORDING_PID = (1 << 32) - 1

#: Names a track keeps encoded before it forgets them all, and flows whose other end is still to come.
NAMES_KEPT = 4096
FLOWS_KEPT = 65_536

#: Bytes of a shard's end looked at in one step.
CHUNK = 1 << 16

_BEGINS = (BEGIN, SLICE)
_LINE_START = b'{"ph":"'
_LINE_END = b"},\n"
_TAILS = [f".{ns:03d}}},\n" for ns in range(1000)]


class Chrome(Exporter):
    """Writes one process's shard. See ``gputrace.model.Exporter`` for the contract. Raises whatever ``file`` raises."""

    @classmethod
    def header(cls, recording: Recording, snapshots: Iterable[ClockSnapshot], metadata: Mapping[str, object]) -> bytes:
        """The bracket and the recording's facts: ``base_ns`` is what every ``ts`` counts from, in CLOCK_MONOTONIC."""
        clocks = [
            f'{{"boottime_ns":{s.boottime_ns},"monotonic_ns":{s.monotonic_ns},"realtime_ns":{s.realtime_ns}}}'
            for s in sorted(snapshots, key=lambda s: s.boottime_ns)
        ]
        facts: dict[str, object] = {
            "id": recording.id,
            "base_ns": recording.base_ns,
            "boottime_offset_ns": recording.boottime_offset_ns,
        }
        lines = [
            _metadata(
                "gputrace.recording",
                _RECORDING_PID,
                0,
                jsontext.mapping(facts)[:-1] + f',"clocks":[{",".join(clocks)}]}}',
            ),
            _metadata("gputrace.metadata", _RECORDING_PID, 0, jsontext.mapping(metadata)),
        ]
        return ("[\n" + "".join(lines)).encode()

    @classmethod
    def footer(cls) -> bytes:
        """A last event without a comma, and the bracket that closes the array."""
        return (_metadata("gputrace.end", _RECORDING_PID, 0, "{}")[:-2] + "\n]\n").encode()

    @classmethod
    def whole(cls, shard: IO[bytes]) -> int:
        """The end of the last line that is an event: looked for from behind, as no event holds a newline."""
        end = _last(shard, _LINE_END, shard.seek(0, 2))
        while end:
            start = _last(shard, b"\n", end - 1)
            shard.seek(start)
            if shard.read(len(_LINE_START)) == _LINE_START:
                break
            end = _last(shard, _LINE_END, start)
        return end

    @classmethod
    def resume(cls, file: IO[bytes], recording: Recording, process: Process) -> Chrome:
        return _Resumed(file, recording, process)

    def __init__(self, file: IO[bytes], recording: Recording, process: Process) -> None:
        self._output = Output(file)
        self._process = process
        self._base_ns = recording.base_ns
        self._tracks: dict[int, _Lines] = {}
        self._group_pids: dict[int, int] = {}  # by track id
        self._counter_names: dict[tuple[int, str], int] = {}  # how many counters of a process bear a name
        self._flows = _Flows(process.number)
        self._describe_process()

    def _describe_process(self) -> None:
        process = self._process
        facts: dict[str, object] = {"number": process.number, "command_line": process.command_line}
        self._emit(
            _name("process_name", process.pid, 0, {"name": process.name}),
            _metadata("process_sort_index", process.pid, 0, jsontext.mapping({"sort_index": process.order})),
            _metadata("gputrace.process", process.pid, 0, jsontext.mapping({**facts, "start_ns": process.start_ns})),
        )

    def open_track(self, track: Track) -> None:
        pid = self._process.pid
        if track.parent is not None:
            pid = self._group_pids.get(track.parent.id, pid)
        if track.kind == GROUP:
            self._open_group(track)
            return
        if track.kind == COUNTER_TRACK:
            count = self._counter_names[pid, track.name] = self._counter_names.get((pid, track.name), 0) + 1
            name = track.name if count == 1 else f"{track.name} ({count})"
            self._tracks[track.id] = _Lines(pid, 0, self._base_ns, self._flows, name, track.unit or "value")
            return
        tid = _tid(track)
        self._tracks[track.id] = _Lines(pid, tid, self._base_ns, self._flows)
        # A lane stands behind the thread it belongs to: same index, larger tid.
        order = track.parent.order if track.kind == LANE and track.parent is not None else track.order
        self._emit(
            _name("thread_name", pid, tid, {"name": track.name, **(track.labels or {})}),
            _metadata("thread_sort_index", pid, tid, jsontext.mapping({"sort_index": order})),
        )

    def reopen_track(self, track: Track) -> None:
        self._tracks[track.id] = _Lines(self._process.pid, _tid(track), self._base_ns, self._flows)

    def close_track(self, track: Track) -> None:
        self._tracks.pop(track.id, None)

    def write(self, track: Track, edges: Iterable[Edge]) -> None:
        self._output.write(self._tracks[track.id].encode(edges).encode())

    def metadata(self, values: Mapping[str, object]) -> None:
        """The values are the args of a metadata event of the process, ``gputrace.metadata``."""
        self._emit(_metadata("gputrace.metadata", self._process.pid, 0, jsontext.mapping(values)))

    def flush(self) -> None:
        self._output.flush()

    def close(self) -> None:
        self._output.close()

    def _open_group(self, track: Track) -> None:
        process = self._process
        pid = _MADE_UP + process.number * _GROUPS_A_PROCESS + len(self._group_pids)
        self._group_pids[track.id] = pid
        labels = ", ".join(f"{name}: {value}" for name, value in (track.labels or {}).items())
        self._emit(
            _metadata(
                "process_name", pid, 0, jsontext.mapping({"name": f"{track.name} ({process.name} {process.pid})"})
            ),
            _metadata("process_sort_index", pid, 0, jsontext.mapping({"sort_index": process.order})),
            _metadata("process_labels", pid, 0, jsontext.mapping({"labels": labels})) if labels else "",
        )

    def _emit(self, *lines: str) -> None:
        self._output.write("".join(lines).encode())


class _Resumed(Chrome):
    """Goes on behind a shard that has described its process."""

    def __init__(self, file: IO[bytes], recording: Recording, process: Process) -> None:
        super().__init__(file, recording, process)
        self._flows = _ResumedFlows(process.number)

    def _describe_process(self) -> None:
        pass


class _Flows:
    """Which end of a flow an edge is: the first one written starts it, the second finishes and forgets it.

    An arrow may not lead back in time: the engine drops it. A window placed before its own launch, as one may be within
    its stated uncertainty, has its arrow end where it starts, which lies inside the window all the same.
    """

    __slots__ = ("_base", "_open")

    def __init__(self, process_number: int) -> None:
        self._base = process_number << 44  # the engine takes an int or hexadecimal text for an id, nothing else
        self._open: dict[int, int] = {}  # by flow: when it started, in ns

    def line(self, flow: int, place: str, ns: int) -> str:
        start_ns = self._open.pop(flow, None)
        if start_ns is not None:
            ns = max(ns, start_ns)
            phase = '"f","bp":"e"'
        else:
            if len(self._open) >= FLOWS_KEPT:
                del self._open[next(iter(self._open))]  # the oldest: its other end was dropped, or comes too late
            self._open[flow] = ns
            phase = '"s"'
        return self._line(phase, flow, place, ns)

    def _line(self, phase: str, flow: int, place: str, ns: int) -> str:
        time = f"{ns // 1000}{_TAILS[ns % 1000]}"
        return f'{{"ph":{phase},{place}"cat":"flow","name":"flow","id":"{self._base + flow:#x}","ts":{time}'


class _ResumedFlows(_Flows):
    """Whether the shard started a flow is not known: a step goes on from its start if there is one, and is
    passed over if not.
    """

    __slots__ = ()

    def line(self, flow: int, place: str, ns: int) -> str:
        return self._line('"t"', flow, place, ns)


class _Lines:
    """One track's edges as lines."""

    __slots__ = ("_base_ns", "_begins", "_end", "_flows", "_last_ns", "_place", "_sample")

    def __init__(
        self, pid: int, tid: int, base_ns: int, flows: _Flows, counter: str | None = None, unit: str = ""
    ) -> None:
        self._place = f'"pid":{pid},"tid":{tid},' if tid else f'"pid":{pid},'
        self._base_ns = base_ns
        self._flows = flows
        self._last_ns = 0
        self._begins: dict[object, str] = {}  # a begin up to its time, by name
        self._end = f'{{"ph":"E",{self._place}"ts":'
        self._sample = (
            f'{{"ph":"C",{self._place}"name":{jsontext.text(counter)},"args":{{{jsontext.text(unit)}:'
            if counter is not None
            else ""
        )

    def encode(self, edges: Iterable[Edge]) -> str:
        """Lines for ``edges``, in order of time; one that is not is moved up to the edge before it."""
        out: list[str] = []
        append = out.append
        base, last, begins, end, tails = self._base_ns, self._last_ns, self._begins, self._end, _TAILS
        for ts, kind, name, args, flow, end_ns in edges:
            ns = ts - base
            if ns < last:
                ns = last
            last = ns
            time = f"{ns // 1000}{tails[ns % 1000]}"
            if args or flow:
                append(self._any(ns, time, BEGIN if kind == SLICE else kind, name, args, flow))
            elif kind == END:
                append(end + time)
            elif kind in _BEGINS and name in begins:
                append(begins[name] + time)
            else:
                append(self._any(ns, time, BEGIN if kind == SLICE else kind, name, args, flow))
            if kind == SLICE:
                last = max(end_ns - base, ns)
                append(f"{end}{last // 1000}{tails[last % 1000]}")
        self._last_ns = last
        return "".join(out)

    def _any(self, ns: int, time: str, kind: int, name: str | int | float | None, args: Args | None, flow: int) -> str:
        """The lines of any edge at ``ns``; ``time`` says so and closes the line. Leaves what makes its like fast."""
        if kind == COUNTER:
            assert isinstance(name, (int, float))
            return f'{self._sample}{_number(name)}}},"ts":{time}'
        joined = self._flows.line(flow, self._place, ns) if flow else ""
        if args and FLOW in args:
            followed = args[FLOW]
            assert isinstance(followed, Flow)
            joined += self._flows.line(followed, self._place, ns)
            args = {key: value for key, value in args.items() if key != FLOW}
        extra = f'"args":{jsontext.mapping(args)},' if args else ""
        if kind == END:
            # A flow's line binds to the innermost open slice: it comes before the end, and behind a begin.
            return f'{joined}{{"ph":"E",{self._place}{extra}"ts":{time}'
        assert isinstance(name, str)
        if kind != BEGIN:
            return f'{{"ph":"i","s":"t",{self._place}"name":{jsontext.text(name)},{extra}"ts":{time}{joined}'
        head = self._begins.get(name)
        if head is None:
            if len(self._begins) >= NAMES_KEPT:
                self._begins.clear()
            head = self._begins[name] = f'{{"ph":"B",{self._place}"name":{jsontext.text(name)},"ts":'
        if extra:
            head = f'{head[:-5]}{extra}"ts":'
        return f"{head}{time}{joined}"


def _last(file: IO[bytes], what: bytes, end: int) -> int:
    """Where the last ``what`` before ``end`` ends; 0 if there is none."""
    while end > 0:
        start = max(end - CHUNK, 0)
        file.seek(start)
        found = file.read(end - start).rfind(what)
        if found >= 0:
            return start + found + len(what)
        end = start + len(what) - 1 if start else 0  # it may lie across two chunks
    return 0


def _tid(track: Track) -> int:
    return track.tid if track.kind == THREAD and 0 < track.tid < _MADE_UP else _MADE_UP + track.id


def _metadata(name: str, pid: int, tid: int, args: str) -> str:
    thread = f'"tid":{tid},' if tid else ""
    return f'{{"ph":"M","pid":{pid},{thread}"name":"{name}","args":{args}}},\n'


def _name(what: str, pid: int, tid: int, args: Args) -> str:
    """A line that names something; none for a name that is empty, which the engine takes for an error."""
    return _metadata(what, pid, tid, jsontext.mapping(args)) if args["name"] else ""


def _number(value: int | float) -> str:
    """A counter's value; wide ints as the nearest double, which is what a reader makes of any."""
    if isinstance(value, int) and not fits_int64(value):
        value = nearest_double(value)
    return jsontext.value(int(value) if isinstance(value, bool) else value)
