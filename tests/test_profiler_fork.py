"""A forked child: the parent's windows are not its own, and no lock that someone held keeps it waiting."""

from __future__ import annotations

import os
import sys
import warnings

import pytest

from gputrace.devices.simulated import SimulatedGPU
from gputrace.errors import NotRegistered
from gputrace.measurement import UNREADABLE_NS
from gputrace.profiler import EventProfiler

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


def in_child(check: object) -> None:
    """Run the check in a fork; it must return, and true."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # other tests' threads
        child = os.fork()
    if child == 0:
        try:
            os._exit(0 if check() else 1)  # type: ignore[operator]
        except BaseException as error:
            print(repr(error), file=sys.stderr)
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_child_owes_nothing_for_its_parents_windows() -> None:
    gpu = SimulatedGPU()
    profiler = EventProfiler(gpu)
    stream = gpu.stream()
    profiler.stop(stream, profiler.start(stream)).result()
    token = profiler.start(stream)
    unread = profiler.stop(stream, profiler.start(stream))
    unplaced = profiler.stop(stream, profiler.start(stream))
    before = gpu.live_events

    def check() -> bool:
        assert unread.result(10).duration_ns == UNREADABLE_NS
        assert "forked" in str(unplaced.result(10).error)
        with pytest.raises(NotRegistered):
            profiler.stop(stream, token)
        profiler.abandon(token)
        assert gpu.live_events == before  # nothing was destroyed: it is all the parent's
        own = profiler.stop(stream, profiler.start(stream))  # a simulated GPU works on in the child
        return own.result(10).error is None

    with profiler.anchoring.lock:  # as if the collector had been at it
        in_child(check)
    profiler.abandon(token)
    assert unread.result(10).error is None
    assert profiler.pool.live == 1


def test_a_child_that_drops_the_profiler_destroys_nothing() -> None:
    gpu = SimulatedGPU()
    profilers = [EventProfiler(gpu)]
    stream = gpu.stream()
    profilers[0].stop(stream, profilers[0].start(stream)).result()
    before = gpu.live_events, gpu.live_streams

    def check() -> bool:
        profilers.clear()
        return (gpu.live_events, gpu.live_streams) == before

    in_child(check)
