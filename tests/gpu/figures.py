"""Figures of a real device: how well its clock can be tied, what a span costs on a real driver, how windows are placed.

    python -m tests.gpu.figures

`run.py` runs it after the tests. On the fake driver the numbers mean nothing but that they can be taken.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path

from tests.benchmarks.figures import Row, machine, paired_ratio, table
from tests.gpu.device import GPU, NoGPU, open_gpu

SPANS = 50  # twice as many records must fit the driver's queue
ROUNDS = 200
WINDOWS = 400


def clocks(gpu: GPU) -> list[Row]:
    """Anchors on an idle GPU."""
    import gputrace
    from gputrace.anchoring import measure

    quality = measure(gputrace.device("cuda", gpu.stream()), 3.0)
    assert quality.skew_ppm is not None
    note = f"±{quality.skew_error_ppm:.2f} over {quality.seconds:.1f} s"
    return [
        Row("anchor bracket, median", quality.bracket_ns / 1e3, unit="µs"),
        Row("skew of the GPU's clock", quality.skew_ppm, unit="ppm", note=note),
    ]


def host_cost(gpu: GPU) -> list[Row]:
    """A span over two bare records, both on a real driver; the stream is empty before each round."""
    import gputrace
    from tests.benchmarks.program import bare_records, spans

    stream = gpu.stream()
    bare = bare_records(gpu.driver, stream, SPANS)

    def idle() -> None:
        gpu.wait_for(stream)
        time.sleep(0.003)

    def ratio(subject: object) -> float:
        assert callable(subject)
        for _ in range(50):
            subject()
            idle()
        return paired_ratio(subject, bare, ROUNDS, idle)

    with tempfile.TemporaryDirectory() as folder, gputrace.trace(Path(folder) / "cost.pftrace", device="cuda"):
        on_stream, plain = ratio(spans(SPANS, stream)), ratio(spans(SPANS))
    started = time.perf_counter_ns()
    for _ in range(20):
        bare()
        gpu.wait_for(stream)
    each_ns = (time.perf_counter_ns() - started) / 20 / SPANS
    return [
        Row("host cost of a host+GPU span", on_stream, 3.5, note=f"two bare records take {each_ns:.0f} ns here"),
        Row("host cost of a host-only span", plain),
    ]


def placement(gpu: GPU) -> list[Row]:
    """How long after a window's end, as placed, a host that waits for the stream sees it; and never before."""
    import gputrace
    from gputrace import EventProfiler

    stream = gpu.stream()
    behind, early, stated = [], 0, []
    with EventProfiler(gputrace.device("cuda", stream)) as profiler:
        seen = []
        for _ in range(WINDOWS):
            gpu.wait_for(stream)
            before_ns = time.monotonic_ns()
            token = profiler.start(stream)
            gpu.launch(stream, 20_000)
            measurement = profiler.stop(stream, token)
            gpu.wait_for(stream)
            seen.append((before_ns, time.monotonic_ns(), measurement))
            profiler.tick()
            time.sleep(0.005)
        for before_ns, after_ns, measurement in seen:
            reading = measurement.result(10)
            assert reading.start_ns is not None
            assert reading.end_ns is not None
            assert reading.uncertainty_ns is not None
            behind.append(after_ns - reading.end_ns)
            early += reading.start_ns + reading.uncertainty_ns < before_ns
            early += reading.end_ns - reading.uncertainty_ns > after_ns
            stated.append(reading.uncertainty_ns)
    return [
        Row(
            "from a window's end, as placed, to a waiting host's seeing it", statistics.median(behind) / 1e3, unit="µs"
        ),
        Row("the same, least", min(behind) / 1e3, unit="µs", note="below 0 by more than what is stated is wrong"),
        Row("what windows state, median", statistics.median(stated) / 1e3, unit="µs"),
        Row("windows outside what the host saw", early, 0, unit=""),
    ]


def main() -> int:
    try:
        gpu = open_gpu()
    except NoGPU as reason:
        print(f"no figures: {reason}")
        return 0
    rows = [*clocks(gpu), *host_cost(gpu), *placement(gpu)]
    print(f"{table(rows)}\n\n{gpu.name}; {machine()}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
