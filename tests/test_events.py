"""No event is lost: created = pooled + live, whatever fails."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Any

import pytest

from gputrace.devices.simulated import SimulatedGPU
from gputrace.errors import DriverError
from gputrace.events import EventPool


class Breaking(SimulatedGPU):
    """A GPU of which single calls can be made to fail."""

    def __init__(self) -> None:
        super().__init__()
        self.broken: set[str] = set()

    def _breaks(self, call: str) -> None:
        if call in self.broken:
            raise DriverError(call, 1)

    def event_create(self) -> Any:
        self._breaks("create")
        return super().event_create()

    def event_destroy(self, event: Any) -> None:
        self._breaks("destroy")
        super().event_destroy(event)

    def active(self) -> Any:
        return Active(self)


class Active:
    def __init__(self, gpu: Breaking) -> None:
        self.gpu = gpu

    def __enter__(self) -> None:
        self.gpu._breaks("enter")

    def __exit__(self, kind: type[BaseException] | None, error: Any, trace: TracebackType | None) -> None:
        if error is None:
            self.gpu._breaks("exit")


def conserved(pool: EventPool, gpu: SimulatedGPU) -> bool:
    return pool.created == pool.pooled + pool.live == gpu.live_events


def test_an_event_given_back_is_used_again() -> None:
    pool = EventPool(SimulatedGPU())
    first = pool.acquire()
    pool.release(first)
    assert pool.acquire() is first
    assert (pool.created, pool.pooled, pool.live) == (1, 0, 1)


@pytest.mark.parametrize("call", ["create", "enter", "exit"])
def test_an_event_that_could_not_be_had_is_owed_by_nobody(call: str) -> None:
    gpu = Breaking()
    pool = EventPool(gpu)
    gpu.broken = {call}
    with pytest.raises(DriverError):
        pool.acquire()
    assert pool.live == 0
    assert conserved(pool, gpu)


def test_closing_destroys_what_is_pooled_and_then_what_comes_back() -> None:
    gpu = SimulatedGPU()
    pool = EventPool(gpu)
    events = [pool.acquire() for _ in range(3)]
    pool.release(events.pop())
    pool.close()
    assert (pool.created, pool.live, gpu.live_events) == (2, 2, 2)
    for event in events:
        pool.release(event)
    assert (pool.created, pool.pooled, gpu.live_events) == (0, 0, 0)


@pytest.mark.parametrize("call", ["enter", "destroy"])
def test_closing_on_a_device_that_is_gone_counts_the_events_as_gone(call: str) -> None:
    gpu = Breaking()
    pool = EventPool(gpu)
    for event in [pool.acquire() for _ in range(3)]:
        pool.release(event)
    gpu.broken = {call}
    pool.close()
    assert (pool.created, pool.pooled, pool.live) == (0, 0, 0)


def test_a_forked_child_forgets_the_parents_events() -> None:
    gpu = SimulatedGPU()
    pool = EventPool(gpu)
    pool.release(pool.acquire())
    pool.acquire()
    pool.forget()
    assert (pool.created, pool.pooled, pool.live) == (0, 0, 0)
    assert gpu.live_events == 1  # no driver was touched


def test_threads_never_share_an_event() -> None:
    pool = EventPool(SimulatedGPU())
    held: set[int] = set()
    shared: list[int] = []

    def work() -> None:
        for _ in range(500):
            event = pool.acquire()
            if id(event) in held:
                shared.append(id(event))
            held.add(id(event))
            held.discard(id(event))
            pool.release(event)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not shared
    assert pool.live == 0
    assert pool.created == pool.pooled <= 4
