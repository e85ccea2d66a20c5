"""Many threads, short-lived ones, foreign ones: each has its own track, and none of ours is among the program's."""

from __future__ import annotations

import _thread
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import gputrace
from gputrace import hot
from tests.hot.twin import host_threads
from tests.recorded import Run, recording


def all_at_once(count: int, work: Callable[[int], None]) -> None:
    gate = threading.Barrier(count)

    def run(n: int) -> None:
        gate.wait()
        work(n)

    threads = [threading.Thread(target=run, args=(n,), name=f"thread {n}") for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def wait_for(condition: Callable[[], bool], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.001)


def test_sixty_four_threads(tmp_path: Path) -> None:
    """On their own tracks, and on four streams that they share."""
    truth: dict[str, tuple[int, int, int]] = {}

    with recording(tmp_path) as run:
        streams = [run.stream(f"s{n}") for n in range(4)]

        def work(n: int) -> None:
            stream = streams[n % 4]
            for k in range(10):
                name = f"{n}.{k}"
                with gputrace.span(name, stream), gputrace.span(f"{name} in", stream, n=n):
                    stream.launch(50)
                begin, *_, end = (stamp.host_ns for stamp in run.gpu.mine()[-4:])
                truth[name] = (threading.get_native_id(), begin, end)

        all_at_once(64, work)
    assert len(run.host) == len(run.device) == 64 * 10 * 2
    assert run.report["out_of_order"] == run.report["dropped"] == run.report["unfinished"] == 0
    bound = run.report["worst_uncertainty_ns"]
    for side in (run.host, run.device):
        assert len({s.name for s in side}) == len(side)
        for s in side:
            inner = (s.name or "").endswith(" in")
            assert s.depth == int(inner)
            assert run.parent_name(s) == ((s.name or "")[:-3] if inner else None)
    for name, (tid, begin, end) in truth.items():
        host, device = sorted(run.named(name), key=lambda s: s.track[-1].startswith("s"))
        assert host.track[-1] == f"thread {name.split('.')[0]} {tid}"
        assert device.track[-1] == f"s{int(name.split('.')[0]) % 4}"
        assert abs(device.ts - begin) <= bound
        assert abs(device.ts + device.dur - end) <= bound


def test_thousands_of_short_lived_threads(tmp_path: Path) -> None:
    """Each leaves its slices and nothing else: threads reuse ids, and what was kept for them goes."""

    def work(n: int) -> None:
        with gputrace.span(f"s{n}", n=n), gputrace.span("in"):
            pass

    with recording(tmp_path, "host") as run:
        most = 0
        for n in range(2000):
            thread = threading.Thread(target=work, args=(n,), name=f"t{n}")
            thread.start()
            thread.join()
            most = max(most, host_threads())
            if n % 400 == 399:
                wait_for(lambda: host_threads() == 0)
    assert most <= 400
    assert len(run.slices) == 4000
    for n in range(2000):
        (s,) = run.named(f"s{n}")
        assert s.track[-1].startswith(f"t{n} ")
        assert (s.depth, s.args) == (0, {"n": n})


def test_short_lived_threads_with_loops_of_their_own(tmp_path: Path) -> None:
    """Their task lanes go with them."""
    import asyncio

    async def main(n: int) -> None:
        with gputrace.span(f"task {n}"):
            await asyncio.sleep(0)

    with recording(tmp_path, "host") as run:
        for n in range(50):
            thread = threading.Thread(target=lambda n=n: asyncio.run(main(n)))  # type: ignore[misc]
            thread.start()
            thread.join()
        wait_for(lambda: host_threads() == 0)
    assert sorted(s.name or "" for s in run.slices) == sorted(f"task {n}" for n in range(50))


def test_threads_that_python_did_not_start(tmp_path: Path) -> None:
    """They are traced without becoming known to `threading`."""
    done = _thread.allocate_lock()
    done.acquire()

    def work() -> None:
        with gputrace.span("foreign"):
            pass
        done.release()

    with recording(tmp_path, "host") as run:
        before = threading.enumerate()
        _thread.start_new_thread(work, ())
        done.acquire()
        assert threading.enumerate() == before
    assert [s.name for s in run.slices] == ["foreign"]


def test_names_of_threads(tmp_path: Path) -> None:
    def work() -> None:
        with gputrace.span("x"):
            pass

    with recording(tmp_path, "host") as run:
        work()
        for name in ("loader", "loader", "trainer"):
            thread = threading.Thread(target=work, name=name)
            thread.start()
            thread.join()
    names = [s.track[-1].rsplit(" ", 1)[0] for s in run.slices]
    assert names == ["MainThread", "loader", "loader", "trainer"]
    assert len({s.track_id for s in run.slices}) == 4


def our_threads() -> set[str]:
    return set(os.listdir("/proc/self/task")) - {str(thread.native_id) for thread in threading.enumerate()}


@pytest.mark.parametrize("device", ["host", "simulated"])
def test_the_collector_is_no_thread_of_the_programs_and_ends(tmp_path: Path, device: str) -> None:
    before, known = our_threads(), threading.enumerate()
    with recording(tmp_path, device) as run:
        assert our_threads() == before, "started before the first span"
        with gputrace.span("x", run.stream()):
            pass
        reads_on = device != "host" and hot.TWIN == "compiled"  # one more, for a disk that keeps the collector waiting
        wait_for(lambda: len(our_threads() - before) == 1 + reads_on)
        assert threading.enumerate() == known
        assert threading.active_count() == len(known)
    assert our_threads() == before
    assert threading.enumerate() == known


def test_use_stream_is_the_threads_own(tmp_path: Path) -> None:
    with recording(tmp_path) as run:
        a, b = run.stream("a"), run.stream("b")
        gate = threading.Barrier(2)

        def work(stream: Any, name: str) -> None:
            with gputrace.span(f"{name} before"), gputrace.use_stream(stream):
                gate.wait()
                with gputrace.span(f"{name} inside"):
                    gate.wait()
            with gputrace.span(f"{name} after"):
                pass

        threads = [threading.Thread(target=work, args=pair) for pair in ((a, "one"), (b, "two"))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert {(s.name, s.track[-1]) for s in run.device} == {("one inside", "a"), ("two inside", "b")}


def test_use_stream_nests_and_restores(tmp_path: Path) -> None:
    def opened(run: Run, name: str) -> None:
        with gputrace.span(name):
            pass

    class Stop(Exception):
        pass

    with recording(tmp_path) as run:
        a, b = run.stream("a"), run.stream("b")
        opened(run, "none 0")
        again = gputrace.use_stream(a)
        with again:
            opened(run, "a 0")
            with gputrace.use_stream(b):
                opened(run, "b 0")
                with again:
                    opened(run, "a 1")
                with gputrace.use_stream(None):
                    opened(run, "none 1")
                with gputrace.use_stream("no stream"):
                    opened(run, "none 2")
                opened(run, "b 1")
                with gputrace.span("a 2", stream=a):
                    pass
            with pytest.raises(Stop), gputrace.use_stream(b):
                raise Stop
            opened(run, "a 3")
        opened(run, "none 3")
    drawn = {s.name: s.track[-1] for s in run.device}
    assert drawn == {name: name[0] for name in ("a 0", "b 0", "a 1", "b 1", "a 2", "a 3")}
    assert len(run.host) == 10


def test_the_default_stream_only_when_passed(tmp_path: Path) -> None:
    """An event on the legacy stream orders the program's other streams: it must be asked for."""
    with recording(tmp_path) as run:
        with gputrace.span("not"):
            pass
        with gputrace.use_stream(None), gputrace.span("nor this"):
            pass
        with gputrace.span("this", stream=0), gputrace.use_stream(0), gputrace.span("and this"):
            pass
    assert {s.name: (s.track[-1], s.depth) for s in run.device} == {
        "this": ("default stream", 0),
        "and this": ("default stream", 1),
    }


def test_failure_reaches_the_default_stream(tmp_path: Path) -> None:
    with recording(tmp_path) as run:
        with gputrace.span("default", stream=0), gputrace.span("other", stream=run.stream()):
            gputrace.failure("boom")
        with gputrace.span("later", stream=0):
            pass
    assert {s.name: s.args.get("error") for s in run.device} == {"default": "boom", "other": "boom", "later": None}
