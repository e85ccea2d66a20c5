"""Gputrace's own events of a piece of a trace, all together: from what they state to times, tracks and names.

What an event's bytes mean hangs on what its sequence said before: the names it defined, the track it is of, the clock
it counts by. Such a state holds from one packet of the sequence to another, an *epoch*; events are sorted by sequence
and each is looked up in its epoch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from gputrace.reading.layout import varints
from gputrace.table import events as gathered
from gputrace.table.decode import BEGIN, COUNTER, END, INSTANT, MOST_IDS, Decoded, gather

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gputrace.reading.layout import Events
    from gputrace.reading.packets import Packets
    from gputrace.reading.sequences import Clocks, Interned, Link, Sequence
    from gputrace.table.columns import Ints
    from gputrace.table.events import Gathered

_INDEX_BITS = 24  # a piece of a file has fewer packets than that
_IDS_A_NAME = 4  # up to so many ids for each name, they are looked up by a table
_KIND = np.zeros(256, np.int8)
_KIND[[BEGIN, END, INSTANT]] = gathered.BEGIN, gathered.END, gathered.INSTANT


class _Epoch:
    """What a sequence's events go by from packet ``index`` on."""

    __slots__ = ("clock", "index", "interned", "known", "link", "sequence", "track")

    def __init__(self, id: int, index: int, state: Sequence) -> None:
        self.sequence = id
        self.index = index
        self.interned: Interned = state.interned
        self.known = state.known
        self.track = state.track
        self.clock = state.clock
        self.link: Link | None = state.links.get(state.clock)


class PlainEvents:
    """The events of one piece. ``ids`` are the sequences that have any."""

    def __init__(self, found: Events) -> None:
        self._found = found
        self._decoded = Decoded(found)
        self._sequence: Ints = found.sequence[found.which]
        self._kept: NDArray[np.bool_] = np.ones(len(found.which), np.bool_)
        self.ids: set[int] = set(np.unique(self._sequence).tolist())
        self._epochs: list[_Epoch] = []

    def otherwise(self) -> set[int]:
        """Sequences with an event that holds what ours do not."""
        return set(np.unique(self._sequence[~self._decoded.known]).tolist())

    def leave(self, sequences: set[int]) -> Ints:
        """Leave those of some sequences to others: indexes of their packets."""
        gone = self.ids & sequences
        if not gone:
            return np.empty(0, np.int64)
        self.ids -= gone
        left = np.isin(self._sequence, list(gone))
        self._kept &= ~left
        return self._found.which[left]

    def definitions(self, batch: Packets) -> tuple[Ints, list[tuple[int, int, int]]]:
        """Packets that define names: their indexes; and of each its sequence and where the definitions lie."""
        found = self._found
        after = found.time_at + found.time_width
        which = np.flatnonzero(self._kept & (after < batch.ends[found.which]))
        length, at = varints(found.padded, after[which] + 1, most=4)
        places = zip(self._sequence[which].tolist(), at.tolist(), (at + length).tolist(), strict=True)
        return found.which[which], list(places)

    def renew(self, id: int, index: int, state: Sequence) -> None:
        """From packet ``index`` on, this is a sequence's state."""
        if id in self.ids:
            self._epochs.append(_Epoch(id, index, state))

    def give(
        self,
        out: Gathered,
        clocks: Clocks,
        table_number: Callable[[Interned], int],
        track_number: Callable[[int], int],
        leave_out: Callable[[str, int, int], None],
    ) -> None:
        """Gather them. All definitions of the piece are known by now."""
        if not self.ids:
            return
        found, decoded = self._found, self._decoded
        kept = np.flatnonzero(self._kept)
        place = self._sequence[kept] << _INDEX_BITS | found.which[kept]
        order = np.argsort(place, kind="stable") if len(self.ids) > 1 else slice(None)
        kept, place = kept[order], place[order]
        epochs = sorted(self._epochs, key=lambda epoch: (epoch.sequence, epoch.index))
        keys = np.array([epoch.sequence << _INDEX_BITS | epoch.index for epoch in epochs], np.int64)
        edges = np.append(np.searchsorted(place, keys), len(kept))  # where each epoch's events begin
        counts = np.diff(edges)
        epoch_of = np.repeat(np.arange(len(epochs)), counts)

        ns, good = self._times(found.time[kept], epochs, edges, epoch_of, clocks, leave_out)
        track = np.array(
            [track_number(epoch.track) if n else 0 for epoch, n in zip(epochs, counts.tolist(), strict=True)],
            np.int32,
        )
        name = self._names(decoded.name[kept], epochs, epoch_of, out)
        if not good.all():
            kept, ns, epoch_of, name = kept[good], ns[good], epoch_of[good], name[good]
        type = decoded.type[kept]
        samples = np.flatnonzero(type == COUNTER)
        if len(samples):
            out.add_samples(ns[samples], track[epoch_of[samples]], decoded.value[kept[samples]])
            rest = np.flatnonzero(type != COUNTER)
            kept, ns, epoch_of, name, type = kept[rest], ns[rest], epoch_of[rest], name[rest], type[rest]
        first = out.add(gathered.Chunk(ns, _KIND[type], track[epoch_of], name))
        with_args = np.flatnonzero(decoded.args_size[kept])
        if len(with_args):
            tables = np.array([table_number(epoch.interned) for epoch in epochs], np.int64)
            which = kept[with_args]
            size = decoded.args_size[which]
            data = gather(found.padded, decoded.args_at[which], size)
            out.add_args(first + with_args, size, tables[epoch_of[with_args]], data)
        joined = np.flatnonzero(decoded.flow[kept])
        if len(joined):
            out.add_arrows(first + joined, decoded.flow[kept[joined]], np.full(len(joined), gathered.STEP))

    def _times(
        self,
        stated: Ints,
        epochs: list[_Epoch],
        edges: Ints,
        epoch_of: Ints,
        clocks: Clocks,
        leave_out: Callable[[str, int, int], None],
    ) -> tuple[Ints, NDArray[np.bool_]]:
        """Times in ns of BOOTTIME, and which are any."""
        sums = np.zeros(len(stated) + 1, np.int64)
        np.cumsum(stated, out=sums[1:])
        at_edges = sums[edges].tolist()
        unit, base = np.ones(len(epochs), np.int64), np.zeros(len(epochs), np.int64)
        counts_up, good = np.zeros(len(epochs), np.bool_), np.ones(len(epochs), np.bool_)
        for k, epoch in enumerate(epochs):
            count = int(edges[k + 1] - edges[k])
            if not count:
                continue
            link = epoch.link
            if not epoch.known or (link is None and epoch.clock not in clocks.offsets):
                good[k] = False
                leave_out("undated" if epoch.known else "no state", -1, count)
            elif link is None:
                base[k] = clocks.offsets[epoch.clock]
            else:
                unit[k] = link.unit_ns
                start = link.boottime_ns - link.value * link.unit_ns
                if link.is_incremental:
                    counts_up[k] = True
                    start += (link.now - at_edges[k]) * link.unit_ns
                    link.now += at_edges[k + 1] - at_edges[k]
                base[k] = (start + (1 << 63)) % (1 << 64) - (1 << 63)
        value = np.where(counts_up[epoch_of], sums[1:], stated)
        return value * unit[epoch_of] + base[epoch_of], good[epoch_of]

    def _names(self, ids: Ints, epochs: list[_Epoch], epoch_of: Ints, out: Gathered) -> NDArray[np.int32]:
        """Interned ids to those of the whole trace."""
        known: list[NDArray[np.int32]] = []
        start = np.zeros(len(epochs) + 1, np.int64)
        far: list[tuple[int, dict[int, str]]] = []  # those that no table holds, by epoch
        for k, epoch in enumerate(epochs):
            names, most = epoch.interned.names, max(epoch.interned.names, default=0)
            # Writers count them up from 1. What a damaged file holds in an id's place must not decide on our memory.
            room = _IDS_A_NAME * len(names)
            if most > room:
                far.append((k, {id: name for id, name in names.items() if room < id < MOST_IDS}))
                names, most = {id: name for id, name in names.items() if id <= room}, room
            table = np.full(most + 1, out.no_name, np.int32)
            if names:
                table[list(names)] = [out.strings[name] for name in names.values()]
            known.append(table)
            start[k + 1] = start[k] + len(table)
        inside = np.where(ids < np.diff(start)[epoch_of], ids, 0)
        found = np.concatenate(known)[start[:-1][epoch_of] + inside]
        for k, by_id in far:
            if not by_id:
                continue
            of = slice(*np.searchsorted(epoch_of, [k, k + 1]))
            keys = np.array(sorted(by_id), np.int64)
            values = np.array([out.strings[by_id[id]] for id in keys.tolist()], np.int32)
            at = np.minimum(np.searchsorted(keys, ids[of]), len(keys) - 1)
            found[of] = np.where(keys[at] == ids[of], values[at], found[of])
        return found
