"""Gputrace's own track events, thousands at a time: what stands inside each, by numpy.

Such an event is ``48 TYPE``, then ``50 NAME`` or a counter's value, then ``f9 02 FLOW`` where it has one, then ``22 LEN
(...)`` for each arg (see `exporters/sequence.py`). Whether that is all of it is looked at too: one that is otherwise is
left to the parser that knows every field. It knows no packet around the event.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gputrace.reading.layout import varints

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gputrace.reading.layout import Events
    from gputrace.table.columns import Flags, Floats, Ints

BEGIN, END, INSTANT, COUNTER = 1, 2, 3, 4  # TrackEvent.Type

_TYPE, _NAME, _ARG = 0x48, 0x50, 0x22
_FLOW = (0xF9, 0x02)
_INTEGER = (0xF0, 0x01)
_DOUBLE = (0xE1, 0x02)
#: Ids are given in order from 1; an id beyond this is another's doing.
MOST_IDS = 1 << 20


class Decoded:
    """Columns as long as the events are many.

    ``known``: it is as above, and only then the rest is good. ``name`` is an interned id, 0 for none; ``value`` a
    counter's; ``flow`` the 64 bits of an id, 0 for none; its args lie at ``args_at``, in ``args_size`` bytes.
    """

    __slots__ = ("args_at", "args_size", "flow", "known", "name", "type", "value")

    def __init__(self, events: Events) -> None:
        data, at, stop = events.padded, events.event_at, events.time_at - 1
        self.type: NDArray[np.uint8] = data[at + 1]
        known = (data[at] == _TYPE) & (self.type >= BEGIN) & (self.type <= COUNTER) & (at + 2 <= stop)
        at = at + 2
        count = len(at)
        self.name: Ints = np.zeros(count, np.int64)
        named = np.flatnonzero((data[at] == _NAME) & (at < stop))
        self.name[named], at[named] = varints(data, at[named] + 1, most=4)
        known &= (self.name > 0) == ((self.type == BEGIN) | (self.type == INSTANT))
        known &= self.name < MOST_IDS
        self.value: Floats = np.zeros(count, np.float64)
        samples = np.flatnonzero(self.type == COUNTER)
        if samples.size:
            known[samples] &= self._take_values(data, at, samples)
        self.flow: Ints = np.zeros(count, np.int64)
        joined = np.flatnonzero((data[at] == _FLOW[0]) & (data[at + 1] == _FLOW[1]) & (at < stop))
        if joined.size:
            self.flow[joined] = _eight_bytes(data, at[joined] + 2).view(np.int64)
            at[joined] += 10
        self.args_at: Ints = at
        self.args_size: Ints = stop - at
        known &= self.args_size >= 0
        going = np.flatnonzero(known & (self.args_size > 0))
        at = at.copy()
        while going.size:
            here = at[going]
            length, body = varints(data, np.minimum(here + 1, len(data) - 16), most=4)
            at[going] = body + length
            known[going] &= (data[here] == _ARG) & (at[going] <= stop[going])
            going = going[known[going] & (at[going] < stop[going])]
        self.known: Flags = known

    def _take_values(self, data: NDArray[np.uint8], at: Ints, samples: Ints) -> Flags:
        """Read counters' values and step over them; says which have one."""
        first, second = data[at[samples]], data[at[samples] + 1]
        whole = (first == _INTEGER[0]) & (second == _INTEGER[1])
        real = (first == _DOUBLE[0]) & (second == _DOUBLE[1])
        which = samples[whole]
        values, at[which] = varints(data, at[which] + 2, most=10)
        self.value[which] = values
        which = samples[real]
        if which.size:
            self.value[which] = _eight_bytes(data, at[which] + 2).view(np.float64)
            at[which] += 10
        found: Flags = whole | real
        return found


def _eight_bytes(data: NDArray[np.uint8], at: Ints) -> NDArray[np.uint8]:
    return np.ascontiguousarray(data[np.minimum(at, len(data) - 8)[:, None] + np.arange(8)]).reshape(-1)


def gather(data: NDArray[np.uint8], at: Ints, size: Ints) -> bytes:
    """Pieces of ``data``, one behind the other."""
    ends = np.cumsum(size)
    total = int(ends[-1]) if len(ends) else 0
    pieces: NDArray[np.uint8] = data[np.arange(total) + np.repeat(at - (ends - size), size)]
    return pieces.tobytes()
