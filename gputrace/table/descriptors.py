"""Track descriptors of Perfetto's format to tracks: names, places, and what each is."""

from __future__ import annotations

from typing import Any

from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

from gputrace.reading.sequences import as_text
from gputrace.table import tracks
from gputrace.table.tracks import Track, rank_of

_UNITS = {1: "ns", 2: "count", 3: "bytes"}
_MOST_DEEP = 64


class Descriptors:
    """Tracks by uuid, numbered in the order they are first met."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self._messages: dict[int, Any] = {}
        self._with_counters: set[int] = set()
        #: Of counters whose samples are differences: the sum so far.
        self.sums: dict[int, float] = {}

    def number(self, uuid: int) -> int:
        """A track's id in the result."""
        number = self._numbers.get(uuid)
        if number is None:
            number = self._numbers[uuid] = len(self._numbers)
        return number

    def take(self, descriptor: Any) -> None:
        """A TrackDescriptor; another of the same uuid adds to it."""
        known = self._messages.get(descriptor.uuid)
        if known is None:
            self._messages[descriptor.uuid] = descriptor
            self.number(descriptor.uuid)
        else:
            known.MergeFrom(descriptor)

    def counter(self, uuid: int) -> Any | None:
        """A counter track's descriptor of its counter."""
        message = self._messages.get(uuid)
        return message.counter if message is not None and message.HasField("counter") else None

    def tracks(self) -> list[Track]:
        """All of them. A track that was never described has a name of its number alone."""
        for uuid, message in list(self._messages.items()):
            if message.parent_uuid:
                self.number(message.parent_uuid)
            if message.HasField("counter") and uuid not in self._with_counters:
                self._with_counters.add(uuid)
        processes: dict[int, str] = {}
        for message in self._messages.values():
            if message.HasField("process") and message.process.pid:
                processes[message.process.pid] = as_text(message.process.process_name) or as_text(message.name)
        made: dict[int, Track] = {}
        for uuid in self._numbers:
            self._make(uuid, made, processes, 0)
        found = sorted(made.values(), key=lambda track: track.id)
        self._find_rows(found)
        return found

    def _make(self, uuid: int, made: dict[int, Track], processes: dict[int, str], depth: int) -> Track:
        if uuid in made:
            return made[uuid]
        message = self._messages.get(uuid)
        id = self._numbers[uuid]
        if message is None:
            track = made[uuid] = Track(id, tracks.OTHER, f"track {uuid:x}" if uuid else "", (f"track {uuid:x}",))
            return track
        name = as_text(message.name or message.static_name or message.atrace_name)
        labels = _labels(as_text(message.description)) if message.description else {}
        if message.HasField("thread"):
            thread = message.thread
            process = processes.get(thread.pid, str(thread.pid))
            name = as_text(thread.thread_name) or name or str(thread.tid)
            track = Track(id, tracks.THREAD, name, (process, name), pid=thread.pid, tid=thread.tid, process=process)
        elif message.HasField("process"):
            process = processes.get(message.process.pid, name)
            order = message.process.legacy_sort_index
            track = Track(
                id, tracks.PROCESS, process, (process,), pid=message.process.pid, process=process, order=order
            )
            if message.process.cmdline:
                labels["command_line"] = [as_text(word) for word in message.process.cmdline]
        else:
            parent = None
            if message.parent_uuid and message.parent_uuid != uuid and depth < _MOST_DEEP:
                made[uuid] = Track(id, tracks.OTHER, name, (name,))  # ends a circle
                parent = self._make(message.parent_uuid, made, processes, depth + 1)
            kind = _kind(message, parent)
            track = Track(
                id, kind, name, ((*parent.path, name) if parent else (name,)), order=message.sibling_order_rank
            )
            if parent is not None:
                track.parent = -1 if parent.kind == tracks.PROCESS else parent.id
                track.process, track.pid = parent.process, parent.pid
                track.tid = parent.tid if kind == tracks.LANE else 0
            if kind == tracks.COUNTER:
                counter = message.counter
                track.unit = as_text(counter.unit_name) or _UNITS.get(counter.unit, "")
        track.rank, track.host = rank_of(track.process)
        track.labels = labels
        made[uuid] = track
        return track

    def _find_rows(self, found: list[Track]) -> None:
        """Siblings that share a merge key are drawn as one row."""
        first: dict[tuple[Any, ...], int] = {}
        for uuid, message in self._messages.items():
            key = message.sibling_merge_key or message.sibling_merge_key_int
            if message.sibling_merge_behavior == pb.TrackDescriptor.SIBLING_MERGE_BEHAVIOR_BY_SIBLING_MERGE_KEY and key:
                track = found[self._numbers[uuid]]
                track.row = first.setdefault((message.parent_uuid, key), track.id)


def _kind(message: Any, parent: Track | None) -> str:
    if message.HasField("counter"):
        return tracks.COUNTER
    if parent is not None and parent.kind in (tracks.THREAD, tracks.LANE):
        return tracks.LANE
    if message.child_ordering:
        return tracks.GROUP
    return tracks.STREAM if parent is not None and parent.kind == tracks.GROUP else tracks.OTHER


def _labels(description: str) -> dict[str, Any]:
    """What `exporters/perfetto.py` writes as lines "NAME: VALUE"; any other text as it stands."""
    pairs = [line.partition(": ") for line in description.splitlines()]
    if all(middle for _, middle, _ in pairs):
        return {name: value for name, _, value in pairs}
    return {"description": description}
