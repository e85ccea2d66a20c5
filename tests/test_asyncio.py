"""Spans across awaits: tasks interleave on one thread, and each span still has its own begin, end and parent."""

from __future__ import annotations

import asyncio
import random
import sys
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import gputrace
from tests.recorded import Run, recording


class Log:
    """When each span of the program began and ended, by its own clock."""

    def __init__(self) -> None:
        self.at: dict[str, list[int]] = {}

    def __call__(self, name: str) -> None:
        self.at.setdefault(name, []).append(time.monotonic_ns())

    def compare(self, run: Run) -> None:
        """Every span logged is drawn once; its edges lie between the clock reads around them."""
        drawn = {s.name: s for s in run.slices}
        assert len(drawn) == len(run.slices)
        assert sorted(drawn) == sorted(self.at)
        for name, (b0, b1, e0, e1) in self.at.items():
            s = drawn[name]
            assert b0 <= s.ts <= b1, name
            assert s.dur >= 0, name
            assert e0 <= s.ts + s.dur <= e1, name
        assert run.report["out_of_order"] == run.report["unfinished"] == 0


class logged:
    """A span that logs both sides of both its edges."""

    def __init__(self, log: Log, name: str, **args: Any) -> None:
        self.log = log
        self.name = name
        self.span = gputrace.span(name, **args)

    def __enter__(self) -> None:
        self.log(self.name)
        self.span.__enter__()
        self.log(self.name)

    def __exit__(self, *error: Any) -> None:
        self.log(self.name)
        self.span.__exit__(*error)
        self.log(self.name)


def test_two_hundred_gathered_tasks(tmp_path: Path) -> None:
    log = Log()
    dice = random.Random(7)
    hops = [[dice.randrange(4) for _ in range(6)] for _ in range(200)]

    async def task(n: int) -> None:
        with logged(log, f"t{n}"):
            await hop(hops[n][0])
            with logged(log, f"t{n}.a"):
                await hop(hops[n][1])
                with logged(log, f"t{n}.a.b"):
                    await hop(hops[n][2])
            await hop(hops[n][3])
            with logged(log, f"t{n}.c"):
                await hop(hops[n][4])
        await hop(hops[n][5])

    async def main() -> None:
        await asyncio.gather(*(task(n) for n in range(200)))

    with recording(tmp_path, "host") as run:
        asyncio.run(main())
    log.compare(run)
    for s in run.slices:
        path = s.name.split(".")
        assert s.depth == len(path) - 1
        assert run.parent_name(s) == (".".join(path[:-1]) or None), s


async def hop(times: int) -> None:
    for _ in range(times):
        await asyncio.sleep(0)


def test_plain_code_and_tasks_in_one_thread(tmp_path: Path) -> None:
    """Plain spans keep the thread's own track, whatever tasks do meanwhile."""
    log = Log()

    async def task(n: int) -> None:
        with logged(log, f"t{n}"):
            await hop(n)
            helper(f"h{n}")
            await hop(3 - n)

    def helper(name: str) -> None:
        with logged(log, name):
            pass

    async def main() -> None:
        await asyncio.gather(*(task(n) for n in range(3)))

    with recording(tmp_path, "host") as run:
        with logged(log, "before"):
            helper("in before")
        with logged(log, "around"):
            asyncio.run(main())
        with logged(log, "after"):
            pass
    log.compare(run)
    own = {s.name for s in run.slices if s.track[-1].startswith("MainThread")}
    assert own == {"before", "in before", "around", "after"}
    assert {s.name: s.depth for s in run.slices if s.name in own} == {
        "before": 0, "in before": 1, "around": 0, "after": 0,
    }  # fmt: skip
    for n in range(3):
        assert run.parent_name(run.named(f"h{n}")[0]) == f"t{n}"


def test_windows_on_streams_in_tasks(tmp_path: Path) -> None:
    async def task(run: Run, stream: Any, n: int) -> None:
        with gputrace.span(f"t{n}", stream=stream):
            stream.launch(1000 * (n + 1))
            await hop(n % 3)
            with gputrace.span(f"t{n}.in", stream=stream):
                stream.launch(500)
                await hop(1)

    async def main(run: Run) -> None:
        streams = [run.stream(), run.stream()]
        await asyncio.gather(*(task(run, streams[n % 2], n) for n in range(20)))

    with recording(tmp_path) as run:
        asyncio.run(main(run))
    assert (run.report["windows"], run.report["slices"]) == (40, 80)
    assert run.report["out_of_order"] == 0
    for side in (run.host, run.device):
        assert len({s.name for s in side}) == len(side) == 40
        for s in side:
            assert run.parent_name(s) == (s.name[:-3] if s.name.endswith(".in") else None)


def test_to_thread(tmp_path: Path) -> None:
    """A thread that a task sends work to has its own track: it gets only the task's context variables."""
    tids: dict[str, int] = {}

    def work(name: str) -> None:
        tids[name] = threading.get_native_id()
        with gputrace.span(name), gputrace.span(f"{name} in"):
            pass

    async def task(n: int) -> None:
        with gputrace.span(f"t{n}"):
            await asyncio.to_thread(work, f"w{n}")

    async def main() -> None:
        await asyncio.gather(*(task(n) for n in range(8)))

    with recording(tmp_path, "host") as run:
        asyncio.run(main())
    assert len(run.slices) == 24
    for n in range(8):
        (outer,), (inner,) = run.named(f"w{n}"), run.named(f"w{n} in")
        assert outer.track[-1].endswith(f" {tids[f'w{n}']}")
        assert outer.depth == 0
        assert run.parent_name(inner) == f"w{n}"
        (task_slice,) = run.named(f"t{n}")
        assert task_slice.ts <= outer.ts
        assert outer.ts + outer.dur <= task_slice.ts + task_slice.dur


def test_cancelled_tasks_end_their_spans(tmp_path: Path) -> None:
    log = Log()

    async def task(n: int) -> None:
        with logged(log, f"t{n}"), logged(log, f"t{n}.in"):
            await asyncio.Event().wait()

    async def main() -> None:
        tasks = [asyncio.create_task(task(n)) for n in range(10)]
        await hop(2)
        for each in reversed(tasks):
            each.cancel()
        assert all(isinstance(e, asyncio.CancelledError) for e in await asyncio.gather(*tasks, return_exceptions=True))

    with recording(tmp_path, "host") as run:
        asyncio.run(main())
    log.compare(run)
    assert {s.args.get("error") for s in run.slices} == {"CancelledError"}


def test_a_task_group_that_fails(tmp_path: Path) -> None:
    log = Log()

    async def good(n: int) -> None:
        with logged(log, f"g{n}"):
            await asyncio.Event().wait()

    async def bad() -> None:
        with logged(log, "bad"):
            await hop(2)
            raise KeyError("x")

    async def main() -> None:
        with logged(log, "group"):
            async with asyncio.TaskGroup() as group:
                for n in range(3):
                    group.create_task(good(n))
                group.create_task(bad())

    with recording(tmp_path, "host") as run, pytest.raises(ExceptionGroup):
        asyncio.run(main())
    log.compare(run)
    errors = {s.name: s.args.get("error") for s in run.slices}
    assert errors == dict.fromkeys(("g0", "g1", "g2"), "CancelledError") | {
        "bad": "KeyError",
        "group": "ExceptionGroup",
    }


def test_async_generators_interleaved(tmp_path: Path) -> None:
    log = Log()

    async def items(name: str) -> AsyncIterator[int]:
        with logged_in_generator(log, name) as span, span:
            for i in range(3):
                yield i

    async def main() -> None:
        first, second = items("first"), items("second")
        async for _ in first:
            async for _ in second:
                break
        await second.aclose()

    with recording(tmp_path, "host") as run:
        asyncio.run(main())
    assert {s.name for s in run.slices} == {"first", "second"}
    assert run.report["out_of_order"] == run.report["unfinished"] == 0
    first, second = run.named("first")[0], run.named("second")[0]
    assert first.ts < second.ts < first.ts + first.dur < second.ts + second.dur


def logged_in_generator(log: Log, name: str) -> Any:
    """The span itself: `with` must stand in the generator for it to be seen there."""

    class Pass:
        def __enter__(self) -> Any:
            return gputrace.span(name)

        def __exit__(self, *error: Any) -> None:
            return None

    return Pass()


def test_an_async_context_manager_helper(tmp_path: Path) -> None:
    @asynccontextmanager
    async def phase(name: str) -> AsyncIterator[None]:
        with gputrace.span(name):
            yield

    async def task(n: int) -> None:
        async with phase(f"t{n}"):
            await hop(n)
            with gputrace.span(f"t{n} in"):
                await hop(2)

    async def main() -> None:
        await asyncio.gather(*(task(n) for n in range(5)))

    with recording(tmp_path, "host") as run:
        asyncio.run(main())
    assert len({s.name for s in run.slices}) == len(run.slices) == 10
    assert run.report["out_of_order"] == run.report["unfinished"] == 0
    for n in range(5):
        (outer,), (inner,) = run.named(f"t{n}"), run.named(f"t{n} in")
        assert outer.ts <= inner.ts
        assert inner.ts + inner.dur <= outer.ts + outer.dur


def test_callbacks_of_the_loop(tmp_path: Path) -> None:
    """Code that the loop calls outside any task."""
    log = Log()

    def callback(n: int) -> None:
        with logged(log, f"c{n}"), logged(log, f"c{n}.in"):
            pass

    async def main() -> None:
        with logged(log, "main"):
            for n in range(3):
                asyncio.get_running_loop().call_soon(callback, n)
            await hop(3)

    with recording(tmp_path, "host") as run:
        asyncio.run(main())
    log.compare(run)
    assert [run.parent_name(run.named(f"c{n}.in")[0]) for n in range(3)] == ["c0", "c1", "c2"]


def test_two_loops_in_two_threads(tmp_path: Path) -> None:
    log = Log()

    async def task(name: str, n: int) -> None:
        with logged(log, f"{name}{n}"):
            await hop(n)

    async def main(name: str) -> None:
        await asyncio.gather(*(task(name, n) for n in range(20)))

    with recording(tmp_path, "host") as run:
        threads = [threading.Thread(target=lambda name=name: asyncio.run(main(name)), name=name) for name in "AB"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    log.compare(run)
    for s in run.slices:
        assert s.track[-2].startswith(f"{s.name[0]} ")


def test_a_program_that_runs_no_loop_does_not_get_asyncio(tmp_path: Path) -> None:
    import subprocess

    code = (
        "import sys, gputrace\n"
        "with gputrace.trace(sys.argv[1], device='host'):\n"
        "    with gputrace.span('x'): pass\n"
        "assert 'asyncio' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "t.pftrace")], check=True)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks came with 3.12")
def test_eager_tasks(tmp_path: Path) -> None:
    log = Log()

    async def child(n: int) -> None:
        with logged(log, f"c{n}"):
            await hop(n)

    async def main() -> None:
        asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined]
        with logged(log, "main"):
            await asyncio.gather(*(asyncio.create_task(child(n)) for n in range(5)))

    with recording(tmp_path, "host") as run:
        asyncio.run(main())
    log.compare(run)
