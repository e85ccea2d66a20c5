"""One span object that two threads enter at the same moment: two slices, whoever comes first."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import gputrace
from tests.recorded import recording

ROUNDS = 300


@pytest.fixture(autouse=True)
def quick_switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.parametrize("with_stream", [False, True])
def test_each_thread_has_its_slice(tmp_path: Path, with_stream: bool) -> None:
    together = threading.Barrier(2)
    spans: list[gputrace.span] = []
    with recording(tmp_path) as run:

        def enter() -> None:
            for number in range(ROUNDS):
                if together.wait() == 0:
                    spans.append(gputrace.span("x", run.stream()) if with_stream else gputrace.span("x"))
                together.wait()
                with spans[number]:
                    pass

        threads = [threading.Thread(target=enter) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        spans.clear()
    assert len(run.host) == 2 * ROUNDS
    assert len(run.device) == (2 * ROUNDS if with_stream else 0)
    assert run.report["unfinished"] == run.report["dropped"] == 0
