"""One span object entered by several threads, tasks or generators: each use is its own, on whoever entered it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import gputrace
from tests.recorded import recording


def test_threads_that_overlap(tmp_path: Path) -> None:
    """A ends first though it began first; LIFO would end another's."""
    with recording(tmp_path, "host") as run:
        shared = gputrace.span("step")
        began = [threading.Event() for _ in range(3)]
        ended = [threading.Event() for _ in range(3)]
        leaving_ns = [0, 0, 0]

        def work(number: int) -> None:
            if number:
                began[number - 1].wait()
            with gputrace.span(f"outer {number}"), shared:
                began[number].set()
                (ended[number - 1] if number else began[2]).wait()
                leaving_ns[number] = time.monotonic_ns()
            ended[number].set()

        threads = [threading.Thread(target=work, args=(number,), name=f"worker {number}") for number in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for number in range(3):
        (outer,) = run.named(f"outer {number}")
        inside = [each for each in run.named("step") if each.track_id == outer.track_id]
        assert len(inside) == 1
        assert outer.ts <= inside[0].ts
        assert inside[0].ts + inside[0].dur <= outer.ts + outer.dur
        assert inside[0].ts + inside[0].dur >= leaving_ns[number], "ended with its own thread's block"
    assert run.report["out_of_order"] == run.report["unfinished"] == 0


def test_tasks_that_overlap(tmp_path: Path) -> None:
    with recording(tmp_path, "host") as run:
        shared = gputrace.span("step")

        async def work(number: int) -> None:
            with gputrace.span(f"outer {number}"), shared:
                for _ in range(number + 1):
                    await asyncio.sleep(0)

        async def main() -> None:
            await asyncio.gather(*(work(number) for number in range(3)))

        asyncio.run(main())
    for number in range(3):
        (outer,) = run.named(f"outer {number}")
        end = outer.ts + outer.dur
        inside = [s for s in run.named("step") if s.track_id == outer.track_id and outer.ts <= s.ts <= end]
        assert [each.depth for each in inside] == [outer.depth + 1]
    assert run.report["out_of_order"] == run.report["unfinished"] == 0


def test_made_here_and_entered_there(tmp_path: Path) -> None:
    with recording(tmp_path, "host") as run:
        made = gputrace.span("job")

        def work() -> None:
            with made:
                pass

        with gputrace.span("mine"):
            thread = threading.Thread(target=work, name="elsewhere")
            thread.start()
            thread.join()
    (job,) = run.named("job")
    assert "elsewhere" in job.track[-1]
    assert job.depth == 0


class Phase:
    """A class of the program's own around a span."""

    def __init__(self, name: str) -> None:
        self.span = gputrace.span(name)

    def __enter__(self) -> Phase:
        self.span.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.span.__exit__(*error)  # type: ignore[arg-type]


def phased(name: str) -> Iterator[int]:
    with Phase(name):
        yield 1
        yield 2


def test_a_class_around_a_span_in_generators(tmp_path: Path) -> None:
    with recording(tmp_path, "host") as run:
        a, b = phased("A"), phased("B")
        next(a)
        next(b)
        a.close()
        with gputrace.span("between"):
            pass
        b.close()
        with Phase("plain"), gputrace.span("inside"):
            pass
    assert run.report["out_of_order"] == 0
    (between,), (b_slice,) = run.named("between"), run.named("B")
    assert b_slice.ts < between.ts
    assert between.ts + between.dur <= b_slice.ts + b_slice.dur, "B ends where it ended"
    (plain,), (inside,) = run.named("plain"), run.named("inside")
    assert (plain.track_id, plain.depth, inside.depth) == (inside.track_id, 0, 1)


def test_made_before_tracing_and_entered_when_it_is_on(tmp_path: Path) -> None:
    """A library's module-level span, and a decorator applied at import."""
    early = gputrace.span("early", k=1)
    plain = gputrace.span("plain")
    with early, plain:
        pass
    with recording(tmp_path, "host") as run:
        with early, plain, early:
            pass
        with plain:
            pass
    with early, plain:
        pass
    assert [(each.name, each.depth) for each in run.host] == [("early", 0), ("plain", 1), ("early", 2), ("plain", 0)]
    assert {each.args.get("k") for each in run.named("early")} == {1}
    assert run.report["unfinished"] == 0
