"""What the program's signal handlers raise inside gputrace reaches the program, whatever class it is of."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import gputrace
from gputrace.fence import let_through
from tests.recorded import recording


class Slow:
    """Its hash and its text take long enough for a signal to come."""

    def __init__(self) -> None:
        self.cuda_stream = 1

    def __str__(self) -> str:
        for _ in range(300):
            pass
        return "slow"

    def __hash__(self) -> int:
        return len(str(self))


RUNG: list[int] = []


class Timeout(Exception):
    pass


def function(number: int, frame: FrameType | None) -> None:
    RUNG.append(number)
    raise Timeout


class Handler:
    def __call__(self, number: int, frame: FrameType | None) -> None:
        RUNG.append(number)
        raise ValueError("a timeout of this program's")

    def method(self, number: int, frame: FrameType | None) -> None:
        RUNG.append(number)
        raise RuntimeError("another")


@pytest.mark.skipif(sys.platform == "win32", reason="there are no interval timers")
@pytest.mark.parametrize(
    ("handler", "raised"),
    [(function, Timeout), (Handler(), ValueError), (Handler().method, RuntimeError)],
    ids=["function", "object", "method"],
)
def test_every_alarm_is_heard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, handler: Callable[..., Any], raised: type[Exception]
) -> None:
    RUNG.clear()
    before = signal.signal(signal.SIGALRM, handler)
    ignored: list[object] = []  # what Python itself ignores, because it was raised inside a finaliser
    monkeypatch.setattr(sys, "unraisablehook", ignored.append)
    heard = 0
    try:
        with recording(tmp_path, leaked_events=None, check=False) as run:
            stream = run.stream()
            with gputrace.span("first", stream=stream):
                pass  # what it imports: the import system drops a ValueError that is raised in places of its own

            def until_it_rings(after_s: float) -> None:
                # In a frame of its own: not every instruction of a `try` around a loop is inside it.
                rang = len(RUNG)
                signal.setitimer(signal.ITIMER_REAL, after_s)
                while len(RUNG) == rang:
                    with gputrace.use_stream(stream), gputrace.span("a", k=Slow()):
                        gputrace.counter("c", Slow())  # type: ignore[arg-type]
                    with gputrace.span(Slow(), stream=Slow()):  # type: ignore[arg-type]
                        gputrace.failure(Slow())

            for number in range(400):
                try:
                    until_it_rings(20e-6 + number * 1e-6)
                except raised:
                    heard += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert heard + len(ignored) == len(RUNG) == 400


def test_what_is_not_a_handler_s_stays() -> None:
    def fails() -> None:
        raise KeyError("x")

    try:
        fails()
    except KeyError as error:
        let_through(error)
    with pytest.raises(KeyError):
        fails()
