"""Stream capture, refused events, failures, a lost device: what the trace then says, on the simulated GPU."""

from __future__ import annotations

import time
from pathlib import Path

import gputrace
from gputrace import hot
from tests.recorded import Run, recording


def drawn(run: Run, *, gpu: bool) -> dict[str | None, tuple[int, dict[str, object]]]:
    side = run.device if gpu else run.host
    assert len({s.name for s in side}) == len(side)
    assert all(s.dur >= 0 for s in side)
    return {s.name: (s.depth, {k: v for k, v in s.args.items() if k != "placement"}) for s in side}


NOT_RECORDED = {"gpu": "not recorded: the stream is being captured"}


def test_windows_around_inside_and_across_a_capture(tmp_path: Path) -> None:
    with recording(tmp_path) as run:
        stream, other = run.stream(), run.stream()
        with gputrace.span("before", stream):
            pass
        stream.begin_capture()
        with gputrace.span("captured", stream):
            stream.launch(1000)
            with gputrace.span("beside", other):
                other.launch(10)
        duration_ns = stream.end_capture()
        with gputrace.span("replay", stream):
            stream.launch(duration_ns)
        with gputrace.span("begins inside", stream):
            stream.begin_capture()
        stream.end_capture()
        stream.begin_capture()
        with gputrace.span("ends inside", stream):
            stream.end_capture()
        with gputrace.span("after", stream):
            pass
    host, device = drawn(run, gpu=False), drawn(run, gpu=True)
    assert list(device) == ["before", "beside", "replay", "begins inside", "after"]
    assert device["begins inside"] == (0, {"ended": "a stream capture began inside"})
    assert {name for name, (_, args) in device.items() if args} == {"begins inside"}
    assert host["captured"] == (0, NOT_RECORDED)
    assert host["ends inside"] == (0, NOT_RECORDED)
    assert host["beside"] == (1, {})
    assert run.report["capture_skipped"] == 3
    (straddling,) = (s for s in run.device if s.name == "begins inside")
    (replayed,) = (s for s in run.device if s.name == "replay")
    assert replayed.ts + replayed.dur <= straddling.ts
    assert replayed.dur >= duration_ns - 2 * run.report["worst_uncertainty_ns"]


def test_the_driver_refuses_events(tmp_path: Path) -> None:
    with recording(tmp_path) as run:
        stream = run.stream()
        run.gpu.refuse_next = 1
        with gputrace.span("no opening", stream), gputrace.span("inside", stream):
            pass
        with gputrace.span("no closing", stream):
            with gputrace.span("child", stream):
                pass
            run.gpu.refuse_next = 1
        run.gpu.refuse_next = 2
        with gputrace.span("neither", stream):
            pass
        run.gpu.refuse_next = 0
        with gputrace.span("after", stream):
            pass
    host, device = drawn(run, gpu=False), drawn(run, gpu=True)
    assert device == {
        "inside": (0, {}),
        "no closing": (0, {"ended": "the driver refused its closing event"}),
        "child": (1, {}),
        "after": (0, {}),
    }
    refused = {"gpu": "not recorded: the driver refused its opening event"}
    assert host["no opening"] == (0, refused)
    assert host["neither"] == (0, refused)
    assert run.report["failed"] == 3


def test_a_binding_that_raises(tmp_path: Path) -> None:
    """Bindings raise for result codes they do not know; that is a refusal like any other."""
    with recording(tmp_path) as run:
        stream, gpu = run.stream(), run.gpu
        plain, fail = gpu.record_raw, False

        def record(event: object, native: object) -> object:
            if fail:
                raise ValueError("1234 is not a valid CUresult")
            return plain(event, native)

        gpu.record_raw = record
        with gputrace.span("well", stream):
            pass
        fail = True
        with gputrace.span("refused", stream):
            pass
        fail = False
        with gputrace.span("half", stream):
            fail = True
        fail = False
    assert list(drawn(run, gpu=True)) == ["well", "half"]
    assert "refused" in str(drawn(run, gpu=False)["refused"][1]["gpu"])


def test_failure_marks_what_is_open_and_nothing_else(tmp_path: Path) -> None:
    with recording(tmp_path) as run:
        one, two = run.stream(), run.stream()
        with gputrace.span("outer", one):
            with gputrace.span("closed before", one):
                pass
            with gputrace.span("inner", one):
                window = gputrace.window("window", two)
                gputrace.failure(RuntimeError("first"), one)
            with gputrace.span("opened after", one):
                pass
            gputrace.failure("second")
        window.close()
        gputrace.failure("nothing is open")
        with gputrace.span("later", one):
            pass
    errors = {name: args.get("error") for name, (_, args) in drawn(run, gpu=True).items()}
    assert errors == {
        "outer": "RuntimeError: first",
        "closed before": None,
        "inner": "RuntimeError: first",
        "opened after": None,
        "window": "second",
        "later": None,
    }
    assert run.report["failed"] == 3


def test_abandoned_windows(tmp_path: Path) -> None:
    with recording(tmp_path) as run:
        stream = run.stream()
        gputrace.window("at once", stream).abandon()
        late = gputrace.window("late", stream)
        with gputrace.span("around", stream):
            run.gpu.behind = False
        deadline = time.monotonic() + 10
        while not hot.idle() and time.monotonic() < deadline:
            time.sleep(0.001)
        late.abandon()
        late.abandon()
        late.close()
        closed = gputrace.window("closed", stream)
        closed.close()
        closed.abandon()
        gputrace.window("host").abandon()
    host, device = drawn(run, gpu=False), drawn(run, gpu=True)
    assert set(host) == {"at once", "late", "around", "closed", "host"}
    assert device.pop("late", (0, {"ended": "abandoned"})) == (0, {"ended": "abandoned"})
    assert device == {"around": (0, {}), "closed": (0, {})}
    assert run.report["failed"] == run.report["unfinished"] == 0


def test_windows_in_any_order(tmp_path: Path) -> None:
    """Explicit windows nest in nothing, so nothing that overlaps bends them."""
    import itertools

    orders = list(itertools.permutations(range(4)))
    truth: dict[str, tuple[int, int]] = {}
    with recording(tmp_path) as run:
        stream = run.stream()
        for n, order in enumerate(orders):
            windows = []
            for k in range(4):
                windows.append(gputrace.window(f"{n}.{k}", stream))
                truth[f"{n}.{k}"] = (run.gpu.mine()[-1].host_ns, 0)
                stream.launch(100)
            for k in order:
                windows[k].close()
                truth[f"{n}.{k}"] = (truth[f"{n}.{k}"][0], run.gpu.mine()[-1].host_ns)
                stream.launch(100)
            del windows
    assert len(run.device) == len(run.host) == len(truth)
    for s in run.device:
        begin, end = truth[s.name or ""]
        assert abs(s.ts - begin) <= run.report["worst_uncertainty_ns"]
        assert abs(s.ts + s.dur - end) <= run.report["worst_uncertainty_ns"]
        assert s.depth == 0
    assert len({s.track_id for s in run.device}) == 4
    assert run.report["clamped"] == 0


def test_a_device_lost_midway(tmp_path: Path) -> None:
    """What was read is there, what was not says why, and the program's spans go on as host slices."""
    with recording(tmp_path, leaked_events=None) as run:
        stream = run.stream()
        with gputrace.span("well", stream):
            pass
        deadline = time.monotonic() + 10
        while not hot.idle() and time.monotonic() < deadline:
            time.sleep(0.001)
        open_then = gputrace.span("open then", stream)
        with open_then:
            run.gpu.fail_after = 0
        with gputrace.span("after", stream):
            pass
        del open_then
    assert [s.name for s in run.host] == ["well", "open then", "after"]
    assert all(s.dur >= 0 for s in run.slices)
    device = {s.name: s for s in run.device}
    assert "error" not in device["well"].args
    assert "after" not in device
    assert run.report["failed"] >= 1


def test_a_device_lost_before_anything_was_read(tmp_path: Path) -> None:
    """Nothing has a place then. Stopping does not wait for a device that will not answer."""
    with recording(tmp_path, leaked_events=None) as run:
        stream = run.stream()
        run.gpu.behind = True
        with gputrace.span("a", stream):
            pass
        run.gpu.fail_after = 0
        run.gpu.behind = False
        with gputrace.span("b", stream):
            pass
        stopped_ns = time.monotonic_ns()
    assert time.monotonic_ns() - stopped_ns < 8_000_000_000  # the exit's own limit is 10 s
    assert [s.name for s in run.host] == ["a", "b"]
    assert all("error" in s.args and s.dur <= 0 for s in run.device if s.name == "a")
