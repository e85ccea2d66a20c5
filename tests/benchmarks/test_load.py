"""The suite's own sums: what is kept, dropped and lost is all that was opened."""

from __future__ import annotations

from gputrace.record.tally import Summary
from tests.benchmarks.figures import shown
from tests.benchmarks.load import balance


def test_kept_dropped_and_lost_are_all_that_was_opened() -> None:
    summary = Summary()
    summary.slices, summary.dropped = 1_200_000, 300_000
    whole = balance("of their spans", 1_500_000, summary)
    assert (shown(whole), whole.verdict) == ("0 (of 1,500,000: 1,200,000 kept, 300,000 dropped)", "met")
    short = balance("of their spans", 1_500_007, summary)
    assert (shown(short), short.verdict) == ("7 (of 1,500,007: 1,200,000 kept, 300,000 dropped)", "over")
