"""A device's clock that is set while it is traced (a suspend, a reset): what cannot be known is not claimed."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import gputrace
from gputrace.devices.simulated import DriftingClock
from tests.recorded import WatchedGPU, recording

MS = 1_000_000


class SetClock(DriftingClock):
    """Shows ``by_ns`` more from the host time ``at_ns`` on."""

    at_ns = 1 << 62
    by_ns = 0

    def device_ns(self, host_ns: int) -> int:
        return super().device_ns(host_ns) + (self.by_ns if host_ns >= self.at_ns else 0)


@pytest.mark.parametrize("by_ns", [5 * MS, 1000 * MS, -100 * MS, -10_000 * MS])
def test_every_window_is_within_what_the_trace_says(tmp_path: Path, by_ns: int) -> None:
    clock = SetClock(skew_ppm=50, wander_ppm=10)
    gpu = WatchedGPU(0, clock)
    with recording(tmp_path, gpus=[gpu]) as run:
        stream = gpu.stream()
        begin_ns = time.monotonic_ns()
        clock.by_ns, clock.at_ns = by_ns, begin_ns + 600 * MS
        count = 0
        while time.monotonic_ns() < begin_ns + 1600 * MS:
            with gputrace.span(f"w{count}", stream=stream):
                stream.launch(5 * MS)
            count += 1
            time.sleep(0.03)
    stamps = gpu.mine()
    ((_, samples),) = [each for each in run.counters.items() if "clock uncertainty" in each[0][-1]]
    drawn = {each.name: each for each in run.device}
    off = []
    for number in range(count):
        window = drawn[f"w{number}"]
        for drawn_ns, stamp in ((window.ts, stamps[2 * number]), (window.ts + window.dur, stamps[2 * number + 1])):
            stated_ns = next((value for at_ns, value in reversed(samples) if at_ns <= drawn_ns), 0)
            if abs(drawn_ns - stamp.host_ns) > stated_ns:
                off.append(window)
    assert all("cannot be trusted" in str(window.args.get("clock")) for window in off), off
    assert len(off) <= count / 2, "an anchor sets it right"
    assert run.report["clock_violations"] == len({window.name for window in off if "clock" in window.args}) or not off
    assert any("was set by" in text for text in run.report["told"])
