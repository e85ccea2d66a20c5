"""What is written on the program's own thread: what a signal's handler raises meanwhile is the program's."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

import gputrace
from gputrace import tracer
from gputrace.devices.simulated import NOT_READY
from tests.recorded import recording


class Interrupt(BaseException):
    pass


@pytest.mark.parametrize("which", [1, 2], ids=["a begin", "an end"])
def test_a_handler_that_raises_while_events_are_read(tmp_path: Path, which: int) -> None:
    with recording(tmp_path) as run:
        plain, reads = run.gpu.elapsed_raw, []

        def elapsed(start: Any, end: Any) -> Any:
            if armed and threading.current_thread() is not threading.main_thread():
                return NOT_READY, 0.0
            if armed and end in mine:
                reads.append(end)
                if len(reads) == which:
                    raise Interrupt
            return plain(start, end)

        armed, mine, record = True, [], run.gpu.record_raw

        def remember(event: Any, stream: Any) -> Any:
            mine.append(event)
            return record(event, stream)

        run.gpu.elapsed_raw, run.gpu.record_raw = elapsed, remember
        stream = run.stream()
        for n in range(5):
            with gputrace.span(f"x{n}", stream):
                pass
        current = tracer.current()
        assert current is not None
        with pytest.raises(Interrupt):
            current.write_now()
        armed = False
        with gputrace.span("after", stream):
            pass
    for side in (run.host, run.device):
        assert sorted(s.name or "" for s in side) == ["after", *(f"x{n}" for n in range(5))]
        assert all(s.dur >= 0 and "error" not in s.args for s in side)
    assert run.report["failed"] == 0
