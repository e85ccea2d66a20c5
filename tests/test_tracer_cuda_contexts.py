"""Threads and contexts: what a span says where the driver takes nothing."""

from __future__ import annotations

import threading
from pathlib import Path

import gputrace
from tests.fake_driver import on_fake_driver
from tests.recorded import recording
from tests.test_tracer_cuda import Program, ok, wait_read


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


@on_fake_driver(devices=1, truth=1000, reuse_handles=1)
def test_a_handle_given_out_again_in_another_context(tmp_path: Path) -> None:
    """The driver reuses addresses: a stream of a new context is not the one that had its handle before."""
    program = Program()
    other = program.second_context()
    ok(program.driver.cuCtxSetCurrent(program.context))
    first = program.stream()
    program.begin()
    with recording(tmp_path, "cuda") as run:
        with gputrace.span("before", int(first)):
            pass
        wait_read()
        ok(program.driver.cuStreamDestroy(first))
        ok(program.driver.cuCtxSetCurrent(other))
        second = program.stream()
        assert int(second) == int(first)
        for name in ("refused", "after", "after again"):
            with gputrace.span(name, int(second)):
                pass
    assert [s.name for s in run.device if s.name != "refused"] == ["before", "after", "after again"]
    (before, after) = (next(s for s in run.device if s.name == name) for name in ("before", "after"))
    assert before.track[1] != after.track[1], "another context is another group"


@on_fake_driver(devices=1, truth=1000, reuse_handles=1)
def test_a_context_made_anew(tmp_path: Path) -> None:
    program = Program()
    with recording(tmp_path, "cuda", leaked_events=None) as run:
        for number in range(3):
            context = program.second_context()
            stream = program.stream()
            with gputrace.span(f"in {number}", int(stream)):
                pass
            wait_read()
            ok(program.driver.cuStreamDestroy(stream))
            ok(program.driver.cuCtxDestroy(context))
    assert [s.name for s in run.device if s.name.startswith("in")] == ["in 0", "in 1", "in 2"]
