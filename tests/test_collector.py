"""The collector's thread is nobody's business but ours, whatever it does."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import gputrace
from tests.recorded import recording


def test_the_collector_stays_unknown_when_something_it_does_fails(tmp_path: Path) -> None:
    """Logging asks which thread this is, and threading would make it a dummy."""
    known = threading.enumerate()
    with recording(tmp_path, leaked_events=None, check=False) as run:
        profiler = gputrace.EventProfiler(run.gpu)
        stream = run.stream()
        measurement = profiler.stop(stream, profiler.start(stream))
        run.gpu.fail_after = 0
        with gputrace.span("x"):
            pass
        deadline = time.monotonic() + 20
        while not measurement.resolved and time.monotonic() < deadline:
            time.sleep(0.001)
        assert threading.enumerate() == known
        assert measurement.result().error is not None
    assert threading.enumerate() == known
