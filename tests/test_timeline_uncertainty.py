"""A recording states the worst of all bounds of its windows' edges, wherever on the clock map either edge lies."""

from __future__ import annotations

from gputrace.clock import Anchor, ClockMap
from gputrace.counts import Counts
from gputrace.model import LANE, Track
from gputrace.timeline import StreamTimeline

NARROW_NS, WIDE_NS = 10, 50_000


def test_a_window_that_ends_where_the_map_is_worse() -> None:
    counts = Counts()
    line = StreamTimeline(lambda index: Track(index + 1, LANE, "x"), counts)
    clock = ClockMap(1)
    for second, width_ns in enumerate((NARROW_NS, NARROW_NS, WIDE_NS)):
        clock.add(Anchor(second * 10**9, second * 10**9, second * 10**9 + width_ns))
    line.waiting = [(10**9 - 500, 10**9 + 999_999_999, 1, "across", None, None, 0)]
    line.place(clock, 0, 10)
    assert counts.windows == 1
    assert counts.worst_error_ns >= WIDE_NS // 2
    end = clock.piece_at(10**9 + 999_999_999)
    assert counts.worst_error_ns == int(max(end.worst_error_ns, end.error_ns(10**9 + 999_999_999))) + clock.tick_ns
