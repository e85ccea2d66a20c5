"""The collector's thread is nobody's business but ours, whatever it does."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import gputrace
from gputrace.collector import Collector
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


@pytest.mark.parametrize("runs", [True, False])
def test_a_handler_that_raises_when_the_end_has_just_come(runs: bool) -> None:
    """What it breaks off is the very call that waited: nobody waits for that end again."""
    for _ in range(20):
        began = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            finish_interrupted(runs)
        assert time.monotonic() - began < 20


def finish_interrupted(runs: bool) -> None:
    ends: list[int] = []
    collector = Collector(lambda: None)
    if runs:
        assert collector.start()

    def handler(frame: Any, event: str, function: Any) -> None:
        if event == "c_return" and function.__name__ == "acquire" and frame.f_code.co_name == "finish" and ends:
            sys.setprofile(None)
            raise KeyboardInterrupt

    try:
        sys.setprofile(handler)
        collector.finish(lambda: ends.append(1), lambda: None, lambda: 0, patience_s=30)
    finally:
        sys.setprofile(None)
        assert ends == [1]


def test_one_that_is_late_to_stop_goes_on_if_it_is_started_again() -> None:
    """As a fork does that waited long enough: whoever starts it next finds it running, and would leave it at that."""
    inside, go, calls = threading.Event(), threading.Event(), []

    def work() -> None:
        calls.append(1)
        inside.set()
        assert go.wait(30)

    collector = Collector(work, period_s=0.001)
    assert collector.start()
    assert inside.wait(30)
    assert not collector.stop(0.001)
    assert collector.start()
    inside.clear()
    go.set()
    assert inside.wait(30)
    assert collector.running
    assert collector.stop(30)
    assert not collector.running
