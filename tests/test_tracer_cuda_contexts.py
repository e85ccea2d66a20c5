"""Threads and contexts: what a span says where the driver takes nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

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
    given_out_again(tmp_path, int)


@on_fake_driver(devices=1, truth=1000, reuse_handles=1)
def test_one_object_whose_handle_is_given_out_again(tmp_path: Path) -> None:
    """Nor is it for a program that passes the binding's object which it has kept, whose queue is remembered with it."""
    kept: list[Any] = []
    given_out_again(tmp_path, lambda stream: kept[0] if kept else kept.append(stream) or stream)


def given_out_again(tmp_path: Path, passed: Callable[[Any], Any]) -> None:
    program = Program()
    other = program.second_context()
    ok(program.driver.cuCtxSetCurrent(program.context))
    first = program.stream()
    program.begin()
    with recording(tmp_path, "cuda") as run:
        with gputrace.span("before", passed(first)):
            pass
        with gputrace.span("before", passed(first)):
            pass
        wait_read()
        ok(program.driver.cuStreamDestroy(first))
        ok(program.driver.cuCtxSetCurrent(other))
        second = program.stream()
        assert int(second) == int(first)
        for name in ("refused", "after", "after again"):
            with gputrace.span(name, passed(second)):
                pass
    assert [s.name for s in run.device if s.name != "refused"] == ["before", "before", "after", "after again"]
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


@on_fake_driver(devices=1, truth=1000)
def test_objects_of_two_streams_and_of_two_recordings_in_turn(tmp_path: Path) -> None:
    program = Program()
    one, two = program.stream(), program.stream()
    for number in range(2):
        (tmp_path / str(number)).mkdir()
        program.begin()
        with recording(tmp_path / str(number), "cuda") as run:
            for name, stream in (("one", one), ("one", one), ("two", two), ("one", one), ("default", type(one)(0))):
                with gputrace.span(name, stream):
                    pass
        rows = {name: {s.track for s in run.device if s.name == name} for name in ("one", "two", "default")}
        assert [len(tracks) for tracks in rows.values()] == [1, 1, 1]
        assert len(set.union(*rows.values())) == 3
