"""What is kept of each event takes about as much memory as it is long."""

from __future__ import annotations

from gputrace.merging.events import event_of, text
from tests.benchmarks.memory import resident_mb

EVENT = {"ph": "B", "pid": 100, "tid": 100, "name": "kernel 48", "ts": 2.093}
KEPT = 50_000


def test_an_event_s_text_takes_no_more_than_its_size() -> None:
    before = resident_mb()
    kept = [text(EVENT) for _ in range(KEPT)]
    assert resident_mb() - before < 50  # at 4 KB each it would be 200
    assert event_of(kept[-1]) == EVENT
