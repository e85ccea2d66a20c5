"""Puts a trace's Chrome events onto the timeline: times, ids of processes and threads, ids of arrows.

Everything else of an event stays as it was. It knows neither what the events came from nor where they go.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import orjson

from gputrace.merging.names import with_real_id
from gputrace.merging.plan import HOST_SHIFT
from gputrace.reading.chrome import time_ns
from gputrace.reading.trackevents import MADE_UP

if TYPE_CHECKING:
    from gputrace.merging.plan import Task

    Event = dict[str, Any]

#: Kineto gives a GPU the pid of its ordinal.
_MOST_ORDINALS = 64
_MASK64 = (1 << 64) - 1


class Pids:
    """Made-up pids that are taken, over all inputs of a merge."""

    def __init__(self) -> None:
        self._owners: dict[Any, int] = {}
        self._next = MADE_UP

    def keep(self, pid: Any, owner: int) -> Any:
        """``pid``, or another if another input has it."""
        if self._owners.setdefault(pid, owner) == owner:
            return pid
        while self._next in self._owners:
            self._next += 1
        self._owners[self._next] = owner
        return self._next


class Mover:
    """Moves the events of one input, the ``index``-th. ``unplaced`` counts events without a phase or a time."""

    def __init__(self, task: Task, index: int, pids: Pids) -> None:
        self._task = task
        self._index = index
        self._pids = pids
        self._made_up: dict[Any, Any] = {}
        # Ids of two inputs meet by chance no more often than this number does.
        self._salt = (index * 0x9E3779B97F4A7C15) & _MASK64
        self.unplaced = 0

    def move(self, event: Event) -> int | None:
        """Change an event for the timeline, in place, and return its time there in ns. It has "ts" (us) or "ts_ns" and
        loses both. Metadata has no time: 0. None: it is to be left out.
        """
        ns = event.pop("ts_ns") if "ts_ns" in event else time_ns(event.pop("ts", None))
        phase = event.get("ph")
        if not isinstance(phase, str):
            self.unplaced += 1
            return None
        if phase == "M":
            if not self._move_metadata(event):
                return None
            return 0
        if ns is None:
            self.unplaced += 1
            return None
        shift = self._task.to_timeline
        moved = shift(ns)
        if "dur" in event:
            dur_ns = time_ns(event["dur"])
            if dur_ns is None or dur_ns < 0:
                self.unplaced += 1
                return None
            event["dur"] = us(shift(ns + dur_ns) - moved)
        self._move_ids(event)
        return moved

    def _move_metadata(self, event: Event) -> bool:
        name, args = event.get("name"), event.get("args")
        if name in ("gputrace.recording", "gputrace.end"):
            return False  # a merged trace has its own
        if not isinstance(args, dict):
            return False
        pid, tid = event.get("pid"), event.get("tid")
        self._move_ids(event)
        if name == "process_name" and event.get("pid") != pid and is_real(pid, self._task):
            args["name"] = with_real_id(str(args.get("name", "")), "pid", pid, self._task.host)  # type: ignore[arg-type]
        elif name == "thread_name" and event.get("tid") != tid and isinstance(tid, int):
            args["name"] = with_real_id(str(args.get("name", "")), "tid", tid, self._task.host)
        return True

    def _move_ids(self, event: Event) -> None:
        pid = _number(event.get("pid"))
        real = is_real(pid, self._task)
        if real:
            event["pid"] = self._task.host.pid(pid)
        elif pid is not None:
            if pid not in self._made_up:
                self._made_up[pid] = self._pids.keep(pid, self._index)
            event["pid"] = self._made_up[pid]
        else:
            event.pop("pid", None)
        if "tid" in event:
            tid = _number(event["tid"])
            event["tid"] = self._task.host.pid(tid) if real and isinstance(tid, int) else tid
            if tid is None:
                del event["tid"]
        if self._salt:
            for key in ("id", "bind_id"):
                if key in event:
                    event[key] = self._flow_id(event[key])
            if isinstance(event.get("id2"), dict) and "global" in event["id2"]:
                event["id2"] = {**event["id2"], "global": self._flow_id(event["id2"]["global"])}

    def _flow_id(self, id: Any) -> str:
        try:
            number = int(id, 0) if isinstance(id, str) else int(id)
        except (ValueError, TypeError, OverflowError):
            return f"{id}.{self._index}"
        return hex((number ^ self._salt) & _MASK64)


def is_real(pid: Any, task: Task) -> bool:
    """Did an operating system give this pid? Not where it names a GPU, or a group that a tool made up."""
    if not isinstance(pid, int) or not 0 < pid < 1 << HOST_SHIFT:
        return False
    return task.survey.tool != "torch.profiler" or pid >= _MOST_ORDINALS


def us(ns: int) -> int | float:
    """ns as us, exact to the ns as text."""
    return ns // 1000 if ns % 1000 == 0 else ns / 1000


def _number(id: Any) -> Any:
    """An id that other tools may give as text or a float; None if it is no id at all."""
    if isinstance(id, str) and id.isdecimal() and len(id) < 20:
        return int(id)
    if isinstance(id, float) and id.is_integer():
        return int(id)
    if isinstance(id, int) and not isinstance(id, bool):
        return id if -(1 << 63) <= id < 1 << 63 else str(id)
    return id if isinstance(id, str) else None


def text(event: Event) -> bytes:
    """An event as JSON on one line."""
    try:
        # A copy, as whoever keeps many keeps 4 KB of each that orjson made, however short it is.
        return memoryview(orjson.dumps(event)).tobytes()
    except TypeError:  # an int of over 64 bits, or a lone surrogate
        return json.dumps(event).encode()


def event_of(line: bytes) -> Event:
    """What `text` made a line of."""
    try:
        event: Event = orjson.loads(line)
    except orjson.JSONDecodeError:
        event = json.loads(line)
    return event
