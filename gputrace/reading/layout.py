"""Gputrace's own packets among others: which are plain events, and of which sequence, thousands at a time.

An event of ours is ``50 SEQUENCE  68 02  5a LEN (...)  40 TIME``, and a new name's definition behind that where there
is one: ``62 LEN (...)`` (see `exporters/sequence.py`). Found here are the places and widths of what a merge changes in
it, its sequence and its time, and that nothing else is in it: such a packet is as it should be.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gputrace.reading.packets import Packets, Places

    Bytes = NDArray[np.uint8]

_SEQUENCE_TAG = 0x50
_EVENT = (0x68, 0x02, 0x5A)
_TIME_TAG = 0x40
_INTERNED_TAG = 0x62
#: The longest varint; so much is read beyond the data.
_PAD = 16


class Events:
    """Packets as seen from outside. Arrays are as long as the packets are many, but for those of events.

    ``is_event``: it is an event as above. ``sequence``: the id it begins with, 0 if it begins otherwise; ``width``: the
    bytes that takes. Of the events alone, ``which`` are their indexes among the packets, ``time`` their times, which
    stand at ``time_at`` in the data, and take ``time_width`` bytes; what is in each begins at ``event_at`` and ends
    before the tag of its time. ``padded`` is the data, with zeros behind it.
    """

    __slots__ = ("event_at", "is_event", "padded", "sequence", "time", "time_at", "time_width", "which", "width")

    def __init__(self, found: Packets) -> None:
        size = len(found.data)
        padded = np.zeros(size + _PAD, np.uint8)
        padded[:size] = np.frombuffer(found.data, np.uint8)
        begins = padded[found.bodies] == _SEQUENCE_TAG
        at = found.bodies + 1
        sequence, after = varints(padded, at, most=5)
        self.sequence: NDArray[np.int64] = np.where(begins, sequence, 0)
        self.width: NDArray[np.int64] = after - at

        good = begins.copy()
        for step, wanted in enumerate(_EVENT):
            good &= padded[after + step] == wanted
        which = np.flatnonzero(good)
        ends = found.ends[which]
        length, event_at = varints(padded, after[which] + len(_EVENT), most=4)
        tag_at = np.minimum(event_at + length, size)
        time, after = varints(padded, tag_at + 1)
        good = (padded[tag_at] == _TIME_TAG) & (after <= ends)
        more = np.flatnonzero(good & (after < ends))
        if more.size:
            length, at = varints(padded, after[more] + 1, most=4)
            good[more] = (padded[after[more]] == _INTERNED_TAG) & (at + length == ends[more])
        self.padded: Bytes = padded
        self.event_at: Places = event_at[good]
        self.which: Places = which[good]
        self.time: NDArray[np.int64] = time[good]
        self.time_at: Places = tag_at[good] + 1
        self.time_width: NDArray[np.int64] = (after - tag_at - 1)[good]
        self.is_event: NDArray[np.bool_] = np.zeros(len(found), np.bool_)
        self.is_event[self.which] = True


def varints(padded: Bytes, at: Places, most: int = 9) -> tuple[NDArray[np.int64], Places]:
    """The varints of at most ``most`` bytes that begin at places of an array, and where each ends."""
    byte = padded[at]
    value = (byte & 0x7F).astype(np.int64)
    end = at + 1
    going = np.flatnonzero(byte >= 0x80)
    for step in range(1, most):
        if not going.size:
            break
        byte = padded[np.minimum(end[going], len(padded) - 1)]
        value[going] += (byte & 0x7F).astype(np.int64) << 7 * step
        end[going] += 1
        going = going[byte >= 0x80]
    return value, np.minimum(end, len(padded) - _PAD)


def put_varints(data: Bytes, at: Places, values: NDArray[np.int64], width: int) -> None:
    """Write varints of ``width`` bytes, also where fewer would do, over those of as many at places of an array."""
    for step in range(width):
        byte = values >> 7 * step & 0x7F
        data[at + step] = byte | (0x80 if step < width - 1 else 0)
