"""A signal's handler that records the process itself, while its main thread starts or stops a recording."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import gputrace
from gputrace import api, tracer
from gputrace.errors import UsageError
from tests.engine import Engine, assert_clean, slices

#: Where the signal comes: before the function is run and after.
STARTING = [(api.recording, "start_recording"), (tracer, "Tracer"), (tracer.Tracer, "start")]
STOPPING = [(tracer.Tracer, "stop"), (api.recording, "finish_recording")]


@pytest.fixture(params=[*STARTING, *STOPPING], ids=lambda place: place[1])
def place(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def on_signal() -> Iterator[Callable[[Callable[[], None]], None]]:
    before = signal.getsignal(signal.SIGUSR1)
    yield lambda handle: (signal.signal(signal.SIGUSR1, lambda *_: handle()), None)[1]
    signal.signal(signal.SIGUSR1, before)
    assert tracer.current() is None


def signalled(owner: Any, name: str, when: str) -> Any:
    """The function, and a signal at one of its ends."""
    function = getattr(owner, name)

    def call(*arguments: Any, **named: Any) -> Any:
        if when == "before":
            signal.raise_signal(signal.SIGUSR1)
        result = function(*arguments, **named)
        if when == "after":
            signal.raise_signal(signal.SIGUSR1)
        return result

    return mock.patch.object(owner, name, call)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_handler_that_starts_another(tmp_path: Path, place: Any, when: str, on_signal: Any) -> None:
    refused = []

    def handle() -> None:
        with pytest.raises(UsageError, match="being recorded already"):
            gputrace.trace(tmp_path / "other.pftrace", device="host").start()
        refused.append(True)

    on_signal(handle)
    with signalled(*place, when), gputrace.trace(tmp_path / "t.pftrace", device="host") as recording:
        for _ in range(100):
            with gputrace.span("x"):
                pass
    assert refused == [True]
    assert recording.summary is not None
    assert recording.summary.slices == 100
    engine = Engine(tmp_path / "t.pftrace")
    assert_clean(engine)
    assert len(slices(engine)) == 100
    assert [path.name for path in tmp_path.iterdir()] == ["t.pftrace"]
    with gputrace.trace(tmp_path / "next.pftrace", device="host") as again, gputrace.span("x"):
        pass
    assert again.summary is not None
    assert again.summary.slices == 1


class Interrupt(BaseException):
    pass


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("place", STARTING[1:], ids=lambda place: place[1])
def test_a_handler_that_raises(tmp_path: Path, place: Any, when: str, on_signal: Any) -> None:
    """What it interrupted has not begun, and leaves nothing."""

    def handle() -> None:
        raise Interrupt

    on_signal(handle)
    recording = gputrace.trace(tmp_path / "t.pftrace", device="host")
    with signalled(*place, when), pytest.raises(Interrupt):
        recording.start()
    assert tracer.current() is None
    assert list(tmp_path.iterdir()) == []
    with recording, gputrace.span("x"):
        pass
    assert recording.summary is not None
    assert recording.summary.slices == 1
