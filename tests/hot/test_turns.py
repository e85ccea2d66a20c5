"""Calls of the core's collector: refused once their recording is over, short when somebody waits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest

import gputrace
from gputrace import tracer
from tests.hot.test_encoder import Sink
from tests.hot.twin import in_twin
from tests.recorded import recording

#: Of hot/native/hot.h.
LEAST_STEPS, MOST_ENCODED = 256, 1 << 20
NO_LIMIT = 1 << 30


class Core:
    """The core, recording, and a collector that is called by hand."""

    def __init__(self, open_thread: Callable[..., Any] | None = None, most_bytes: int = 1 << 30) -> None:
        from gputrace.hot import _hot, compiled

        self.hot, self.forget = _hot, compiled.forget_everything
        self.sink = Sink(False)
        self.forget()
        self.generation = _hot.begin(
            None,
            most_bytes,
            "p",
            False,
            lambda stream: None,
            lambda filling: None,
            open_thread or self.sink.open_thread,
            lambda number, tracks: None,
            ContextVar[Any]("none", default=None),
        )

    def spans(self, count: int) -> None:
        for _ in range(count):
            with self.hot.span("x"):
                pass

    def collect(self, anew: bool) -> bool:
        """Whether there is more."""
        return self.hot.collect_host(self.generation, NO_LIMIT, anew)[0]

    def take(self) -> int:
        """How many bytes were encoded."""
        return len(self.hot.take_encoded(self.generation))

    @property
    def slices(self) -> int:
        drawn: int = self.hot.state()["slices"]
        return drawn

    def stop(self) -> None:
        self.hot.set_hurried(False)
        self.hot.switch_off()
        self.forget()


@pytest.fixture
def core() -> Iterator[Core]:
    core = Core()
    yield core
    core.stop()


@in_twin("compiled")
def test_a_recording_that_is_over(core: Core) -> None:
    core.spans(10)
    late, core = core, Core()
    core.spans(10)
    hot, old = core.hot, late.generation
    calls: list[Callable[[], Any]] = [
        lambda: hot.collect_host(old, NO_LIMIT, True),
        lambda: hot.take_encoded(old),
        lambda: hot.take_edges(old),
        lambda: hot.place(old, [], bytes(72), 0, 0, 0, 1),
        lambda: hot.give_up(old, [], "why"),
        lambda: hot.epoch_pending(old, 1, 1),
        lambda: hot.epoch_commit(old),
        lambda: hot.remove_ring(old),
        lambda: hot.open_spans(old),
    ]
    for call in calls:
        with pytest.raises(RuntimeError, match="this recording is over"):
            call()
    assert not core.collect(True)
    assert core.slices == 10


@in_twin("compiled")
def test_no_recording_begins_while_a_call_is_inside() -> None:
    """It is refused, as nobody can say when that call comes back."""
    said = []

    def open_thread(*_: object) -> Any:
        with pytest.raises(RuntimeError, match="does not come back") as raised:
            core.forget()
        said.append(raised.value)
        return core.sink.open_thread(1, 1, "")

    core = Core(open_thread)
    core.spans(10)
    assert not core.collect(True)
    assert len(said) == 1
    assert core.slices == 10
    core.stop()


@in_twin("compiled")
def test_calls_are_short_where_somebody_waits(core: Core) -> None:
    core.spans(10 * LEAST_STEPS)
    core.hot.set_hurried(True)
    calls, more = 0, True
    while more:
        before = core.slices
        more = core.collect(not calls)
        calls += 1
        assert core.slices - before <= LEAST_STEPS
    assert core.slices == 10 * LEAST_STEPS
    assert calls >= 10


@in_twin("compiled")
def test_what_comes_meanwhile_is_for_the_next_time(core: Core) -> None:
    """However fast a thread is, the collector gets through and on to the devices."""
    core.spans(10)
    assert not core.collect(True)
    core.spans(10)
    assert not core.collect(False)
    assert core.slices == 10
    assert not core.collect(True)
    assert core.slices == 20


@in_twin("compiled")
@pytest.mark.parametrize("filling", [False, True])
def test_little_is_encoded_at_once_unless_the_rings_fill(filling: bool) -> None:
    core = Core(most_bytes=1 << 24 if filling else 1 << 30)
    core.spans(150_000)
    taken, anew, more = [], True, True
    while more:
        more = core.collect(anew)
        anew = False
        taken.append(core.take())
    assert core.slices == 150_000
    assert sum(taken) > 2 * MOST_ENCODED
    assert (max(taken) > MOST_ENCODED + 1000) == filling
    core.stop()


@in_twin("compiled")
def test_windows_are_read_and_placed_in_short_calls_where_somebody_waits(tmp_path: Path) -> None:
    with recording(tmp_path) as run:
        stream = run.stream()
        run.gpu.behind = True
        for _ in range(8 * LEAST_STEPS):
            with gputrace.span("x", stream):
                pass
        current = tracer.current()
        assert current is not None
        current.write_now()  # host slices, and an anchor
        (device,) = current._devices_now()
        (line,) = device.lines
        with current._cycle_lock:  # no other collects
            run.gpu.behind = False
            current._host.set_hurried(True)
            calls = 0
            while line.unread or line.waiting:
                before = line.unread, line.waiting
                device.mark()
                device.collect(NO_LIMIT, lambda: False, last=calls == 0)
                assert before[0] - line.unread <= 2 * LEAST_STEPS
                calls += 1
            current._host.set_hurried(False)
        assert calls >= 8
    assert len(run.host) == len(run.device) == 8 * LEAST_STEPS
