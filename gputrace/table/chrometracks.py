"""Tracks of Chrome's JSON: threads of processes, counters, and rows of what spans no thread.

Which of them are a GPU's is known by what the tools call them: Kineto labels a GPU's process, ours is made up of the
number of the process that used it (see `exporters/chrome.py`).
"""

from __future__ import annotations

import re
from typing import Any

from gputrace.reading.trackevents import MADE_UP
from gputrace.table import tracks
from gputrace.table.tracks import Track, rank_of

_GROUP_BITS = 11
_OWNER = re.compile(r" \(.* \d+\)$")
_STREAM = re.compile(r"\bstream\b", re.IGNORECASE)
_GPU = re.compile(r"\bGPU\b")


class _Numbers(dict[Any, int]):
    """Numbers of (pid, tid), as events state them: texts of numbers are numbers."""

    def __init__(self, keys: list[tuple[Any, ...]]) -> None:
        self._keys = keys

    def __missing__(self, place: tuple[Any, Any]) -> int:
        plain = ("thread", *map(_id, place))
        if plain in self:
            number = self[place] = self[plain]
            return number
        number = self[place] = self[plain] = len(self._keys)
        self._keys.append(plain)
        return number


class ChromeTracks:
    """Numbers tracks as they are met, and says at the end what they are. ``clocks`` and ``recording`` are what a
    recording of ours states, ``facts`` its metadata.
    """

    def __init__(self) -> None:
        self._keys: list[tuple[Any, ...]] = []
        self.numbers = _Numbers(self._keys)
        self.clocks: list[tuple[int, int, int]] = []
        self.recording: dict[str, Any] = {}
        self.facts: dict[str, Any] = {}
        self._names: dict[Any, str] = {}
        self._orders: dict[Any, int] = {}
        self._labels: dict[Any, dict[str, Any]] = {}
        self._owners: dict[int, Any] = {}  # pids by the number of their shard
        self._free: dict[Any, list[int]] = {}  # tracks of what spans no thread that nothing is open on

    def counter(self, pid: Any, name: str, id: Any, series: str, count: int) -> int:
        """The number of a counter's track: each series of an event is one."""
        return self._number(("counter", _id(pid), name, str(id) if id is not None else "", series, count > 1))

    def begin_async(self, pid: Any, name: str) -> int:
        """A track that nothing is open on."""
        free = self._free.setdefault((_id(pid), name), [])
        if free:
            return free.pop()
        lane = sum(1 for key in self._keys if key[:3] == ("async", _id(pid), name))
        return self._number(("async", _id(pid), name, lane))

    def end_async(self, pid: Any, name: str, track: int) -> None:
        free = self._free.setdefault((_id(pid), name), [])
        if track not in free:
            free.append(track)

    def lone_async(self, pid: Any, name: str) -> int:
        return self._number(("async", _id(pid), name, 0))

    def _number(self, key: tuple[Any, ...]) -> int:
        number = self.numbers.get(key)
        if number is None:
            number = self.numbers[key] = len(self._keys)
            self._keys.append(key)
        return number

    def take(self, event: dict[str, Any]) -> None:
        """A metadata event."""
        args, name = event.get("args"), event.get("name")
        if not isinstance(args, dict) or not isinstance(name, str):
            return
        pid, tid = _id(event.get("pid")), _id(event.get("tid"))
        if name == "process_name":
            self._names[pid] = str(args.get("name", ""))
        elif name == "thread_name":
            self._names[pid, tid] = str(args.get("name", ""))
            more = {key: value for key, value in args.items() if key != "name"}
            if more:
                self._labels[pid, tid] = more
        elif name in ("process_sort_index", "thread_sort_index") and isinstance(args.get("sort_index"), int):
            self._orders[pid if name[0] == "p" else (pid, tid)] = args["sort_index"]
        elif name == "process_labels":
            self._labels[pid] = {"labels": str(args.get("labels", ""))}
        elif name == "gputrace.process":
            if isinstance(args.get("number"), int):
                self._owners[args["number"]] = pid
            self._labels.setdefault(pid, {})["command_line"] = args.get("command_line")
        elif name == "gputrace.recording":
            self._take_recording(args)
        elif name == "gputrace.metadata":
            self.facts |= args

    def _take_recording(self, args: dict[str, Any]) -> None:
        try:
            rows = [(int(c["boottime_ns"]), int(c["monotonic_ns"]), int(c["realtime_ns"])) for c in args["clocks"]]
            facts = {key: int(args[key]) for key in ("base_ns", "boottime_offset_ns")}
        except (KeyError, TypeError, ValueError, OverflowError):
            return
        self.clocks += [row for row in rows if max(map(abs, row)) < 1 << 62]
        if max(map(abs, facts.values())) < 1 << 61:
            self.recording = {**facts, "id": str(args.get("id", ""))}

    def tracks(self) -> list[Track]:
        """All of them."""
        return [self._track(id, key) for id, key in enumerate(self._keys)]

    def _track(self, id: int, key: tuple[Any, ...]) -> Track:
        pid = key[1]
        process = self._names.get(pid) or ("" if pid is None else str(pid))
        owner = self._owners.get((pid - MADE_UP) >> _GROUP_BITS) if isinstance(pid, int) and pid >= MADE_UP else None
        group = ""
        on_gpu = owner is not None
        real_pid = pid if isinstance(pid, int) and owner is None else 0
        if owner is not None:
            group = _OWNER.sub("", process)
            process, real_pid = self._names.get(owner) or str(owner), owner if isinstance(owner, int) else 0
        elif _GPU.search(str(self._labels.get(pid, {}).get("labels", ""))):
            label = str(self._labels[pid]["labels"])
            group, on_gpu = label, True
        path = tuple(part for part in (process, group) if part)
        made = self._by_kind(id, key, path, on_gpu)
        made.process = process
        made.pid = real_pid
        made.rank, made.host = rank_of(process)
        return made

    def _by_kind(self, id: int, key: tuple[Any, ...], path: tuple[str, ...], on_gpu: bool) -> Track:
        if key[0] == "counter":
            _, _, name, counter_id, series, several = key
            title = f"{name} {series}" if several else name
            title += f" {counter_id}" if counter_id else ""
            return Track(id, tracks.COUNTER, title, (*path, title), unit="" if several or series == "value" else series)
        if key[0] == "async":
            first = self.numbers.get((*key[:3], 0), id)
            return Track(id, tracks.OTHER, key[2], (*path, key[2]), row=first)
        _, pid, tid = key
        name = self._names.get((pid, tid)) or ("" if tid is None else str(tid))
        labels = self._labels.get((pid, tid), {})
        order = self._orders.get((pid, tid), 0)
        if tid is None or (tid == 0 and (pid, tid) not in self._names):
            return Track(
                id, tracks.PROCESS, path[-1] if path else "", path, labels=self._labels.get(pid, {}), order=order
            )
        kind, real_tid = tracks.THREAD, tid if isinstance(tid, int) else 0
        if on_gpu or _STREAM.match(name):
            kind, real_tid = tracks.STREAM, 0
        elif isinstance(tid, int) and tid >= MADE_UP:
            kind, real_tid = tracks.LANE, 0
        return Track(id, kind, name, (*path, name), tid=real_tid, labels=labels, order=order)


def _id(value: Any) -> Any:
    """An id as it was meant: tools write them as text, or as a float, too."""
    if isinstance(value, str) and value.isdecimal() and len(value) < 20:
        return int(value)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if value is None or isinstance(value, (int, str)) else str(value)
