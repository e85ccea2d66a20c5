"""A recorded trace tells the truth: every GPU slice is where its stamps were, to within what the trace itself states.

On a driver that knows the true host time of every stamp, with a drifting device clock and a busy Python thread that
makes every anchor fight for the GIL. Timings here are errors against that truth, not speeds of the machine.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.benchmarks import truth
from tests.fake_driver import require


@pytest.mark.parametrize("busy_threads", [0, 1, 2])
def test_a_trace_tells_the_truth(tmp_path: Path, busy_threads: int) -> None:
    require()
    found = truth.record(tmp_path, 2.5, busy_threads)
    assert len(found.edges) > 500
    assert found.beyond == [], "further off than the trace says"
    assert found.p99_ns <= truth.BUDGET_NS
    assert found.outside == [], "sticks out of its parent"
    assert found.synchronised == 0
    summary = found.summary
    assert summary["told"] == []
    assert summary["windows"] == len(found.edges) // 2
    assert summary["clock_violations"] == summary["dropped"] == summary["failed"] == summary["unfinished"] == 0
    assert summary["worst_uncertainty_ns"] >= max(edge.stated_ns for edge in found.edges) - 1000
