"""What a program or its user left out is not in the trace, what they asked for is, and the trace says so."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import gputrace
from gputrace import regions, tracer
from gputrace.regions import RECORDED, STEP, Region, Regions
from tests.hot.twin import records
from tests.recorded import EXPORTERS, Run, recording

everywhere = pytest.mark.parametrize("suffix", EXPORTERS)
SECOND = 10**9


def names(run: Run) -> list[str | None]:
    return [each.name for each in run.host if each.name != STEP]


def marks(run: Run) -> list[int]:
    """The steps whose end is marked, in order."""
    return [each.args["number"] for each in run.host if each.name == STEP]


def recorded(run: Run) -> list[float]:
    """The values of the counter that shows what was recorded, in order."""
    return [value for track, samples in run.counters.items() if track[-1].startswith(RECORDED) for _, value in samples]


@everywhere
def test_a_pause_leaves_out_what_begins_in_it(tmp_path: Path, suffix: str) -> None:
    with recording(tmp_path, suffix=suffix) as run:
        stream = run.stream()
        with gputrace.span("a", stream=stream):
            pass
        gputrace.pause()
        gputrace.pause()
        with gputrace.span("b", stream=stream), gputrace.window("c", stream=stream):
            gputrace.instant("d")
            gputrace.counter("e", 1)
        assert not records()
        gputrace.resume()
        with gputrace.span("f", stream=stream):
            pass
    assert names(run) == ["a", "f"]
    assert [each.name for each in run.device] == ["a", "f"]
    assert not any(track[-1].startswith("e") for track in run.counters)
    assert recorded(run) == [1, 0, 1]


@everywhere
def test_what_is_open_at_a_pause_is_drawn_whole(tmp_path: Path, suffix: str) -> None:
    with recording(tmp_path, suffix=suffix) as run:
        stream = run.stream()
        window = gputrace.window("window", stream=stream)
        with gputrace.span("span", stream=stream):
            gputrace.pause()
        gputrace.failure("lost", stream)
        window.close()
    assert sorted(map(str, names(run))) == ["span", "window"]
    assert all(each.dur >= 0 for each in run.slices)
    [device] = [each for each in run.device if each.name == "window"]
    assert device.args["error"] == "lost"
    assert run.report["unfinished"] == 0


def test_a_stream_made_current_in_a_pause_is_current_after_it(tmp_path: Path) -> None:
    with recording(tmp_path) as run:
        gputrace.pause()
        with gputrace.use_stream(run.stream()):
            gputrace.resume()
            with gputrace.span("x"):
                pass
    assert [each.name for each in run.device] == ["x"]


def test_a_kept_span_entered_in_a_pause_closes_no_other_use_of_it(tmp_path: Path) -> None:
    before = gputrace.span("made before", n=1)
    with recording(tmp_path) as run:
        for kept in (before, gputrace.span("made inside", n=2)):
            with kept:
                gputrace.pause()
                with kept:
                    pass
                gputrace.resume()
                gputrace.instant("inside")
        unused = gputrace.span("entered in a pause", n=3)
        gputrace.pause()
        with unused:
            gputrace.resume()
    assert names(run) == ["made before", "inside", "made inside", "inside"]
    assert [run.parent_name(each) for each in run.named("inside")] == ["made before", "made inside"]


def test_all_threads_are_paused(tmp_path: Path) -> None:
    def work() -> None:
        with gputrace.span("elsewhere"):
            pass

    with recording(tmp_path) as run, gputrace.span("here"):
        gputrace.pause()
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert names(run) == ["here"]


@pytest.mark.parametrize(
    ("first", "end", "expected"), [(1, 3, ["1", "2"]), (0, 1, ["0"]), (2, None, ["2", "3", "4"]), (9, 12, [])]
)
@everywhere
def test_steps_are_counted_from_0(
    tmp_path: Path, suffix: str, first: int, end: int | None, expected: list[str]
) -> None:
    options = {"first_step": first, "region": "--steps"} | ({} if end is None else {"end_step": end})
    with recording(tmp_path, suffix=suffix, options=options) as run:
        for n in range(5):
            with gputrace.span(str(n)):
                pass
            gputrace.step()
    assert names(run) == expected
    # Of the steps that are recorded the ends, and of the one before the first: it is where the first begins.
    ends = [int(each) for each in expected]
    assert marks(run) == ([ends[0] - 1] if ends and ends[0] else []) + ends
    assert bool(run.report["missed"]) == (not expected)


@everywhere
def test_a_step_is_marked_on_its_thread_whatever_is_asked_for(tmp_path: Path, suffix: str) -> None:
    with recording(tmp_path, suffix=suffix) as run:
        for _ in range(3):
            gputrace.step()
        gputrace.pause()
        gputrace.step()
        gputrace.resume()
        gputrace.step()
        thread = threading.Thread(target=gputrace.step, name="worker")
        thread.start()
        thread.join()
    assert [(each.args["number"], each.track[-1].split()[0]) for each in run.host] == [
        (0, "MainThread"),
        (1, "MainThread"),
        (2, "MainThread"),
        (4, "MainThread"),
        (5, "worker"),
    ]


def test_a_resume_does_not_leave_the_region(tmp_path: Path) -> None:
    with recording(tmp_path, options={"first_step": 1, "end_step": 2}) as run:
        gputrace.resume()
        with gputrace.span("0"):
            gputrace.pause()
        gputrace.step()
        with gputrace.span("1, paused"):
            gputrace.resume()
        with gputrace.span("1"):
            gputrace.step()
            gputrace.resume()
        with gputrace.span("2"):
            pass
    assert names(run) == ["1"]
    assert marks(run) == [1]  # where it began, nothing was recorded


def test_a_forked_child_goes_on_as_its_parent_was(tmp_path: Path) -> None:
    with recording(tmp_path, "host", options={"first_step": 1}) as run:
        with gputrace.span("parent 0"):
            gputrace.step()
        gputrace.pause()
        if not (child := os.fork()):
            with gputrace.span("child, paused"):
                gputrace.resume()
            with gputrace.span("child"):
                pass
            current = tracer.current()
            assert current is not None
            current.stop()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        gputrace.resume()
        with gputrace.span("parent 1"):
            pass
    assert sorted(map(str, names(run))) == ["child", "parent 1"]
    assert marks(run) == [0]


def test_ranges_count_over_threads_and_in_forked_children(tmp_path: Path) -> None:
    with recording(tmp_path, "host", options={"capture_range": "nvtx:part"}) as run:
        current = tracer.current()
        assert current is not None
        regions = current.regions
        with gputrace.span("before"):
            regions.leave_range()
            regions.enter_range()
        thread = threading.Thread(target=regions.enter_range)
        thread.start()
        thread.join()
        regions.leave_range()
        with gputrace.span("one is open"):
            pass
        if not (child := os.fork()):
            inherited = tracer.current()
            assert inherited is not None
            with gputrace.span("child"):
                inherited.regions.leave_range()
            with gputrace.span("child, behind"):
                pass
            inherited.stop()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        regions.leave_range()
        with gputrace.span("behind"):
            pass
        regions.profile(on=True)
        regions.profile(on=True)
        gputrace.pause()
        with gputrace.span("paused"):
            gputrace.resume()
        with gputrace.span("profiled"):
            regions.profile(on=False)
        with gputrace.span("at the end"):
            pass
    assert sorted(map(str, names(run))) == ["child", "one is open", "profiled"]
    assert recorded(run).count(1) == 3 + 1  # the child's own


def test_with_nothing_recording_they_do_nothing(tmp_path: Path) -> None:
    gputrace.step()
    gputrace.pause()
    gputrace.resume()
    assert not records()
    with recording(tmp_path) as run:
        gputrace.pause()
    gputrace.resume()
    assert not records()
    assert run.slices == []


# --- the clock --------------------------------------------------------------------------------------------------------


class Watched:
    """A process's regions on a clock of the test's."""

    def __init__(self, **options: Any) -> None:
        self.now = 100 * SECOND
        self.said: list[bool] = []
        self.drawn: list[tuple[int, int]] = []
        self.marked: list[int] = []
        self.regions = Regions(Region(options, self.now), self.said.append, self._draw, self.marked.append)

    def _draw(self, name: str, ts_ns: int, value: int) -> None:
        assert name == RECORDED
        self.drawn.append((ts_ns - 100 * SECOND, value))


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Any:
    made: list[Watched] = []

    def make(**options: Any) -> Watched:
        with mock.patch.object(regions, "now_ns", return_value=100 * SECOND):
            made.append(Watched(**options))
        return made[-1]

    monkeypatch.setattr(regions, "now_ns", lambda: made[-1].now)
    monkeypatch.setattr(regions.Collector, "start", lambda self: True)  # the test looks at the clock itself
    return make


def test_a_delay_and_a_duration_are_counted_from_the_recordings_start(watched: Any) -> None:
    run = watched(delay_ns=2 * SECOND, duration_ns=3 * SECOND)
    run.regions.begin()
    assert run.said == [False]
    looks = {1: [False], 2: [False, True], 4: [False, True], 5: [False, True, False], 9: [False, True, False]}
    for second, said in looks.items():
        run.now = (100 + second) * SECOND
        run.regions._look()
        assert run.said == said, second
    assert run.drawn == [(0, 0), (2 * SECOND, 1), (5 * SECOND, 0)]


def test_a_process_that_starts_inside_is_recorded_at_once(watched: Any) -> None:
    run = watched(delay_ns=2 * SECOND, duration_ns=3 * SECOND)
    run.now += 3 * SECOND
    run.regions.begin()
    assert (run.said, run.drawn) == ([], [])


def test_the_clock_is_looked_at_no_more_once_it_decides_nothing(watched: Any) -> None:
    run = watched(delay_ns=2 * SECOND)
    assert run.regions._wait() == pytest.approx(2, abs=1e-3)
    run.now += 2 * SECOND
    assert run.regions._wait() is None
    plain = watched()
    assert plain.regions._wait() is None
    ended = watched(duration_ns=SECOND)
    ended.regions.end()
    assert ended.regions._wait() is None


def test_nothing_is_switched_once_the_recording_is_over(watched: Any) -> None:
    run = watched(duration_ns=SECOND)
    run.regions.begin()
    run.regions.end()
    run.now += 2 * SECOND
    run.regions._look()
    run.regions.pause()
    assert run.said == []
