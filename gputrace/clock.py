"""Device time to host time: anchors, and the continuous map through them.

A device counts in its own nanoseconds; only differences between two of its events can be read. An *anchor* is an event
whose host time is known as a bracket. Anchors are chained (device time of the next = device time of the last + elapsed
between them, in integer ns), and the map is the straight line from each to the next: continuous and strictly
increasing, so what nested on the device nests on the host. A piece once used is frozen: two edges placed at different
times can never disagree.

It knows no driver and takes no anchors (see `anchoring.py`). Host time is CLOCK_MONOTONIC in integer ns.
"""

from __future__ import annotations

from _bisect import bisect_left  # the builtin part of `bisect`

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Final

#: The rate difference to allow for where no slope was seen yet: the clock's own 50 ppm and NTP's slew of at most 500.
UNKNOWN_SKEW: Final = 550e-6
#: The change of rate to allow for from one piece to the next even where none was seen, for slow wander of the crystals.
LEAST_WANDER: Final = 10e-6
#: A piece longer than this, over a time without windows, may hide a wander to both sides of its mean: twice as much.
LONG_PIECE_NS: Final = 500_000_000
#: Anchors closer together than this say more about their brackets than about the rate between the clocks.
TELLING_NS: Final = 100_000_000
#: Past pieces kept, for edges that are read some time after the device passed them.
PIECES_KEPT: Final = 2048


def half_step_ns(elapsed_ns: int) -> int:
    """The most an elapsed time of this size (ns, signed) can be off for having been an f32 of milliseconds.

    An f32 has 24 bits of mantissa, so half a step is at most the value / 2^24; the 1 is for rounding to whole ns. As a
    share of the value it also bounds the sum over any parts of the time, each read on its own.
    """
    return (abs(elapsed_ns) >> 24) + 1


class Anchor:
    """A device time whose host time lies between ``low_ns`` and ``high_ns``.

    ``chained_ns`` is how far off the device time may be, all in all, for having been chained since the first anchor.
    ``event`` is whoever took it's own: what further device times are read against. It is kept here so that the two can
    only change together.
    """

    __slots__ = ("chained_ns", "device_ns", "event", "high_ns", "low_ns")

    def __init__(self, device_ns: int, low_ns: int, high_ns: int, chained_ns: int = 0, event: Any = None) -> None:
        self.device_ns = device_ns
        self.low_ns = low_ns
        self.high_ns = high_ns
        self.chained_ns = chained_ns
        self.event = event

    @property
    def host_ns(self) -> int:
        """The bracket's middle: off by at most `half_ns`, whichever way the time inside it was spent."""
        return (self.low_ns + self.high_ns) // 2

    @property
    def half_ns(self) -> int:
        return (self.high_ns - self.low_ns + 1) // 2


class Piece:
    """A straight stretch of the map, from (device0, host0) to (device1, host1), with the error at each end in ns.

    Between two anchors the truth may bend away from the line: at most by ``bend`` x length x f(1-f). A piece with
    ``extended`` set runs on from one end alone, on the slope seen before: its error grows by ``bend`` every ns.
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
        """The map's error at a device time inside the piece."""
        distance = abs(device_ns - self.device0)
        if self.extended:
            return self.error0 + distance * self.bend
        length = self.device1 - self.device0
        f = distance / length
        return self.error0 + f * (self.error1 - self.error0) + self.bend * length * f * abs(1 - f)

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


class Rate:
    """The slope between the two clocks (host ns a device ns), learnt from anchors that lie far enough apart.

    It is taken from anchor to anchor, never from the map's pieces: a piece that begins where an extension ended also
    makes good what the extension had wrong.
    """

    def __init__(self, first: Anchor, tick_ns: int) -> None:
        self._tick_ns = tick_ns
        self.slope = 1.0
        self.noise = UNKNOWN_SKEW  # how far off it may be for the width of brackets
        self.change = LEAST_WANDER  # from the one before
        self.known = False
        self._since = first

    @property
    def doubt(self) -> float:
        """How far off the slope may be for a time soon after, or before, the anchors it comes from."""
        return self.noise + max(2 * LEAST_WANDER, self.change)

    def start_over(self, anchor: Anchor) -> bool:
        """Nothing can be learnt up to this anchor: the device's clock was set. False, as `learn` says."""
        self._since = anchor
        return False

    def learn(self, anchor: Anchor) -> bool:
        """Take in one more anchor. True if the rate is now that of a long enough stretch up to it."""
        since = self._since
        length = anchor.device_ns - since.device_ns
        # Of two stamps, each is at most a tick early: what lies between them is off by less than one.
        noise = (since.half_ns + anchor.half_ns + anchor.chained_ns - since.chained_ns + self._tick_ns) / length
        telling = length >= TELLING_NS and noise < UNKNOWN_SKEW
        if not telling and (self.known or noise >= self.noise):
            return False
        slope = (anchor.host_ns - since.host_ns) / length
        if telling:
            self.change = max(LEAST_WANDER, abs(slope - self.slope)) if self.known else LEAST_WANDER
            self.known = True
            self._since = anchor
        self.slope, self.noise = slope, noise
        return telling


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
        self._rate: Rate | None = None
        self._end: tuple[int, int, float] | None = None  # device, host, error where the next piece starts
        self._before: Piece | None = None  # what lies before the first piece kept, once somebody has asked

    @property
    def skew_ppm(self) -> float | None:
        """How much faster than the host's the device's clock runs, in parts per million; None where not yet known."""
        return (1 / self._rate.slope - 1) * 1e6 if self._rate is not None and self._rate.known else None

    @property
    def reach_ns(self) -> int | None:
        """The device time up to which the map can place; None before the first anchor."""
        return None if self._end is None else self._end[0]

    @property
    def ready(self) -> bool:
        """Can anything be placed yet? One anchor alone tells no rate, unless `extend` was asked to do without."""
        return bool(self.pieces) or self._before is not None

    def add(self, anchor: Anchor, doubt_ns: int = 0) -> Piece | None:
        """Continue the map to a new anchor, later than the last one on the device's clock. Returns the new piece.

        ``doubt_ns`` is how far off times since the last anchor may be beyond all else, because the clock was set in
        between. None for the first anchor, and for one that an extension has overtaken: the map is frozen there.
        """
        last, self.last = self.last, anchor
        if last is None or self._end is None or self._rate is None:
            self._rate = Rate(anchor, self.tick_ns)
            self._end = (anchor.device_ns, anchor.host_ns, float(anchor.half_ns))
            return None
        device0, host0, error0 = self._end
        length = anchor.device_ns - device0
        told = self._rate.learn(anchor) if not doubt_ns else self._rate.start_over(anchor)
        if length <= 0:
            return None
        # The map may not turn back, even where an extension ran ahead of the anchor: it then reaches the anchor late,
        # and says so in its error.
        host1 = max(anchor.host_ns, host0 + length // 2 + 1)
        error1 = float(anchor.half_ns + host1 - anchor.host_ns)
        bend = max(self._rate.change, 2 * LEAST_WANDER if length > LONG_PIECE_NS else 0.0)
        if told and self.pieces and not self.pieces[-1].extended:
            # A bend is shared: the piece before may have hidden as much of it.
            self.pieces[-1].bend = max(self.pieces[-1].bend, bend)
        # Where the chain's last link is a little long or short, the line inside the piece is off by as much at its far
        # end. Readings against the new anchor do not inherit that.
        chain = anchor.chained_ns - last.chained_ns
        slope = (host1 - host0) / length
        at_start, at_end = error0 + doubt_ns, error1 + chain + doubt_ns
        piece = Piece(device0, host0, at_start, anchor.device_ns, host1, at_end, slope, bend, False)
        self._append(piece, error1)
        return piece

    def extend(self, device_ns: int) -> Piece | None:
        """Run the map past the last anchor, on the last slope, up to a device time, and freeze it there.

        For an edge that can wait no longer. None where there is no anchor, or where the map already reaches so far.
        """
        if self._end is None or self._rate is None:
            return None
        device0, host0, error0 = self._end
        if device_ns <= device0:
            self._backwards()
            return None
        length = device_ns - device0
        slope, doubt = self._rate.slope, self._rate.doubt
        host1, error1 = host0 + int(length * slope), error0 + length * doubt
        piece = Piece(device0, host0, error0, device_ns, host1, error1, slope, doubt, True)
        self._append(piece, error1)
        return piece

    def place(self, device_ns: int, read_error_ns: int = 0) -> Placed | None:
        """Where a device time lies; None if the map does not reach so far yet.

        ``read_error_ns`` is how far off the device time itself may be (see `anchoring.Stamp`). A time before the first
        anchor waits for a second one, which tells the rate, or for `extend`.
        """
        if self._end is None or device_ns > self._end[0] or not self.ready:
            return None
        piece = self.piece_at(device_ns)
        error = piece.error_ns(device_ns) + read_error_ns + self.tick_ns
        return Placed(piece.host_ns(device_ns), int(error) + 1, not piece.extended)

    def piece_at(self, device_ns: int) -> Piece:
        """The piece that holds a device time within reach; before the first one kept, its extension backwards."""
        if not self.pieces or device_ns < self.pieces[0].device0:
            return self._backwards()
        # A joint belongs to the piece that ends there, so that its place is the same before and after the next is made.
        return self.pieces[bisect_left(self._ends, device_ns)]

    def pieces_from(self, device_ns: int) -> list[Piece]:
        """All pieces from the one that holds a device time within reach to the last, in order."""
        if not self.pieces or device_ns < self.pieces[0].device0:
            return [self._backwards(), *self.pieces]
        return self.pieces[bisect_left(self._ends, device_ns) :]

    def _backwards(self) -> Piece:
        """The map before its first piece: on the slope known when it was first asked for, and frozen like any other."""
        assert self._end is not None
        assert self._rate is not None
        if self._before is None:
            device0, host0, error0 = self._end
            if self.pieces:
                first = self.pieces[0]
                device0, host0, error0 = first.device0, first.host0, first.error0
            slope, doubt = self._rate.slope, self._rate.doubt
            self._before = Piece(device0, host0, error0, device0, host0, error0, slope, doubt, True)
        return self._before

    def _append(self, piece: Piece, error1: float) -> None:
        self.pieces.append(piece)
        self.pieces_made += 1
        self._ends.append(piece.device1)
        self._end = (piece.device1, piece.host1, error1)
        if len(self.pieces) > 2 * PIECES_KEPT:
            del self.pieces[:PIECES_KEPT], self._ends[:PIECES_KEPT]
            self._before = None
