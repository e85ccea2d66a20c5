"""Slices that are begun and ended without the GIL, by the functions that torch's operators are recorded with: in order
with the thread's own spans, while others record, and while recordings end under them."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import gputrace
from gputrace import hot
from tests.engine import Engine, assert_clean, slices
from tests.hot.twin import in_twin
from tests.record.running import recording as record_command
from tests.record.running import run
from tests.recorded import recording

pytestmark = pytest.mark.skipif(
    not getattr(sys, "_is_gil_enabled", lambda: True)(), reason="without a GIL there is none to do without"
)
ELSEWHERE = 2**64 - 1


class Operators:
    """The table's functions, as a library of C++ has them: the last two are called without the GIL."""

    def __init__(self) -> None:
        get = ctypes.pythonapi.PyCapsule_GetPointer
        get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        table = (ctypes.c_void_p * 3).from_address(get(hot.OPERATORS, b"gputrace.hot._hot.OPERATORS"))
        number, u32 = ctypes.c_uint64, ctypes.c_uint32
        self._name = ctypes.PYFUNCTYPE(u32, ctypes.c_char_p, ctypes.c_size_t, ctypes.POINTER(u32))(table[0])
        self.begin = ctypes.CFUNCTYPE(number, u32, u32)(table[1])
        self.end = ctypes.CFUNCTYPE(None, number, u32)(table[2])

    def name(self, name: bytes) -> tuple[int, int]:
        """Its id, and the recording's generation."""
        generation = ctypes.c_uint32()
        return self._name(name, len(name), ctypes.byref(generation)), generation.value

    def run(self, name: bytes, inside: Callable[[], object] = lambda: None) -> bool:
        """An operator with something inside it; whether it was begun here."""
        known, generation = self.name(name)
        number = self.begin(known, generation)
        inside()
        if number in (0, ELSEWHERE):
            return False
        self.end(number, generation)
        return True


def awake() -> None:
    with gputrace.span("first"):
        """The collector is awake."""


@in_twin("compiled")
def test_in_order_with_spans(tmp_path: Path) -> None:
    operators = Operators()

    def inside() -> None:
        with gputrace.span("in it"):
            operators.run(b"inner")

    with recording(tmp_path) as run:
        awake()
        with gputrace.span("around"):
            assert operators.run(b"outer", inside)
    order = ["first", "around", "outer", "in it", "inner"]
    assert [each.name for each in run.host] == order
    assert [run.parent_name(each) for each in run.host] == [None, None, "around", "outer", "in it"]
    assert run.report["clamped"] == 0


@in_twin("compiled")
def test_what_takes_python_is_left_to_it(tmp_path: Path) -> None:
    operators = Operators()
    began: dict[str, bool] = {}

    async def task() -> None:
        with gputrace.span("of a task"):
            began["in a task's span"] = operators.run(b"op")
        began["behind it"] = operators.run(b"op")

    with recording(tmp_path) as run:
        awake()
        asyncio.run(task())
        hot.pause()
        began["paused"] = operators.run(b"op")
        hot.resume()
        before = operators.name(b"op")
        with gputrace.use_stream(run.stream()):
            began["with a stream"] = operators.run(b"op")
    assert operators.begin(*before) == 0
    assert not operators.run(b"op")
    with recording(tmp_path):
        awake()
        assert operators.begin(*before) == ELSEWHERE
    assert began == {"in a task's span": False, "behind it": True, "paused": False, "with a stream": False}


@in_twin("compiled")
def test_a_span_that_another_thread_ends_meanwhile(tmp_path: Path) -> None:
    operators = Operators()
    opened, done = threading.Event(), threading.Event()
    windows: list[gputrace.hot.pure.Window] = []
    begun = 0

    def work() -> None:
        nonlocal begun
        awake()
        windows.extend(gputrace.window("window") for _ in range(2000))
        opened.set()
        while not done.is_set():
            begun += operators.run(b"op")

    with recording(tmp_path) as run:
        thread = threading.Thread(target=work)
        thread.start()
        opened.wait()
        for window in windows:
            window.close()
        done.set()
        thread.join()
    assert len(run.named("window")) == 2000
    assert len(run.named("op")) == begun
    assert min(each.dur for each in run.host) >= 0


@in_twin("compiled")
def test_recordings_that_end_under_it(tmp_path: Path) -> None:
    operators = Operators()
    done = threading.Event()

    def work() -> None:
        while not done.is_set():
            known, generation = operators.name(b"op")
            for _ in range(100):
                number = operators.begin(known, generation)
                if number not in (0, ELSEWHERE):
                    operators.end(number, generation)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(10):
        with recording(tmp_path, check=False) as run:
            awake()
            begun = sum(operators.run(b"mine") for _ in range(10))
        assert len(run.named("mine")) == begun
    done.set()
    for thread in threads:
        thread.join()


KILLED = """
import gputrace, os, signal
from tests.hot.test_operators import Operators, awake
operators = Operators()
awake()
with gputrace.span("around"):
    for _ in range(100):
        operators.run(b"op")
    operators.run(b"last", lambda: os.kill(os.getpid(), signal.SIGKILL))
"""


@in_twin("compiled")
def test_what_a_kill_leaves(tmp_path: Path) -> None:
    (tmp_path / "killed.py").write_text(KILLED)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = run(record_command(sys.executable, "killed.py", output="t.pftrace"), tmp_path, env=environment)
    assert done.returncode == -signal.SIGKILL, done.stderr
    engine = Engine(tmp_path / "t.pftrace")
    assert_clean(engine)
    found = [each.name for each in slices(engine)]
    assert found == ["first", "around", *["op"] * 100, "last"]
