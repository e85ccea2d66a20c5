"""Chrome's JSON events, gathered as columns; whichever tool wrote them.

Most events of most tools have one of a few shapes, so a batch is taken apart a column at a time, and only what is
unusual in it is looked at by itself. Times of gputrace's own are put back onto BOOTTIME; another tool's stay as they
are, in ns.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from itertools import compress, repeat
from operator import contains, itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from gputrace.reading.chrome import ChromeReader as Events
from gputrace.reading.chrome import Event, time_ns
from gputrace.reading.stream import ByteStream
from gputrace.table import events as gathered
from gputrace.table.args import as_json, as_pieces, from_json
from gputrace.table.chrometracks import ChromeTracks
from gputrace.table.columns import Clocks, as_ints
from gputrace.table.events import Gathered, Numbers
from gputrace.table.singly import Singly

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gputrace.table.columns import Flags, Ids, Ints

_BEGINNING = {"B": gathered.BEGIN, "E": gathered.END, "X": gathered.WHOLE}
_INSTANTS = frozenset("iIRn")
_ARROWS = {"s": gathered.FIRST, "t": gathered.STEP, "f": gathered.LAST}


class _Kinds(dict[Any, int]):
    """Kinds of event by phase; 0 for one that is looked at by itself."""

    def __missing__(self, phase: Any) -> int:
        return 0


_KINDS = _Kinds({**_BEGINNING, **dict.fromkeys("iIR", gathered.INSTANT), **dict.fromkeys("stf", gathered.ARROW)})
_ASYNC = frozenset("bneSTFp")
_MOST_NS = 1 << 62
_NO_TIME = -(1 << 63)
_TENS = 10 ** np.arange(18, -1, -1, dtype=np.int64)


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
        self._singly = Singly()
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
        phases = _column(batch, "ph")
        try:
            kind = np.fromiter(map(_KINDS.__getitem__, phases), np.int8, len(batch))
        except TypeError:  # a list or an object
            kind = np.array([_KINDS[str(phase)] for phase in phases], np.int8)
        if not kind.all():
            for k in np.flatnonzero(kind == 0).tolist():
                self._other(batch[k])
            self._singly.give(self.gathered)
            batch, kind = _chosen(batch, kind != 0), kind[kind != 0]
        ts_ns, dur_ns = self._times(_column(batch, "ts")), None
        good = ts_ns != _NO_TIME
        whole = kind == gathered.WHOLE
        if whole.any():
            dur_ns = np.where(whole, self._times(_column(batch, "dur", 0)), 0)
            good &= dur_ns >= 0
        if not good.all():
            for k in np.flatnonzero(~good).tolist():
                what, key = ("bad time", "ts") if ts_ns[k] == _NO_TIME else ("bad duration", "dur")
                self._note(what, batch[k], key)
            batch, kind, ts_ns = _chosen(batch, good), kind[good], ts_ns[good]
            dur_ns = None if dur_ns is None else dur_ns[good]
        if not batch:
            return
        try:
            track, name, category = self._places(batch), *self._texts(batch, kind)
        except TypeError:  # a list or an object where a text belongs
            for event in batch:
                _make_plain(event)
            track, name, category = self._places(batch), *self._texts(batch, kind)
        first = self.gathered.add(gathered.Chunk(ts_ns, kind, track, name, category, dur_ns))
        if _any_has(batch, "args"):
            self._take_args(first, _column(batch, "args"))
        arrows = np.flatnonzero(kind == gathered.ARROW).tolist()
        if arrows:
            self._take_arrows([(first + k, batch[k]) for k in arrows])
        if _any_has(batch, "bind_id"):
            self._take_bound([(first + k, event) for k, event in enumerate(batch) if "bind_id" in event])

    # Dicts that number what they miss make each column one pass. Both raise TypeError for what cannot be a key of one.

    def _places(self, batch: list[Event]) -> Ids:
        """Tracks by number."""
        places = zip(_column(batch, "pid"), _column(batch, "tid"), strict=True)
        return np.fromiter(map(self.rows.numbers.__getitem__, places), np.int32, len(batch))

    def _texts(self, batch: list[Event], kind: NDArray[np.int8]) -> tuple[Ids, Ids | None]:
        """Names and categories by number; an end's are its begin's."""
        named = kind != gathered.END
        if not named.all():
            batch = _chosen(batch, named)
        strings, no_name = self.gathered.strings, self.gathered.no_name
        found: list[Ids | None] = []
        for key in ("name", "cat"):
            numbers = None
            if _any_has(batch, key):
                numbers = np.full(len(named), no_name, np.int32)
                numbers[named] = np.fromiter(map(strings.__getitem__, _column(batch, key, "")), np.int32, len(batch))
            found.append(numbers)
        name, category = found
        return np.full(len(named), no_name, np.int32) if name is None else name, category

    def _times(self, values: list[Any]) -> Ints:
        """Times in ns; `_NO_TIME` for what is none, or lies beyond what a column holds."""
        if set(map(type, values)) <= {float, int}:
            try:
                us = np.array(values, np.float64)
            except OverflowError:
                return as_ints(list(map(self._time, values)))
            if (np.abs(us) < 1 << 43).all():  # NaN is not
                return np.rint(us * 1000).astype(np.int64)
        elif (exact := _alike(values)) is not None:
            return exact
        return as_ints(list(map(self._time, values)))

    def _time(self, value: Any) -> int:
        digits = value[:-4] + value[-3:] if type(value) is str and value[-4:-3] == "." and 4 < len(value) < 24 else ""
        # As most tools write times since 1970.
        ns = int(digits) if digits.isdecimal() and digits.isascii() else time_ns(value)
        return ns if ns is not None and abs(ns) < _MOST_NS else _NO_TIME

    def _note(self, kind: str, event: Event, key: str = "") -> None:
        entry = self._wrong.setdefault(kind, [0, ""])
        entry[0] += 1
        if entry[0] == 1:
            name = str(event.get("name", ""))[:80]
            entry[1] = f"{name!r}" + (
                f" with {key} {str(event.get(key))[:40]}" if key else f", ph {event.get('ph')!r:.20}"
            )

    def _take_args(self, first: int, found: list[Any]) -> None:
        which = [k for k, args in enumerate(found) if args and isinstance(args, dict)]
        if which:
            size, data = as_pieces([found[k] for k in which])
            self.gathered.add_args(first + as_ints(which), size, np.zeros(len(size), np.int64), data)

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
        if ns == _NO_TIME:
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
            self._singly.samples.append((ns, track, number))

    def _asynchronous(self, event: Event, phase: str) -> None:
        """What spans no thread: tracks by name, as many as overlap."""
        ns = self._time(event.get("ts"))
        if ns == _NO_TIME:
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
        row = len(self._singly.rows)
        self._singly.rows.append((ns, kind, track, strings[name], strings[str(event.get("cat", ""))]))
        args = event.get("args")
        if args and isinstance(args, dict):
            self._singly.args.append((row, as_json(args), 0))


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


def _alike(values: list[Any]) -> Ints | None:
    """Texts of as many digits each, three of them behind a dot, as most tools write times since 1970, in ns. None if
    some are otherwise.
    """
    width = len(values[0]) if type(values[0]) is str else 0
    if not 4 < width <= len(_TENS) + 1 or set(map(type, values)) != {str}:
        return None
    text = ",".join((*values, ""))
    if not text.isascii() or len(text) != (width + 1) * len(values):
        return None
    rows = np.frombuffer(text.encode(), np.uint8).reshape(-1, width + 1)
    digits = np.delete(rows, (width - 4, width), axis=1) - ord("0")  # what stands before "0" becomes great
    if (rows[:, width - 4] != ord(".")).any() or (rows[:, width] != ord(",")).any() or (digits > 9).any():
        return None
    if width > len(_TENS) and (digits[:, 0] > 3).any():  # it may be above `_MOST_NS`
        return None
    ns: Ints = digits.astype(np.int64) @ _TENS[1 - width :]
    return ns


def _column(batch: list[Event], key: str, default: Any = None) -> list[Any]:
    """One member of each event."""
    try:
        return list(map(itemgetter(key), batch))  # twice as quick, where all have it
    except KeyError:
        return [event.get(key, default) for event in batch]


def _any_has(batch: list[Event], key: str) -> bool:
    return True in map(contains, batch, repeat(key))


def _chosen(batch: list[Event], which: Flags) -> list[Event]:
    return list(compress(batch, which.tolist()))


def _make_plain(event: Event) -> None:
    """Texts where texts belong."""
    for key in ("name", "cat", "pid", "tid"):
        if isinstance(event.get(key), (dict, list)):
            event[key] = str(event[key])
