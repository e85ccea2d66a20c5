"""Device time to host time: anchors, and the continuous map through them.

A device counts in its own nanoseconds; only differences between two of its events can be read. An *anchor* is an event
whose host time is known as a bracket. Anchors are chained (device time of the next = device time of the last + elapsed
between them, in integer ns), and the map is the straight line from each to the next: continuous and strictly
increasing, so what nested on the device nests on the host. A piece once used is frozen: two edges placed at different
times can never disagree.

It knows no driver and takes no anchors (see `anchoring.py`). Host time is CLOCK_MONOTONIC in integer ns.
"""

from __future__ import annotations

from bisect import bisect_right

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

#: The rate difference to allow for where no slope was seen yet: the clock's own 50 ppm and NTP's slew of at most 500.
UNKNOWN_SKEW: Final = 550e-6
#: The change of rate to allow for from one piece to the next even where none was seen, for slow wander of the crystals.
LEAST_WANDER: Final = 10e-6
#: Pieces shorter than this say more about their brackets than about the clock: no neighbour is judged by their slope.
TELLING_PIECE_NS: Final = 100_000_000
#: Past pieces kept, for events that were reached long before they were read (64 s at four anchors a second).
PIECES_KEPT: Final = 256


def half_step_ns(elapsed_ns: int) -> int:
    """The most an elapsed time of this size (ns, signed) can be off for having been an f32 of milliseconds.

    An f32 has 24 bits of mantissa, so half a step is at most the value / 2^24; the 1 is for rounding to whole ns.
    """
    return (abs(elapsed_ns) >> 24) + 1


class Anchor:
    """A device time whose host time lies between ``low_ns`` and ``high_ns``."""

    __slots__ = ("device_ns", "high_ns", "low_ns")

    def __init__(self, device_ns: int, low_ns: int, high_ns: int) -> None:
        self.device_ns = device_ns
        self.low_ns = low_ns
        self.high_ns = high_ns

    @property
    def host_ns(self) -> int:
        """The bracket's middle: off by at most `half_ns`, whichever way the time inside it was spent."""
        return (self.low_ns + self.high_ns) // 2

    @property
    def half_ns(self) -> int:
        return (self.high_ns - self.low_ns + 1) // 2


class Piece:
    """A straight stretch of the map, from (device0, host0) to (device1, host1), with the error at each end.

    ``extended`` marks a piece that runs past the last anchor on the slope of the one before: an estimate.
    """

    __slots__ = ("bend", "device0", "device1", "error0", "error1", "extended", "host0", "host1", "slope")

    def __init__(
        self,
        device0: int,
        host0: int,
        error0: float,
        device1: int,
        host1: int,
        error1: float,
        slope: float,
        bend: float,
        extended: bool,
    ) -> None:
        self.device0 = device0
        self.host0 = host0
        self.error0 = error0
        self.device1 = device1
        self.host1 = host1
        self.error1 = error1
        self.slope = slope
        self.bend = bend
        self.extended = extended

    def host_ns(self, device_ns: int) -> int:
        return self.host0 + int((device_ns - self.device0) * self.slope)

    def error_ns(self, device_ns: int) -> float:
        """The map's error at a device time inside the piece, or before it where it is extended backwards."""
        length = self.device1 - self.device0
        f = (device_ns - self.device0) / length
        if f < 0:  # before the first anchor: the slope's own uncertainty grows with the distance
            return self.error0 - f * (self.error0 + self.error1 + self.bend * length)
        if self.extended:
            return self.error0 + f * (self.error1 - self.error0)
        return self.error0 + f * (self.error1 - self.error0) + self.bend * length * f * (1 - f)

    @property
    def worst_error_ns(self) -> float:
        """At least `error_ns` anywhere inside: what one number can say of the whole piece."""
        bend = 0.0 if self.extended else self.bend * (self.device1 - self.device0) / 4
        return max(self.error0, self.error1) + bend


class Placed:
    """Where a device time lies on the host's timeline. The truth is within ``error_ns`` of ``host_ns``."""

    __slots__ = ("error_ns", "exact", "host_ns")

    def __init__(self, host_ns: int, error_ns: int, exact: bool) -> None:
        self.host_ns = host_ns
        self.error_ns = error_ns
        self.exact = exact


class ClockMap:
    """Device time to host time for one context. Not thread-safe: its anchoring holds a lock around it.

    ``tick_ns`` is the resolution of the device's stamps.
    """

    def __init__(self, tick_ns: int) -> None:
        self.tick_ns = tick_ns
        self.last: Anchor | None = None
        self.pieces: list[Piece] = []
        self.pieces_made = 0
        self._ends: list[int] = []  # device1 of each piece, for bisect
        self._slope = 1.0  # of the last telling piece
        self._end: tuple[int, int, float] | None = None  # device, host, error where the next piece starts

    @property
    def skew_ppm(self) -> float | None:
        """How much faster than the host's the device's clock runs, in parts per million; None before two anchors."""
        return (1 / self._slope - 1) * 1e6 if self.pieces else None

    def add(self, anchor: Anchor) -> Piece | None:
        """Continue the map to a new anchor. Returns the new piece (none for the first anchor).

        An anchor no later than the map's end on the device's clock adds nothing.
        """
        if self.last is None or self._end is None:
            self.last = anchor
            self._end = (anchor.device_ns, anchor.host_ns, float(anchor.half_ns))
            return None
        device0, host0, error0 = self._end
        length = anchor.device_ns - device0
        if length <= 0:
            return None
        # The map may not turn back, even where an extension ran ahead of the anchor: it then reaches the anchor late,
        # and says so in its error.
        host1 = max(anchor.host_ns, host0 + length // 2 + 1)
        chain = half_step_ns(anchor.device_ns - self.last.device_ns)
        error1 = float(anchor.half_ns + host1 - anchor.host_ns + chain)
        slope = (host1 - host0) / length
        first = not self.pieces
        bend = LEAST_WANDER if first else max(LEAST_WANDER, abs(slope - self._slope))
        piece = Piece(device0, host0, error0, anchor.device_ns, host1, error1, slope, bend, False)
        if first or length >= TELLING_PIECE_NS:
            if not first:
                # A bend is shared: the piece before may have hidden as much of it.
                self.pieces[-1].bend = max(self.pieces[-1].bend, bend)
            self._slope = slope
        self.last = anchor
        self._append(piece)
        return piece

    def extend(self, device_ns: int) -> Piece | None:
        """Run the map past the last anchor, on the last slope, up to a device time, and freeze it there.

        For an edge that can wait no longer. None where there is no anchor, or where the map already reaches so far.
        """
        if self._end is None or device_ns <= self._end[0]:
            return None
        device0, host0, error0 = self._end
        length = device_ns - device0
        doubt = self._slope_doubt()
        piece = Piece(
            device0,
            host0,
            error0,
            device_ns,
            host0 + int(length * self._slope),
            error0 + length * doubt,
            self._slope,
            doubt,
            True,
        )
        self._append(piece)
        return piece

    def place(self, device_ns: int, read_error_ns: int = 0) -> Placed | None:
        """Where a device time lies; None if the map does not reach so far yet (or has no anchor at all).

        ``read_error_ns`` is how far off the device time itself may be (`half_step_ns` of how it was read).
        """
        if self._end is None:
            return None
        if not self.pieces:
            if device_ns > self._end[0]:
                return None
            before = self._end[0] - device_ns
            error = self._end[2] + before * UNKNOWN_SKEW + read_error_ns + self.tick_ns
            return Placed(self._end[1] - before, int(error) + 1, False)
        if device_ns > self._end[0]:
            return None
        piece = self.piece_at(device_ns)
        error = piece.error_ns(device_ns) + read_error_ns + self.tick_ns
        exact = not piece.extended and device_ns >= piece.device0
        return Placed(piece.host_ns(device_ns), int(error) + 1, exact)

    def piece_at(self, device_ns: int) -> Piece:
        """The piece that holds a device time; the oldest one kept for any time before it."""
        return self.pieces[min(bisect_right(self._ends, device_ns - 1), len(self.pieces) - 1)]

    @property
    def reach_ns(self) -> int | None:
        """The device time up to which the map can place; None before the first anchor."""
        return None if self._end is None else self._end[0]

    def _slope_doubt(self) -> float:
        if not self.pieces:
            return UNKNOWN_SKEW
        telling = next((p for p in reversed(self.pieces) if p.device1 - p.device0 >= TELLING_PIECE_NS), self.pieces[0])
        return telling.bend + (telling.error0 + telling.error1) / (telling.device1 - telling.device0)

    def _append(self, piece: Piece) -> None:
        self.pieces.append(piece)
        self.pieces_made += 1
        self._ends.append(piece.device1)
        self._end = (piece.device1, piece.host1, piece.error1)
        if len(self.pieces) > 2 * PIECES_KEPT:
            del self.pieces[:PIECES_KEPT], self._ends[:PIECES_KEPT]
