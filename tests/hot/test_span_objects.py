"""What programs do with a span object that is not `with gputrace.span(...)`."""

from __future__ import annotations

import gc
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest

import gputrace
from gputrace import hot
from gputrace.devicetrace import DeviceTrace, Line
from gputrace.model import Track
from tests.recorded import recording


@pytest.mark.parametrize("on_gpu", [False, True])
def test_used_nested_and_used_again(tmp_path: Path, on_gpu: bool) -> None:
    with recording(tmp_path) as run:
        span = gputrace.span("s", run.stream() if on_gpu else None, a=1)
        with span:
            with span, span:
                pass
            with span:
                pass
        with span:
            pass
        span.__exit__(None, None, None)
        with span:
            pass
        del span
    assert [(s.name, s.depth, s.args) for s in run.host] == [("s", d, {"a": 1}) for d in (0, 1, 2, 1, 0, 0)]
    assert [s.depth for s in run.device] == ([0, 1, 2, 1, 0, 0] if on_gpu else [])
    assert run.report["out_of_order"] == run.report["unfinished"] == 0


def test_kept_for_ever_and_never_handed_to_another(tmp_path: Path) -> None:
    """A span that the program still holds must not come back under another name."""
    with recording(tmp_path) as run:
        stream = run.stream()
        kept: list[Any] = []
        for n in range(50):
            with gputrace.span(f"kept {n}", stream=stream) as span:
                kept.append(span)
            with gputrace.span(f"let go {n}", stream=stream):
                pass
        while not hot.idle():
            pass
        for span in kept:
            with span:
                pass
        del span
        kept.clear()
    assert sorted(s.name or "" for s in run.host) == sorted(
        [*(f"kept {n}" for n in range(50)), *(f"kept {n}" for n in range(50)), *(f"let go {n}" for n in range(50))]
    )
    assert len(run.device) == 150


def test_exited_twice_and_without_being_entered(tmp_path: Path) -> None:
    with recording(tmp_path) as run:
        span = gputrace.span("once", run.stream())
        span.__exit__(None, None, None)
        with span:
            pass
        span.__exit__(None, None, None)
        span.__exit__(None, None, None)
        del span
        with gputrace.span("after"):
            pass
    assert [s.name for s in run.host] == ["once", "after"]
    assert [s.depth for s in run.host] == [0, 0]


def test_never_exited(tmp_path: Path) -> None:
    """It has no end, and says so; what follows still has its own."""
    with recording(tmp_path, leaked_events=None) as run:
        stream = run.stream()
        left = gputrace.span("left open", stream)
        left.__enter__()
        with gputrace.span("after", stream):
            pass
    for side in (run.host, run.device):
        assert {s.name: s.dur < 0 for s in side} == {"left open": True, "after": False}
    assert run.report["unfinished"] == 2


def test_scoped_spans_closed_in_the_wrong_order(tmp_path: Path) -> None:
    """The inner one is ended where the outer one ends; nothing after it is bent."""
    with recording(tmp_path) as run:
        stream = run.stream()
        outer, inner = gputrace.span("outer", stream), gputrace.span("inner", stream)
        outer.__enter__()
        inner.__enter__()
        outer.__exit__(None, None, None)
        with gputrace.span("later", stream):
            pass
        inner.__exit__(None, None, None)
        with gputrace.span("last", stream):
            pass
        del outer, inner
    for side in (run.host, run.device):
        found = {s.name: s for s in side}
        assert len(found) == len(side) == 4
        assert found["inner"].ts + found["inner"].dur == found["outer"].ts + found["outer"].dur
        assert "ended" in found["inner"].args
        assert [found[n].depth for n in ("outer", "inner", "later", "last")] == [0, 1, 0, 0]
        assert all(s.dur >= 0 for s in side)
    assert run.report["out_of_order"] == 2
    assert run.report["unfinished"] == 0


def test_exited_by_another_thread(tmp_path: Path) -> None:
    with recording(tmp_path) as run:
        span = gputrace.span("handed over", run.stream())
        span.__enter__()
        thread = threading.Thread(target=span.__exit__, args=(None, None, None))
        thread.start()
        thread.join()
        del span, thread
        with gputrace.span("after"):
            pass
    assert [(s.name, s.depth, s.dur >= 0) for s in run.host] == [("handed over", 0, True), ("after", 0, True)]
    assert len(run.device) == 1


def test_one_object_in_many_threads(tmp_path: Path) -> None:
    span: Any = None

    def work() -> None:
        for _ in range(100):
            with span:
                pass

    with recording(tmp_path, "host") as run:
        span = gputrace.span("shared")
        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        span = None
    assert len(run.slices) == 800
    assert all(s.dur >= 0 for s in run.slices)


@pytest.mark.parametrize("when", ["opened before", "closed after", "across two"])
def test_the_switch_turned_while_a_span_is_open(tmp_path: Path, when: str) -> None:
    span = gputrace.span("s") if when == "opened before" else None
    if span is not None:
        span.__enter__()
    with recording(tmp_path, leaked_events=None) as run:
        if span is None:
            span = gputrace.span("s", run.stream())
            span.__enter__()
        else:
            span.__exit__(None, None, None)
        with gputrace.span("inside"):
            pass
    if when == "across two":
        with recording(tmp_path) as second:
            span.__exit__(None, None, None)
            with span:
                pass
            with gputrace.span("inside"):
                pass
        assert [(s.name, s.depth, s.dur >= 0) for s in second.host] == [("s", 0, True), ("inside", 0, True)]
    else:
        span.__exit__(None, None, None)
        with span:
            pass
    assert [s.name for s in run.host] == (["inside"] if when == "opened before" else ["s", "inside"])


def test_what_a_finished_recording_kept_goes_with_it(tmp_path: Path) -> None:
    """Its devices, queues and tracks: a program may record a thousand times."""

    def alive() -> int:
        gc.collect()
        return sum(issubclass(type(each), (DeviceTrace, Line, Track)) for each in gc.get_objects())

    counts = []
    for _ in range(6):
        with recording(tmp_path) as run, gputrace.span("x", run.stream()), gputrace.span("y"):
            pass
        del run
        counts.append(alive())
    assert counts[-1] <= counts[1]


def test_a_deep_nest(tmp_path: Path) -> None:
    """The engine keeps 512 levels; deeper ones go on in a lane of their own, whole."""
    with recording(tmp_path) as run:
        stream = run.stream()
        spans = [gputrace.span(f"level {n}", stream) for n in range(600)]
        for span in spans:
            span.__enter__()
        for span in reversed(spans):
            span.__exit__(None, None, None)
        del span
        spans.clear()
        with gputrace.span("after", stream):
            pass
    for side in (run.host, run.device):
        assert len({s.name for s in side}) == len(side) == 601
        assert all(s.dur >= 0 for s in side)
        by_name = {s.name: s for s in side}
        assert [by_name[f"level {n}"].depth for n in range(600)] == [*range(512), *range(88)]
        assert by_name["after"].depth == 0
    assert run.report["out_of_order"] == run.report["unfinished"] == 0


def test_what_leads_back_to_a_span_that_records_nothing_is_collected() -> None:
    """A program that nobody traces keeps no object for ours: a span holds what it was made with until it is gone."""

    class Owner:
        def __init__(self) -> None:
            self.span = gputrace.span("x", owner=self)

    gone = weakref.ref(Owner())
    gc.collect()
    assert gone() is None
