"""A whole recording on a real device, read back with Perfetto's own engine."""

from __future__ import annotations

import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import gputrace
from tests.engine import Engine, Slice, assert_clean, slices
from tests.gpu.device import GPU, check

ROOT = Path(__file__).parents[2]


def on_gpu(path: Path) -> list[Slice]:
    engine = Engine(path)
    assert_clean(engine)
    return [s for s in slices(engine) if any(step.startswith("GPU ") for step in s.track)]


def on_host(path: Path) -> list[Slice]:
    return [s for s in slices(Engine(path)) if not any(step.startswith("GPU ") for step in s.track)]


def test_two_streams_overlap(gpu: GPU, tmp_path: Path) -> None:
    path = tmp_path / "two.pftrace"
    first, second = gpu.stream(), gpu.stream()
    for stream in (first, second):  # the first launch loads the kernel, which may wait for the device
        gpu.launch(stream, 1000)
        gpu.wait_for(stream)
    with gputrace.trace(path, device="cuda") as running:
        for _ in range(5):
            with gputrace.span("left", stream=first):
                gpu.launch(first, 3_000_000)
            with gputrace.span("right", stream=second):
                gpu.launch(second, 3_000_000)
            gpu.wait_for(first)
            gpu.wait_for(second)
    assert running.summary is not None
    assert running.summary.windows == 10
    assert running.summary.failed == running.summary.clock_violations == 0
    found = on_gpu(path)
    left, right = ([s for s in found if s.name == name] for name in ("left", "right"))
    assert len(left) == len(right) == 5
    assert {s.track for s in left} != {s.track for s in right}
    overlaps_ns = [
        min(one.ts + one.dur, other.ts + other.dur) - max(one.ts, other.ts)
        for one, other in zip(left, right, strict=True)
    ]
    assert statistics.median(overlaps_ns) > 1_000_000, overlaps_ns  # a busy host may be late with a launch or two


def test_a_capture_is_left_alone_and_a_replay_is_one_window(gpu: GPU, tmp_path: Path) -> None:
    driver = gpu.driver
    path = tmp_path / "graph.pftrace"
    stream, other = gpu.stream(), gpu.stream()
    over = threading.Event()

    def elsewhere() -> None:
        """Windows on another thread, so that the collector has something to query all through the capture."""
        gpu.make_current()
        while not over.is_set():
            with gputrace.span("elsewhere", stream=other):
                pass
            time.sleep(0.001)

    with gputrace.trace(path, device="cuda") as running:
        with gputrace.span("before", stream=stream):
            gpu.launch(stream, 10_000)
        thread = threading.Thread(target=elsewhere)
        thread.start()
        try:
            check(driver.cuStreamBeginCapture(stream, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL))
            end = time.monotonic() + 0.6  # two anchors and more
            while time.monotonic() < end:
                with gputrace.span("captured", stream=stream):
                    gpu.launch(stream, 10_000)
                time.sleep(0.05)
            graph = check(driver.cuStreamEndCapture(stream))
        finally:
            over.set()
            thread.join()
        executable = check(driver.cuGraphInstantiate(graph, 0))
        for _ in range(3):
            with gputrace.span("replay", stream=stream):
                check(driver.cuGraphLaunch(executable, stream))
        gpu.wait_for(stream)
    check(driver.cuGraphExecDestroy(executable))
    check(driver.cuGraphDestroy(graph))
    names = [s.name for s in on_gpu(path)]
    assert names.count("before") == 1
    assert names.count("replay") == 3
    assert names.count("elsewhere") > 10
    assert "captured" not in names
    replays = [s for s in on_gpu(path) if s.name == "replay"]
    assert all(s.dur > 50_000 for s in replays)  # at least ten kernels of 10 us, in one window
    captured = [s for s in on_host(path) if s.name == "captured"]
    assert len(captured) > 5
    assert all("captured" in s.args["gpu"] for s in captured)
    assert running.summary is not None
    assert running.summary.capture_skipped == len(captured)
    assert running.summary.failed == 0


def test_nothing_is_left_on_the_device(gpu: GPU, tmp_path: Path) -> None:
    stream = gpu.stream()
    before = _live(gpu)
    for number in range(2):
        with gputrace.trace(tmp_path / f"{number}.pftrace", device="cuda"):
            for _ in range(200):
                with gputrace.span("step", stream=stream):
                    gpu.launch(stream, 1000)
        assert int(check(gpu.driver.cuCtxGetCurrent())) == int(gpu.context)
    assert _live(gpu) == before


def _live(gpu: GPU) -> Any:
    """Events and streams that exist. A real driver does not tell: there the test is that stopping works twice."""
    if not gpu.is_fake:
        return None
    from tests.fake_driver import control

    return control.live("event"), control.live("stream")


_UNTOUCHED = """
import sys
import gputrace
from cuda.bindings import driver
with gputrace.trace(sys.argv[1], device="cuda"):
    for stream in (None, 0, 1, 2):
        with gputrace.span("host alone", stream=stream):
            pass
code, = driver.cuInit(0)
assert int(code) == 0
code, flags, active = driver.cuDevicePrimaryCtxGetState(driver.cuDeviceGet(0)[1])
assert int(code) == 0
assert int(driver.cuCtxGetCurrent()[1]) == 0
print("active" if active else "untouched")
"""


def test_no_context_is_made(gpu: GPU, tmp_path: Path) -> None:
    command = [sys.executable, "-c", _UNTOUCHED, str(tmp_path / "none.pftrace")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "untouched"
