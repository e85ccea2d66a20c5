"""Moves the times of one Perfetto trace onto the timeline: those of BOOTTIME, and those counted within a sequence.

Most sequences count from edge to edge on a clock of their own that is tied to BOOTTIME once: to move them is to move
that tie. Only where a clock runs at another rate must each step change, and then it does so by less than it is wide.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gputrace.reading.fields import VARINT, fields
from gputrace.reading.layout import put_varints

if TYPE_CHECKING:
    from gputrace.merging.plan import Shift
    from gputrace.reading.layout import Events

_BOOTTIME_ID = 6
_CLOCK_ID = 58  # of TracePacketDefaults


class _Own:
    """A sequence's own clock: where it is, on the trace's BOOTTIME and on the timeline, in ns."""

    __slots__ = ("incremental", "last_ns", "moved_ns", "tied_ns", "tied_value", "unit")

    def __init__(self, tied_ns: int, tied_value: int, incremental: bool, unit: int, moved_ns: int) -> None:
        self.tied_ns = tied_ns
        self.tied_value = tied_value
        self.incremental = incremental
        self.unit = unit
        self.last_ns = tied_ns
        self.moved_ns = moved_ns


class Times:
    """The times of one trace, in the order of its file."""

    def __init__(self, shift: Shift) -> None:
        self.on_timeline = shift
        self.moves = bool(shift)
        self.skews = bool(shift.skew)
        self.absolute: set[int] = set()  # sequences whose events have times of BOOTTIME
        self._defaults: dict[int, int] = {}
        self._own: dict[tuple[int, int], _Own] = {}

    def take_defaults(self, sequence: int, data: bytes, start: int, end: int) -> None:
        """Note the clock that a sequence's times are of from here on."""
        for number, kind, _, value, _ in fields(data, start, end):
            if number == _CLOCK_ID and kind == VARINT:
                self._defaults[sequence] = value
                if value == _BOOTTIME_ID:
                    self.absolute.add(sequence)
                else:
                    self.absolute.discard(sequence)

    def tie(self, sequence: int, clocks: list[dict[int, int]]) -> None:
        """Note a snapshot that ties a sequence's own clocks: their fields by number."""
        boottime = next((clock.get(2, 0) for clock in clocks if clock.get(1) == _BOOTTIME_ID), None)
        if boottime is None or not self.skews:
            return
        for clock in clocks:
            if clock.get(1, 0) >= 64:
                unit = clock.get(4, 1) or 1
                own = _Own(boottime, clock.get(2, 0), bool(clock.get(3)), unit, self.on_timeline(boottime))
                self._own[sequence, clock[1]] = own

    def move(self, value: int, clock: int | None, sequence: int) -> int:
        """A packet's timestamp as it is to be written."""
        if clock is None:
            clock = self._defaults.get(sequence, _BOOTTIME_ID)
        if clock == _BOOTTIME_ID:
            return self.on_timeline(value)
        own = self._own.get((sequence, clock))
        if own is None or own.unit != 1:
            return value  # its tie was moved
        if not own.incremental:
            ns = own.tied_ns + value - own.tied_value
            return own.tied_value + self.on_timeline(ns) - self.on_timeline(own.tied_ns)
        own.last_ns += value
        step = max(self.on_timeline(own.last_ns) - own.moved_ns, 0)
        own.moved_ns += step
        return step

    def move_events(self, array: Any, events: Events) -> None:
        """Change the time steps of our events, in place."""
        if not events.which.size:
            return
        steps, width = events.time, events.time_width
        order = np.argsort(events.sequence[events.which], kind="stable")
        sequence = events.sequence[events.which][order]
        firsts = np.flatnonzero(np.r_[True, sequence[1:] != sequence[:-1]]).tolist()
        moved = steps.copy()
        for begin, end in zip(firsts, [*firsts[1:], len(order)], strict=True):
            id = int(sequence[begin])
            own = self._own.get((id, self._defaults.get(id, 0)))
            if own is None or not own.incremental or own.unit != 1:
                continue
            rows = order[begin:end]
            ns = own.last_ns + np.cumsum(steps[rows])
            new = np.diff(self._all_on_timeline(ns), prepend=own.moved_ns)
            # A step that would need another byte is a ns short; the next batch's first makes up for it.
            new = np.clip(new, 0, (np.int64(1) << np.minimum(7 * width[rows], 62)) - 1)
            moved[rows] = new
            own.last_ns = int(ns[-1])
            own.moved_ns += int(new.sum())
        for size in np.unique(width).tolist():
            rows = np.flatnonzero(width == size)
            put_varints(array, events.time_at[rows], moved[rows], size)

    def _all_on_timeline(self, ns: Any) -> Any:
        shift = self.on_timeline
        return ns + shift.offset_ns + np.rint((ns - shift.origin_ns) * shift.skew).astype(np.int64)
