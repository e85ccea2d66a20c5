"""The device is far behind, or nobody collects: memory has a bound, drops are counted, and the rest is right."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import pytest

import gputrace
from gputrace import anchoring, collector, devicetrace, hot, tracer
from tests.hot.twin import room_for
from tests.recorded import recording


@pytest.mark.slow
def test_more_windows_in_flight_than_are_kept(tmp_path: Path) -> None:
    opened, more = hot.MOST_WINDOWS + 3000, 300
    with recording(tmp_path) as run:
        stream = run.stream()
        run.gpu.behind = True
        for _ in range(opened):
            with gputrace.span("x", stream):
                pass
        live = run.gpu.live_events
        for _ in range(more):
            with gputrace.span("one more", stream):
                pass
        assert run.gpu.live_events - live < more, "beyond the bound no event is made, but a few for anchors"
        run.gpu.behind = False
    report = run.report
    assert report["windows"] + report["dropped"] == opened + more
    assert report["windows"] == hot.MOST_WINDOWS
    assert report["slices"] == opened + more + report["windows"]
    assert len(run.device) == report["windows"]
    assert len(run.host) == opened + more
    assert live <= 2 * hot.MOST_WINDOWS + 64
    assert report["unfinished"] == 0


def test_more_host_spans_than_are_kept(tmp_path: Path) -> None:
    """A collector that gets no turn: spans beyond the bound are not recorded, and counted."""
    most, opened = 20_000, 25_000
    with (
        room_for(most),
        recording(tmp_path, "host", check=False) as run,
        mock.patch.object(collector.Collector, "start", return_value=False),
    ):
        for _ in range(opened):
            with gputrace.span("x"):
                pass
    assert 0.7 * most <= run.report["slices"] <= most
    assert run.report["slices"] + run.report["dropped"] == opened
    assert run.report["unfinished"] == 0


def test_room_comes_back(tmp_path: Path) -> None:
    """After the device caught up, windows are recorded again."""
    with mock.patch.object(hot, "MOST_WINDOWS", 64), recording(tmp_path) as run:
        stream = run.stream()
        run.gpu.behind = True
        for _ in range(100):
            with gputrace.span("early", stream):
                pass
        run.gpu.behind = False
        while not hot.idle():
            pass
        for _ in range(10):
            with gputrace.span("late", stream):
                pass
    assert len([s for s in run.device if s.name == "late"]) == 10
    assert len([s for s in run.device if s.name == "early"]) == 64
    assert run.report["dropped"] == 36


@pytest.mark.parametrize("before", [0, 1])
def test_the_ends_that_go_beyond_the_bound_make_no_room_for_begins(tmp_path: Path, before: int) -> None:
    """However what is recorded first makes begins and ends fall on the memory's pieces."""
    spans = 20_000
    with (
        room_for(3000),
        mock.patch.object(collector.Collector, "start", return_value=False),
        recording(tmp_path, "host", check=False) as run,
    ):
        for _ in range(before):
            gputrace.instant("i")
        for _ in range(spans):
            with gputrace.span("outer"), gputrace.span("inner"):
                pass
    assert run.report["slices"] + run.report["dropped"] == 2 * spans
    assert run.report["slices"] < 10_000


def test_a_span_that_is_not_recorded_is_still_a_span(tmp_path: Path) -> None:
    """Whatever programs do with one, they can do with one beyond the bound, and with one while tracing is off."""

    def use_all() -> None:
        span = gputrace.span("s", a=1)
        with span, span:
            pass
        with span as bound:
            assert bound is span

        @span
        def work() -> int:
            return 3

        assert work() == 3
        window = gputrace.window("w", b=2)
        window.failure("x")
        window.close()
        window.abandon()
        with gputrace.window("v"):
            pass
        gputrace.window("u").abandon()
        gputrace.instant("i")
        gputrace.counter("c", 1)
        gputrace.failure("f")

    use_all()
    with (
        room_for(0),
        mock.patch.object(collector.Collector, "start", return_value=False),
        recording(tmp_path, "host", check=False) as run,
    ):
        while hot.stats().dropped_spans < 1000:
            with gputrace.span("fills what there is"):
                pass
        filled = hot.stats().dropped_spans
        use_all()
    assert run.report["dropped"] - filled >= 7
    assert {s.name for s in run.slices} <= {"fills what there is"}


def test_windows_do_not_wait_for_an_anchor_in_any_number(tmp_path: Path) -> None:
    """Each takes memory while it waits: where there are many, an anchor is taken before its time."""
    with recording(tmp_path) as run:
        stream = run.stream()
        current = tracer.current()
        assert current is not None

        def write(spans: int) -> int:
            """How many edges wait then."""
            for _ in range(spans):
                with gputrace.span("x", stream):
                    pass
            current.write_now()
            (device,) = current._devices_now()
            waiting: int = sum(line.waiting for line in device.lines)
            return waiting

        write(1)  # with the first anchor
        with (
            mock.patch.object(devicetrace, "MOST_WAITING", 400),
            mock.patch.object(devicetrace, "EARLIEST_NS", 0),
            mock.patch.object(anchoring, "REFRESH_NS", 1 << 60),
            mock.patch.object(devicetrace, "PATIENCE_NS", 1 << 60),
        ):
            assert 0 < max(write(50) for _ in range(40)) < 700
    assert len(run.device) == 2001
