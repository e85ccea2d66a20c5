"""`use_stream` is a block's, a thread's and a task's own: a window on another's stream would be a lie."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import gputrace
from tests.recorded import recording


def stream_of(run: object, name: str) -> str:
    """The row of the one GPU window of this name."""
    (window,) = (each for each in run.device if each.name == name)  # type: ignore[attr-defined]
    return str(window.track[-1])


def test_blocks_nest_and_can_opt_out(tmp_path: Path) -> None:
    with recording(tmp_path) as run:
        a, b = run.stream(), run.stream()
        with gputrace.use_stream(a):
            with gputrace.span("a"):
                pass
            with gputrace.use_stream(b), gputrace.span("b"):
                pass
            with gputrace.use_stream(None), gputrace.span("none"):
                pass
            with gputrace.span("passed", stream=b):
                pass
            with gputrace.span("a again"):
                pass
        with gputrace.span("outside"):
            pass
    assert sorted(each.name for each in run.device) == ["a", "a again", "b", "passed"]
    assert stream_of(run, "a") == stream_of(run, "a again") != stream_of(run, "b") == stream_of(run, "passed")


def test_tasks_of_one_loop(tmp_path: Path) -> None:
    async def work(stream: object, name: str, all_inside: asyncio.Barrier) -> None:
        with gputrace.use_stream(stream):
            await all_inside.wait()
            with gputrace.span(name):
                await all_inside.wait()

    async def main(streams: list[object]) -> None:
        all_inside = asyncio.Barrier(len(streams))
        await asyncio.gather(*(work(s, f"task {n}", all_inside) for n, s in enumerate(streams)))
        with gputrace.span("after"):
            pass

    with recording(tmp_path) as run:
        streams = [run.stream() for _ in range(5)]
        asyncio.run(main(list(streams)))
    assert len({stream_of(run, f"task {n}") for n in range(5)}) == 5
    for n, stream in enumerate(streams):
        assert stream_of(run, f"task {n}") == stream.name
    assert not [each for each in run.device if each.name == "after"]


def test_what_a_block_starts(tmp_path: Path) -> None:
    """Tasks and `to_thread` calls inherit the stream, as they do any context; plain threads begin without."""

    def work(name: str) -> None:
        with gputrace.span(name):
            pass

    async def main(stream: object) -> None:
        with gputrace.use_stream(stream):
            await asyncio.to_thread(work, "handed to a thread")
            await asyncio.create_task(asyncio.to_thread(work, "in a task"))
            thread = threading.Thread(target=work, args=("a thread",))
            thread.start()
            thread.join()

    with recording(tmp_path) as run:
        asyncio.run(main(run.stream()))
    assert sorted(each.name for each in run.device) == ["handed to a thread", "in a task"]


def test_a_recording_does_not_inherit_the_last_one_s_stream(tmp_path: Path) -> None:
    with recording(tmp_path) as run:
        entered = gputrace.use_stream(run.stream())
        entered.__enter__()
    with recording(tmp_path) as run:
        with gputrace.span("x"):
            pass
        entered.__exit__(None, None, None)
        with gputrace.span("y"):
            pass
    assert [each.name for each in run.host] == ["x", "y"]
    assert run.device == []
