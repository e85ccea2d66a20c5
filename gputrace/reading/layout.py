"""Gputrace's own packets among others: which are plain events, and of which sequence, thousands at a time.

An event of ours begins ``50 SEQUENCE 68 02 5a``: its sequence's id, `SEQ_NEEDS_INCREMENTAL_STATE`, then the track event
(see `exporters/sequence.py`). What a merge changes in it, if anything, is the id, which stands at its very front.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gputrace.reading.packets import Packets, Places

_SEQUENCE_TAG = 0x50
_EVENT = (0x68, 0x02, 0x5A)
_MOST_WIDTH = 5


class Events:
    """Packets as seen from their first bytes. All arrays are as long as the packets are many.

    ``is_event``: it is an event as above. ``sequence``: its sequence's id; 0 where the packet does not begin with one.
    ``width``: the bytes that id takes.
    """

    __slots__ = ("is_event", "sequence", "width")

    def __init__(self, found: Packets) -> None:
        size = len(found.data)
        padded = np.zeros(size + _MOST_WIDTH + 4, np.uint8)
        padded[:size] = np.frombuffer(found.data, np.uint8)
        begins = padded[found.bodies] == _SEQUENCE_TAG
        at: Places = found.bodies + 1
        self.sequence: NDArray[np.int64] = np.zeros(len(found), np.int64)
        self.width: NDArray[np.int64] = np.zeros(len(found), np.int64)
        going = begins.copy()
        for step in range(_MOST_WIDTH):
            byte = padded[at + step]
            self.sequence += np.where(going, (byte & 0x7F).astype(np.int64) << 7 * step, 0)
            self.width += going
            going &= byte >= 0x80
            if not going.any():
                break
        after = at + self.width
        self.is_event: NDArray[np.bool_] = begins & (after + 3 <= found.ends)
        for step, byte_wanted in enumerate(_EVENT):
            self.is_event &= padded[after + step] == byte_wanted
        self.sequence[~begins | going] = 0


def put_sequences(data: NDArray[np.uint8], bodies: Places, sequences: NDArray[np.int64], width: int) -> None:
    """Write ids over those of packets whose own take as many bytes, ``width``."""
    for step in range(width):
        byte = sequences >> 7 * step & 0x7F
        data[bodies + 1 + step] = byte | (0x80 if step < width - 1 else 0)
