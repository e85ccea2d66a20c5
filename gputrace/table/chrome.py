"""Chrome's JSON events, gathered as columns; whichever tool wrote them.

Most events of most tools have one of a few shapes, so a batch is taken apart a column at a time, and only what is
unusual in it is looked at by itself. Times of gputrace's own are put back onto BOOTTIME; another tool's stay as they
are, in ns.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from typing import Any

import numpy as np

from gputrace.reading.chrome import ChromeReader as Events
from gputrace.reading.chrome import Event, time_ns
from gputrace.reading.stream import ByteStream
from gputrace.table import events as gathered
from gputrace.table.args import as_json, from_json
from gputrace.table.chrometracks import ChromeTracks
from gputrace.table.columns import Clocks, as_ints
from gputrace.table.events import Gathered, Numbers

_BEGINNING = {"B": gathered.BEGIN, "E": gathered.END, "X": gathered.WHOLE}
_INSTANTS = frozenset("iIRn")
_ARROWS = {"s": gathered.FIRST, "t": gathered.STEP, "f": gathered.LAST}
_KINDS: dict[Any, int] = {
    **_BEGINNING,
    **dict.fromkeys("iIR", gathered.INSTANT),
    **dict.fromkeys("stf", gathered.ARROW),
}
_ASYNC = frozenset("bneSTFp")
_MOST_NS = 1 << 62
_SAID = 8  # of like problems, so many get a line of their own


class ChromeReader:
    """Reads a stream to its end into ``gathered``; the rest is good then. ``facts`` stand beside the events."""

    def __init__(self, stream: ByteStream) -> None:
        self.stream = stream
        self.gathered = Gathered(stream.path, from_json)
        self.facts: dict[str, Any] = {}
        self.rows = ChromeTracks()
        self._events = Events(stream)
        self._flow_ids = Numbers()
        self._wrong: dict[str, list[Any]] = {}  # by kind: how many, and the first
        self._open: dict[Any, list[int]] = {}  # asynchronous slices by what names them: tracks they are open on

    def read(self) -> None:
        """All of it. Raises `InputError`."""
        with _no_collection():
            for batch in self._events.batches():
                self._take(batch)
        self.facts = self._events.facts
        for note in self._events.notes:
            self.gathered.problem("damaged", note)
        if self._events.skipped:
            count = self._events.skipped
            self.gathered.problem("unreadable", f"{count:,} of its events cannot be read", count=count)
        for kind, (count, first) in self._wrong.items():
            self.gathered.problem(kind, f"{count:,} {_EXPLAINED[kind]}, the first: {first}", count=count)

    def clock_table(self) -> Clocks:
        """The clocks that a recording of ours states."""
        rows = sorted(set(self.rows.clocks))
        return Clocks(*(as_ints([row[k] for row in rows]) for k in range(3)))

    def _take(self, batch: list[Event]) -> None:
        try:
            kinds = [_KINDS.get(event.get("ph"), 0) for event in batch]
        except TypeError:  # a list or an object
            kinds = [_KINDS.get(str(event.get("ph")), 0) for event in batch]
        if 0 in kinds:
            for event, kind in zip(batch, kinds, strict=True):
                if not kind:
                    self._other(event)
            batch = [event for event, kind in zip(batch, kinds, strict=True) if kind]
            kinds = [kind for kind in kinds if kind]
        if not batch:
            return
        ts = self._times([event.get("ts") for event in batch])
        whole = gathered.WHOLE in kinds
        dur = self._durations(batch, kinds) if whole else None
        if None in ts or (dur is not None and None in dur):
            batch, kinds, ts, dur = self._dated(batch, kinds, ts, dur)
        # Dicts that number what they miss make each of these one pass.
        strings, places = self.gathered.strings, self.rows.numbers
        try:
            names = [strings[event.get("name", "")] for event in batch]
            categories = [strings[event.get("cat", "")] for event in batch]
            tracks = [places[event.get("pid"), event.get("tid")] for event in batch]
        except TypeError:  # a list or an object where a text belongs
            for event in batch:
                _make_plain(event)
            names = [strings[event.get("name", "")] for event in batch]
            categories = [strings[event.get("cat", "")] for event in batch]
            tracks = [places[event.get("pid"), event.get("tid")] for event in batch]
        first = self.gathered.add(
            gathered.Chunk(
                as_ints(ts),
                np.array(kinds, np.int8),
                np.array(tracks, np.int32),
                np.array(names, np.int32),
                np.array(categories, np.int32),
                None if dur is None else as_ints(dur),
            )
        )
        self._take_args(first, [event.get("args") for event in batch])
        if gathered.ARROW in kinds:
            arrows = [(first + k, batch[k]) for k, kind in enumerate(kinds) if kind == gathered.ARROW]
            self._take_arrows(arrows)
        bound = [(first + k, event) for k, event in enumerate(batch) if "bind_id" in event]
        if bound:
            self._take_bound(bound)

    def _times(self, values: list[Any]) -> list[int | None]:
        """Times in ns; None for what is none, or lies beyond what a column holds."""
        if set(map(type, values)) <= {float, int}:
            try:
                us = np.array(values, np.float64)
            except OverflowError:
                return list(map(self._time, values))
            if (np.abs(us) < 1 << 43).all():  # NaN is not
                return np.rint(us * 1000).astype(np.int64).tolist()  # type: ignore[no-any-return]
        return list(map(self._time, values))

    def _time(self, value: Any) -> int | None:
        if type(value) is str and value[-4:-3] == "." and value.isascii() and len(value) < 20:
            digits = value[:-4] + value[-3:]
            if digits.isdecimal():  # as most tools write them
                return int(digits)
        ns = time_ns(value)
        return ns if ns is not None and abs(ns) < _MOST_NS else None

    def _durations(self, batch: list[Event], kinds: list[int]) -> list[int | None]:
        found = self._times([event.get("dur", 0) for event in batch])
        if any(ns is None or ns < 0 for ns in found):
            return [
                0 if kind != gathered.WHOLE else None if ns is None or ns < 0 else ns
                for ns, kind in zip(found, kinds, strict=True)
            ]
        return found

    def _dated(
        self, batch: list[Event], kinds: list[int], ts: list[int | None], dur: list[int | None] | None
    ) -> tuple[list[Event], list[int], list[int | None], list[int | None] | None]:
        """Without those that have no time, or no length."""
        good = []
        for k, event in enumerate(batch):
            if ts[k] is None:
                self._note("bad time", event, "ts")
            elif dur is not None and dur[k] is None:
                self._note("bad duration", event, "dur")
            else:
                good.append(k)
        return (
            [batch[k] for k in good],
            [kinds[k] for k in good],
            [ts[k] for k in good],
            None if dur is None else [dur[k] for k in good],
        )

    def _note(self, kind: str, event: Event, key: str = "") -> None:
        entry = self._wrong.setdefault(kind, [0, ""])
        entry[0] += 1
        if entry[0] == 1:
            name = str(event.get("name", ""))[:80]
            entry[1] = f"{name!r}" + (
                f" with {key} {str(event.get(key))[:40]}" if key else f", ph {event.get('ph')!r:.20}"
            )

    def _take_args(self, first: int, found: list[Any]) -> None:
        numbers, pieces = [], []
        for k, args in enumerate(found):
            if args and isinstance(args, dict):
                numbers.append(first + k)
                pieces.append(as_json(args))
        if numbers:
            size = as_ints(list(map(len, pieces)))
            self.gathered.add_args(as_ints(numbers), size, np.zeros(len(size), np.int64), b"".join(pieces))

    def _take_arrows(self, arrows: list[tuple[int, Event]]) -> None:
        ids, ways = [], []
        for number, event in arrows:
            ids.append(self._flow_ids[str(event.get("cat")), str(event.get("name")), str(event.get("id"))])
            ways.append(_ARROWS[event["ph"]])
            if event["ph"] == "f" and event.get("bp") != "e":
                self.gathered.following.add(number)
        self.gathered.add_arrows(as_ints([number for number, _ in arrows]), as_ints(ids), as_ints(ways))

    def _take_bound(self, bound: list[tuple[int, Event]]) -> None:
        """Arrows of the second kind: slices name them."""
        rows = []
        for number, event in bound:
            leads_on, leads_here = event.get("flow_out"), event.get("flow_in")
            if leads_on or leads_here:
                way = gathered.STEP if leads_on and leads_here else gathered.FIRST if leads_on else gathered.LAST
                rows.append((number, self._flow_ids["bind_id", str(event.get("bind_id"))], way))
        if rows:
            self.gathered.add_arrows(*(as_ints([row[k] for row in rows]) for k in range(3)))

    # What is unusual.

    def _other(self, event: Event) -> None:
        """An event of any other phase."""
        phase = event.get("ph")
        if phase == "M":
            self.rows.take(event)
            return
        if phase == "C":
            self._counter(event)
        elif isinstance(phase, str) and phase in _ASYNC:
            self._asynchronous(event, phase)
        else:
            self._note("unknown phase", event)

    def _counter(self, event: Event) -> None:
        ns, args = self._time(event.get("ts")), event.get("args")
        if ns is None:
            self._note("bad time", event, "ts")
            return
        for series, value in args.items() if isinstance(args, dict) else ():
            if isinstance(value, str):
                try:
                    value = float(value)
                except ValueError:
                    value = None
            if not isinstance(value, (int, float)):
                self._note("bad value", event)
                continue
            name = str(event.get("name", ""))
            track = self.rows.counter(event.get("pid"), name, event.get("id"), series, len(args or ()))
            try:
                number = float(value)
            except OverflowError:
                number = float("inf") if value > 0 else float("-inf")
            self.gathered.add_samples(as_ints([ns]), np.array([track], np.int32), np.array([number]))

    def _asynchronous(self, event: Event, phase: str) -> None:
        """What spans no thread: tracks by name, as many as overlap."""
        ns = self._time(event.get("ts"))
        if ns is None:
            self._note("bad time", event, "ts")
            return
        name, pid = str(event.get("name", "")), event.get("pid")
        id2 = event.get("id2")
        id = event.get("id", id2.get("local", id2.get("global")) if isinstance(id2, dict) else None)
        key = (str(pid), str(event.get("cat")), str(id), name)
        open_on = self._open.setdefault(key, [])
        if phase in "bS":
            track = self.rows.begin_async(pid, name)
            open_on.append(track)
            kind = gathered.BEGIN
        elif phase in "eF":
            kind = gathered.END
            track = open_on.pop() if open_on else self.rows.lone_async(pid, name)
            if not open_on:
                del self._open[key]
            self.rows.end_async(pid, name, track)
        else:
            track, kind = open_on[-1] if open_on else self.rows.lone_async(pid, name), gathered.INSTANT
        strings = self.gathered.strings
        first = self.gathered.add(
            gathered.Chunk(
                as_ints([ns]),
                np.array([kind], np.int8),
                np.array([track], np.int32),
                np.array([strings[name]], np.int32),
                np.array([strings[str(event.get("cat", ""))]], np.int32),
            )
        )
        self._take_args(first, [event.get("args")])


_EXPLAINED = {
    "bad time": "events have no time, or one that is none, and are left out",
    "bad duration": "slices have a negative duration, or one that is none, and are left out",
    "bad value": "samples of counters are no numbers, and are left out",
    "unknown phase": "events are of a kind that is not read",
}


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """No garbage collection meanwhile: it would walk through a million dicts, none of which is in a circle."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _make_plain(event: Event) -> None:
    """Texts where texts belong."""
    for key in ("name", "cat", "pid", "tid"):
        if isinstance(event.get(key), (dict, list)):
            event[key] = str(event[key])
