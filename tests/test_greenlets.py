"""Spans in greenlets, which switch with a span open as tasks do: gevent's, eventlet's, SQLAlchemy's."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Any

import greenlet

import gputrace
from tests.engine import Slice
from tests.recorded import Run, recording


class Hub:
    """Runs greenlets in turn, each until it switches back: what an event loop of greenlets comes to."""

    def __init__(self) -> None:
        self.main = greenlet.getcurrent()

    def switch(self) -> None:
        self.main.switch()

    def run(self, *functions: Callable[[], Any]) -> None:
        alive = [greenlet.greenlet(function) for function in functions]
        while alive:
            for each in alive:
                each.switch()
            alive = [each for each in alive if not each.dead]


def lane(s: Slice) -> str:
    return "tasks" if s.track[-1] == "tasks" else "thread"


def assert_whole(run: Run) -> None:
    assert run.report["out_of_order"] == run.report["clamped"] == run.report["unfinished"] == 0
    assert not [s for s in run.slices if "ended" in s.args]


def end(s: Slice) -> int:
    return s.ts + s.dur


def test_overlapping_spans_each_have_their_own_begin_and_end(tmp_path: Path) -> None:
    order: list[str] = []
    with recording(tmp_path, "host") as run:
        hub = Hub()

        def work(name: str, turns: int) -> Callable[[], None]:
            def body() -> None:
                with gputrace.span(name):
                    order.append(name)
                    for turn in range(turns):
                        hub.switch()
                        with gputrace.span(f"{name} {turn}"):
                            hub.switch()
                order.append(name)

            return body

        # The first to begin is neither the first nor the last to end.
        hub.run(work("a", 2), work("b", 3), work("c", 1))
    assert order == ["a", "b", "c", "c", "a", "b"]
    assert_whole(run)
    assert len(run.slices) == 3 + 6
    a, b, c = (run.named(name)[0] for name in "abc")
    assert a.ts < b.ts < c.ts < end(c) < end(a) < end(b)
    for s in run.slices:
        assert lane(s) == "tasks"
        assert run.parent_name(s) == (s.name[0] if " " in s.name else None)


def test_plain_code_stays_on_the_threads_own_track(tmp_path: Path) -> None:
    with recording(tmp_path, "host") as run:
        hub = Hub()

        def work() -> None:
            with gputrace.span("in a greenlet"):
                hub.switch()

        waiting = greenlet.greenlet(work)
        with gputrace.span("before"):
            waiting.switch()
            with gputrace.span("inside"):
                pass
        with gputrace.span("after"):
            waiting.switch()
    assert_whole(run)
    assert {s.name: lane(s) for s in run.slices} == {
        "before": "thread",
        "inside": "thread",
        "after": "thread",
        "in a greenlet": "tasks",
    }
    assert run.parent_name(run.named("inside")[0]) == "before"
    across, before, after = (run.named(name)[0] for name in ("in a greenlet", "before", "after"))
    assert before.ts < across.ts < end(before) < after.ts < end(across) < end(after)


def test_on_one_stream(tmp_path: Path) -> None:
    with recording(tmp_path) as run:
        hub, stream = Hub(), run.stream()

        def work(name: str) -> Callable[[], None]:
            def body() -> None:
                with gputrace.span(name, stream=stream):
                    stream.launch(100_000)
                    hub.switch()
                    with gputrace.span(f"{name} in", stream=stream):
                        stream.launch(100_000)
                    hub.switch()

            return body

        hub.run(work("a"), work("b"))
    assert_whole(run)
    for side in (run.host, run.device):
        a, b = (next(s for s in side if s.name == name) for name in "ab")
        assert a.ts < b.ts < end(a) <= end(b)
        assert len(side) == 4
        for s in side:
            assert run.parent_name(s) == (s.name[0] if " in" in s.name else None)


def test_through_a_decorator_and_with_an_error(tmp_path: Path) -> None:
    with recording(tmp_path, "host") as run:
        hub = Hub()

        @gputrace.span("decorated")
        def work() -> None:
            hub.switch()

        @gputrace.span("fails")
        def fails() -> None:
            hub.switch()
            raise KeyError("x")

        def caught() -> None:
            with suppress(KeyError):
                fails()

        hub.run(work, caught, work)
    assert_whole(run)
    assert [s.name for s in run.slices] == ["decorated", "fails", "decorated"]
    assert run.named("fails")[0].args == {"error": "KeyError"}


def test_greenlets_that_are_dropped_end_their_spans(tmp_path: Path) -> None:
    with recording(tmp_path, "host") as run:
        hub = Hub()

        def work() -> None:
            with gputrace.span("dropped"):
                hub.switch()

        waiting = greenlet.greenlet(work)
        waiting.switch()
        del waiting  # which throws GreenletExit into it
        with gputrace.span("later"):
            pass
    assert_whole(run)
    assert end(run.named("dropped")[0]) <= run.named("later")[0].ts


def test_each_thread_has_a_main_greenlet_of_its_own(tmp_path: Path) -> None:
    with recording(tmp_path, "host") as run:

        def program() -> None:
            hub = Hub()

            def work() -> None:
                with gputrace.span("in a greenlet"):
                    hub.switch()

            with gputrace.span("plain"):
                hub.run(work, work)

        threads = [Thread(target=program) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert_whole(run)
    assert [lane(s) for s in run.named("plain")] == ["thread"] * 2
    assert [lane(s) for s in run.named("in a greenlet")] == ["tasks"] * 4
