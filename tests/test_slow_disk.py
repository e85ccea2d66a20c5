"""A disk that keeps the collector waiting: devices are read meanwhile, and the trace is as beside a quick one."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import pytest

import gputrace
from gputrace import tracer
from gputrace.shardfile import ShardFile
from tests.hot.twin import in_twin
from tests.recorded import recording

LIMIT_S = 60.0


class Disk:
    """While it is ``stuck``, no write comes back; ``asked`` is set while one waits."""

    def __init__(self) -> None:
        self.free = threading.Event()
        self.free.set()
        self.asked = threading.Event()

    @contextlib.contextmanager
    def stuck(self) -> Iterator[None]:
        """Let the block begin when a write waits, and that write go on at its end."""
        self.asked.clear()
        self.free.clear()
        try:
            with gputrace.span("something to write"):
                pass
            assert self.asked.wait(LIMIT_S)
            yield
        finally:
            self.free.set()


@contextlib.contextmanager
def disk() -> Iterator[Disk]:
    made, flush = Disk(), ShardFile.flush

    def slow_flush(file: ShardFile) -> None:
        if file.kept and not made.free.is_set():
            made.asked.set()
            assert made.free.wait(LIMIT_S)
        flush(file)

    with mock.patch.object(ShardFile, "flush", slow_flush):
        yield made


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def in_flight() -> int:
    running = tracer.current()
    assert running is not None
    return sum(device.in_flight for device in running._devices_now())


@in_twin("compiled")
@pytest.mark.parametrize("suffix", [".pftrace", ".json"])
def test_windows_come_back_before_the_write_does(tmp_path: Path, suffix: str) -> None:
    rounds, windows = 4, 200
    with disk() as slow, recording(tmp_path, suffix=suffix) as run:
        stream, other = run.stream(), run.stream()
        with gputrace.span("first", stream):
            pass
        for _ in range(rounds):
            with slow.stuck():
                with gputrace.span("outer", other):
                    for number in range(windows):
                        with gputrace.span("inner", stream, number=number):
                            pass
                    wait_until(lambda: in_flight() == 1)  # the outer one
                wait_until(lambda: in_flight() == 0)
                assert not slow.free.is_set()
            wait_until(lambda: not any(device.unread for device in tracer.current()._devices_now()))  # type: ignore[union-attr]
    assert run.report["windows"] == rounds * (windows + 1) + 1
    assert run.report["dropped"] == run.report["failed"] == run.report["unfinished"] == 0
    assert len(run.host) == rounds * (windows + 2) + 1
    begun = [s.args["number"] for s in run.device if s.name == "inner"]
    assert begun == [*range(windows)] * rounds
    assert {run.parent_name(s) for s in run.host if s.name == "inner"} == {"outer"}
    # Each window's arrow comes from the slice that launched it: drawn before it, though read long before.
    assert run.engine is not None
    assert run.engine.query("SELECT count(*) AS n FROM flow")[0]["n"] == run.report["windows"]


@in_twin("compiled")
def test_the_end_comes_while_the_disk_is_busy(tmp_path: Path) -> None:
    with disk() as slow, recording(tmp_path) as run:
        stream = run.stream()
        with gputrace.span("first", stream):
            pass
        with slow.stuck():
            for _ in range(100):
                with gputrace.span("x", stream):
                    pass
            wait_until(lambda: in_flight() == 0)
            later = threading.Timer(0.2, slow.free.set)
            later.start()
            running = tracer.current()
            assert running is not None
            running.stop()
    assert run.report["windows"] == 101
    assert len(run.device) == 101


@pytest.mark.slow
def test_a_fork_while_the_disk_is_busy(tmp_path: Path) -> None:
    """In either twin: the parent's threads and locks are not the child's, and the parent goes on."""
    with disk() as slow, recording(tmp_path) as run:
        stream = run.stream()
        with gputrace.span("first", stream):
            pass
        with slow.stuck():
            for _ in range(100):
                with gputrace.span("before", stream):
                    pass
            pid = os.fork()
            if not pid:
                slow.free.set()
                with gputrace.span("in the child"):
                    pass
                os._exit(0)
            assert os.waitpid(pid, 0)[1] == 0
            for _ in range(100):
                with gputrace.span("after", stream):
                    pass
    assert [s.name for s in run.device] == ["first", *["before"] * 100, *["after"] * 100]
