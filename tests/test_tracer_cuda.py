"""A program on CUDA, traced: the real bindings, on a driver that keeps the truth, counts calls and fails on demand."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

import gputrace
from gputrace import hot
from tests.fake_driver import on_fake_driver
from tests.recorded import Run, recording

GLOBAL, THREAD_LOCAL, RELAXED = 0, 1, 2

#: What a tracer may never do to a program.
FORBIDDEN = (
    "cuInit",
    "cuCtxCreate",
    "cuDevicePrimaryCtxRetain",
    "cuCtxSynchronize",
    "cuStreamSynchronize",
    "cuEventSynchronize",
    "cuStreamWaitEvent",
)


def ok(result: tuple[Any, ...]) -> Any:
    assert int(result[0]) == 0, result
    return result[1] if len(result) == 2 else result[1:]


class Program:
    """A program with one context current on this thread; everything after `begin` is counted."""

    def __init__(self) -> None:
        from cuda.bindings import driver

        from tests.fake_driver import control

        self.driver, self.control = driver, control
        ok(driver.cuInit(0))
        self.device = ok(driver.cuDeviceGet(0))
        self.context = ok(driver.cuDevicePrimaryCtxRetain(self.device))
        ok(driver.cuCtxSetCurrent(self.context))

    def stream(self, flags: int = 1) -> Any:
        return ok(self.driver.cuStreamCreate(flags))

    def second_context(self) -> Any:
        create = (None, 0, self.device) if self.driver.CUDA_VERSION >= 13000 else (0, self.device)
        return ok(self.driver.cuCtxCreate(*create))

    def begin(self) -> None:
        self.events, self.streams = self.control.live("event"), self.control.live("stream")
        self.contexts = self.control.made("context")
        self.control.reset_calls()

    def unharmed(self, *, leaks: bool = False) -> None:
        called = {name: self.control.calls(name) for name in FORBIDDEN}
        assert called == dict.fromkeys(FORBIDDEN, 0)
        assert self.control.made("context") == self.contexts
        if not leaks:
            assert self.control.live("event") == self.events
            assert self.control.live("stream") == self.streams

    def mode(self) -> int:
        """This thread's capture mode."""
        mode = ok(self.driver.cuThreadExchangeStreamCaptureMode(self.driver.CUstreamCaptureMode(GLOBAL)))
        ok(self.driver.cuThreadExchangeStreamCaptureMode(mode))
        return int(mode)


def wait_read(seconds: float = 10) -> None:
    """Until the collector has read all that was recorded on ordinary streams."""
    deadline = time.monotonic() + seconds
    while not hot.idle():
        assert time.monotonic() < deadline, "the collector reads nothing"
        time.sleep(0.001)


def compare(program: Program, run: Run, streams: dict[str, Any]) -> None:
    """The GPU slices of each stream's track, edge by edge, against the stamps of that stream."""
    stamps = program.control.truth()
    assert program.control.truth_dropped() == 0
    bound = run.report["worst_uncertainty_ns"]
    for name, handle in streams.items():
        truth = sorted(stamp.host_ns for stamp in stamps if stamp.stream == int(handle))
        drawn = [s for s in run.device if name in s.track[-1]]
        edges = sorted([s.ts for s in drawn] + [s.ts + s.dur for s in drawn])
        assert len(edges) == len(truth), name
        assert max(abs(a - b) for a, b in zip(edges, truth, strict=True)) <= bound


@on_fake_driver(devices=2, truth=10_000, skew_ppm=50, wander_ppm=10)
def test_streams_of_two_contexts_and_threads(tmp_path: Path) -> None:
    program = Program()
    streams = [program.stream(0), program.stream(1)]
    second = program.second_context()
    streams.append(program.stream(1))
    ok(program.driver.cuCtxPopCurrent())
    program.begin()

    def work(stream: Any, n: str) -> None:
        ok(program.driver.cuCtxSetCurrent(second if n == "c" else program.context))
        for k in range(20):
            with gputrace.span(f"{n}.{k}", stream), gputrace.span(f"{n}.{k} in", stream):
                program.control.enqueue(stream, 20_000)

    with recording(tmp_path, "cuda") as run:
        threads = [threading.Thread(target=work, args=pair) for pair in zip(streams, "abc", strict=True)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    program.unharmed()
    assert int(second) != int(program.context)
    assert len(run.device) == len({s.name for s in run.device}) == 120
    assert {s.track[1] for s in run.device if s.name and s.name[0] == "c"} != {
        s.track[1] for s in run.device if s.name and s.name[0] == "a"
    }
    truth = program.control.truth()
    bound = run.report["worst_uncertainty_ns"]
    for letter, stream in zip("abc", streams, strict=True):
        stamps = sorted(stamp.host_ns for stamp in truth if stamp.stream == int(stream))
        drawn = [s for s in run.device if (s.name or "").startswith(letter)]
        edges = sorted([s.ts for s in drawn] + [s.ts + s.dur for s in drawn])
        assert len(edges) == len(stamps) == 80
        assert max(abs(a - b) for a, b in zip(edges, stamps, strict=True)) <= bound
        for s in drawn:
            assert s.depth == int((s.name or "").endswith("in"))
    assert run.report["told"] == []


@on_fake_driver(truth=1000)
def test_the_legacy_and_the_per_thread_stream(tmp_path: Path) -> None:
    program = Program()
    program.begin()

    def work(name: str) -> None:
        ok(program.driver.cuCtxSetCurrent(program.context))
        with gputrace.span(f"{name} legacy", 0), gputrace.span(f"{name} own", 2):
            program.control.enqueue(2, 10_000)

    with recording(tmp_path, "cuda") as run:
        with gputrace.span("none"):
            pass
        for name in ("one", "two"):
            thread = threading.Thread(target=work, args=(name,))
            thread.start()
            thread.join()
        work("main")
        with gputrace.span("legacy by its other name", 1):
            gputrace.failure("boom")
    program.unharmed()
    tracks = {s.name: (s.track[-1], s.track_id) for s in run.device}
    assert len(tracks) == len(run.device) == 7
    legacy = {track for name, (track, _) in tracks.items() if name and "legacy" in name}
    assert legacy == {"default stream"}
    assert len({id for name, (_, id) in tracks.items() if name and name.endswith(" own")}) == 3
    assert {s.name for s in run.device if "error" in s.args} == {"legacy by its other name"}
    assert run.report["told"] == []


@on_fake_driver()
def test_a_program_that_never_touches_cuda(tmp_path: Path) -> None:
    from tests.fake_driver import control

    with recording(tmp_path, "cuda") as run:
        with gputrace.span("plain"), gputrace.use_stream(0x1000), gputrace.span("and with nonsense", 0):
            pass
        gputrace.failure("x")
    assert [s.name for s in run.host] == ["plain", "and with nonsense"]
    assert run.device == []
    assert control.calls("cuInit") == 0
    assert control.made("context") == 0


@on_fake_driver(truth=1000)
@pytest.mark.parametrize("mode", [GLOBAL, THREAD_LOCAL, RELAXED])
def test_a_capture_is_never_broken(tmp_path: Path, mode: int) -> None:
    """The collector reads and anchors all the while; the capture holds the program's work and nothing else."""
    program = Program()
    driver = program.driver
    stream, other = program.stream(), program.stream()
    with recording(tmp_path, "cuda") as run:
        program.begin()
        for n in range(3):
            with gputrace.span(f"before {n}", stream):
                program.control.enqueue(stream, 1000)
            ok(driver.cuStreamBeginCapture(stream, driver.CUstreamCaptureMode(mode)))
            with gputrace.span(f"captured {n}", stream):
                program.control.enqueue(stream, 5_000)
                # Windows elsewhere go on meanwhile, and are read.
                for k in range(5):
                    with gputrace.span(f"beside {n}.{k}", other):
                        program.control.enqueue(other, 1000)
                    wait_read()
                with gputrace.span(f"nested {n}", stream):
                    pass
            assert program.mode() == GLOBAL
            graph = ok(driver.cuStreamEndCapture(stream))
            assert ok(driver.cuGraphGetNodes(graph, 0))[1] == 1
            replayable = ok(driver.cuGraphInstantiate(graph, 0))
            with gputrace.span(f"replay {n}", stream):
                ok(driver.cuGraphLaunch(replayable, stream))
    assert program.control.calls("cuStreamEndCapture") == 3
    names = {s.name for s in run.device}
    assert names == {f"{kind} {n}" for kind in ("before", "replay") for n in range(3)} | {
        f"beside {n}.{k}" for n in range(3) for k in range(5)
    }
    for n in range(3):
        for kind in ("captured", "nested"):
            (s,) = run.named(f"{kind} {n}")
            assert s.args["gpu"] == "not recorded: the stream is being captured"
        (replay,) = (s for s in run.device if s.name == f"replay {n}")
        assert replay.dur >= 5_000 - 2 * run.report["worst_uncertainty_ns"]
    assert run.report["capture_skipped"] == 6


@on_fake_driver()
def test_windows_that_straddle_a_capture(tmp_path: Path) -> None:
    program = Program()
    driver = program.driver
    stream = program.stream()
    program.begin()
    with recording(tmp_path, "cuda") as run:
        with gputrace.span("begins inside", stream):
            ok(driver.cuStreamBeginCapture(stream, driver.CUstreamCaptureMode(GLOBAL)))
        graph = ok(driver.cuStreamEndCapture(stream))
        ok(driver.cuStreamBeginCapture(stream, driver.CUstreamCaptureMode(GLOBAL)))
        with gputrace.span("ends inside", stream):
            again = ok(driver.cuStreamEndCapture(stream))
        with gputrace.span("after", stream):
            pass
    program.unharmed()
    assert [ok(driver.cuGraphGetNodes(each, 0))[1] for each in (graph, again)] == [0, 0]
    assert {s.name: s.args.get("ended") for s in run.device} == {
        "begins inside": "a stream capture began inside",
        "after": None,
    }


@on_fake_driver()
def test_the_legacy_stream_beside_a_capturing_one(tmp_path: Path) -> None:
    """An event there would join and break the capture: it counts as capturing."""
    program = Program()
    driver = program.driver
    blocking = program.stream(0)
    program.begin()
    with recording(tmp_path, "cuda") as run:
        ok(driver.cuStreamBeginCapture(blocking, driver.CUstreamCaptureMode(GLOBAL)))
        with gputrace.span("legacy", 0):
            pass
        graph = ok(driver.cuStreamEndCapture(blocking))
        with gputrace.span("after", 0):
            pass
    program.unharmed()
    assert ok(driver.cuGraphGetNodes(graph, 0))[1] == 0
    assert [s.name for s in run.device] == ["after"]
    assert run.named("legacy")[0].args["gpu"] == "not recorded: the stream is being captured"


@on_fake_driver()
@pytest.mark.parametrize("code", [1, 400, 999, 12345])
def test_the_driver_refuses_to_record(tmp_path: Path, code: int) -> None:
    program = Program()
    stream = program.stream()
    program.begin()
    with recording(tmp_path, "cuda") as run:
        with gputrace.span("first", stream):
            pass
        wait_read()
        time_left = time.monotonic() + 5
        done = 0
        while done < 20 and time.monotonic() < time_left:
            program.control.fail("cuEventRecord", code)
            with gputrace.span(f"refused {done}", stream):
                pass
            done += 1
        with gputrace.span("last", stream):
            pass
    program.unharmed()
    assert len(run.host) == 22
    assert {"first", "last"} <= {s.name for s in run.device}
    assert all(s.dur >= 0 for s in run.slices)
    assert run.report["unfinished"] == 0


@on_fake_driver()
def test_no_more_events_to_be_had(tmp_path: Path) -> None:
    program = Program()
    stream = program.stream()
    program.begin()
    with recording(tmp_path, "cuda") as run:
        program.control.fail("cuEventCreate", 2, times=-1)
        with gputrace.span("without", stream):
            pass
        program.control.heal()
        with gputrace.span("with", stream):
            pass
    program.unharmed()
    assert [s.name for s in run.device] == ["with"]
    assert run.report["dropped"] == 1


@on_fake_driver()
@pytest.mark.parametrize("code", [400, 999])
def test_an_event_that_cannot_be_read(tmp_path: Path, code: int) -> None:
    """An instant that carries the error, never a bar of made-up length."""
    program = Program()
    stream = program.stream()
    program.begin()
    with recording(tmp_path, "cuda") as run:
        with gputrace.span("well", stream):
            pass
        wait_read()
        deadline = time.monotonic() + 5
        while not program.control.calls("cuEventElapsedTime") and time.monotonic() < deadline:
            time.sleep(0.001)
        program.control.fail("cuEventElapsedTime", code, times=-1)
        for n in range(3):
            with gputrace.span(f"unread {n}", stream):
                pass
        wait_read()
        program.control.heal()
        with gputrace.span("after", stream):
            pass
    program.unharmed(leaks=code != 400)
    device = {s.name: s for s in run.device}
    assert "error" not in device["well"].args
    for n in range(3):
        unread = device[f"unread {n}"]
        assert unread.dur == 0
        assert unread.args["error"]
    assert run.report["failed"] >= 3
    assert ("after" in device) == (code == 400)


@on_fake_driver()
def test_a_lost_device(tmp_path: Path) -> None:
    """Every call fails from one moment on: the program's own errors are its own, tracing goes on on the host."""
    program = Program()
    stream = program.stream()
    with recording(tmp_path, "cuda") as run:
        with gputrace.span("well", stream):
            pass
        wait_read()
        with gputrace.span("open then", stream):
            program.control.lose_device(700)
        for n in range(50):
            with gputrace.span(f"after {n}", stream):
                pass
    assert len(run.host) == 52
    assert all(s.dur >= 0 for s in run.slices)
    assert {s.name for s in run.device} <= {"well", "open then"}
    assert "error" not in next(s for s in run.device if s.name == "well").args


@on_fake_driver()
def test_a_context_destroyed_midway(tmp_path: Path) -> None:
    program = Program()
    own = program.stream()
    doomed = program.second_context()
    stream = program.stream()
    program.begin()
    with recording(tmp_path, "cuda") as run:
        with gputrace.span("well", stream), gputrace.span("own", own):
            pass
        wait_read()
        with gputrace.span("open then", stream):
            ok(program.driver.cuCtxDestroy(doomed))
        ok(program.driver.cuCtxSetCurrent(program.context))
        for n in range(20):
            with gputrace.span(f"gone {n}", stream), gputrace.span(f"own {n}", own):
                pass
    program.unharmed(leaks=True)
    assert int(ok(program.driver.cuCtxGetCurrent())) == int(program.context)
    assert {f"own {n}" for n in range(20)} | {"well", "own"} <= {s.name for s in run.device}
    assert not any((s.name or "").startswith("gone") for s in run.device)
    assert all(s.dur >= 0 for s in run.slices)


@on_fake_driver()
def test_destroyed_streams_and_nonsense(tmp_path: Path) -> None:
    program = Program()
    stream, gone = program.stream(), program.stream()
    handle = int(gone)
    ok(program.driver.cuStreamDestroy(gone))
    program.begin()
    with recording(tmp_path, "cuda") as run:
        for n, each in enumerate([handle, 0xDEAD, stream, int(stream)]):
            with gputrace.span(f"s{n}", each):
                pass
        ok(program.driver.cuStreamDestroy(stream))
        with gputrace.span("destroyed meanwhile", stream):
            pass
    assert {s.name for s in run.device} >= {"s2", "s3"}
    assert len(run.host) == 5
    assert len(run.report["told"]) == 1
    assert program.control.live("event") == program.events


@on_fake_driver(submit_ns=2_000_000)
def test_the_program_never_waits(tmp_path: Path) -> None:
    """With a device far behind, spans cost what they cost with an idle one: nothing in them waits for it."""
    program = Program()
    stream = program.stream()
    program.begin()
    with recording(tmp_path, "cuda") as run:
        program.control.enqueue(stream, 400_000_000)
        before = time.monotonic_ns()
        for n in range(500):
            with gputrace.span(f"{n}", stream):
                pass
        assert time.monotonic_ns() - before < 300_000_000, "the device needs 400 ms"
    program.unharmed()
    assert len(run.device) == 500
    first, last = min(s.ts for s in run.device), max(s.ts + s.dur for s in run.device)
    assert first >= before + 400_000_000 - 2 * run.report["worst_uncertainty_ns"]
    assert last >= first


@on_fake_driver()
def test_a_forked_child_never_touches_the_device(tmp_path: Path) -> None:
    import os

    program = Program()
    stream = program.stream()
    program.begin()
    with recording(tmp_path, "cuda") as run:
        with gputrace.span("on a stream", stream), gputrace.span("on the legacy one", 0):
            pid = os.fork()
            if not pid:
                program.control.reset_calls()
        if not pid:
            with gputrace.span("child", stream), gputrace.span("child", 0):
                pass
            os._exit(sum(program.control.all_calls().values()) and 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    program.unharmed()
    assert {s.name for s in run.device} == {"on a stream", "on the legacy one"}
