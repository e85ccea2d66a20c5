"""Threads and contexts: what a span says where the driver takes nothing."""

from __future__ import annotations

import threading
from pathlib import Path

import gputrace
from tests.fake_driver import on_fake_driver
from tests.recorded import recording
from tests.test_tracer_cuda import Program, ok


@on_fake_driver()
def test_a_thread_without_a_context(tmp_path: Path) -> None:
    """The driver takes no event there, and no work either: host slices that say so."""
    program = Program()
    stream = program.stream()
    program.begin()

    def work() -> None:
        with gputrace.span("legacy", 0), gputrace.span("own", stream):
            pass
        assert int(ok(program.driver.cuCtxGetCurrent())) == 0

    with recording(tmp_path, "cuda") as run:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    program.unharmed()
    assert run.device == []
    assert "refused" in run.named("own")[0].args["gpu"]
    assert len(run.report["told"]) == 1
