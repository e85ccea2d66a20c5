"""What writing costs other tracers, beside this one: from slices that are recorded to a file.

In events, two a slice, a second of CPU time: of all that is left to do once the slices are there, or of the thread that
writes meanwhile. The best of rounds.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.benchmarks.figures import Row, print_rows
from tests.benchmarks.peers import OURS, Peer, attempt, calls, measure_each, with_blocks

SLICES = 100_000


def measure(quick: bool = False) -> list[Row]:
    return measure_each("peer_writing", WRITERS, 2 if quick else 5)


def run(name: str, rounds: int) -> list[Row]:
    writer = WRITERS[name]
    return attempt(
        writer, "M/s", True, lambda folder: max(writer.function(folder / str(number)) for number in range(rounds)) / 1e6
    )


def pace(write: Callable[[], object]) -> float:
    """Events a second of the process's CPU time."""
    start = time.process_time()
    write()
    return 2 * SLICES / (time.process_time() - start)


def gputrace_collector(path: Path) -> float:
    from tests.benchmarks.program import spans
    from tests.benchmarks.writing import OPENED, collected

    return collected(spans(OPENED), 2, 0.5)


def viztracer_save(path: Path) -> float:
    from viztracer import VizTracer

    tracer = VizTracer(verbose=0)
    tracer.start()
    calls(SLICES)()
    tracer.stop()
    return pace(lambda: tracer.save(f"{path}.json"))


def torch_export(path: Path) -> float:
    from torch.profiler import ProfilerActivity, profile, record_function

    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        with_blocks(record_function, SLICES)()
    return pace(lambda: profiler.export_chrome_trace(f"{path}.json"))


def trace0_thread(path: Path) -> float:
    from trace0 import Tracer

    loop = calls(SLICES)
    total = time.process_time()
    with Tracer(f"{path}.pb", trace_subprocesses=False):
        thread = time.thread_time()
        loop()
        recording = time.thread_time() - thread
    return 2 * SLICES / (time.process_time() - total - recording)


def perfetto_builder(path: Path) -> float:
    from tests.benchmarks.writing import edges, write_with_package

    few = edges(2 * SLICES)
    return pace(lambda: path.write_bytes(write_with_package(few)))


WRITERS = {
    OURS: Peer("gputrace, collecting and writing", gputrace_collector),
    "viztracer": Peer("viztracer, `save`", viztracer_save, "JSON"),
    "torch": Peer("torch, `export_chrome_trace`", torch_export, "JSON"),
    "trace0": Peer("trace0, its own thread", trace0_thread, "Python 3.13 and later"),
    "perfetto": Peer("the perfetto package's builder", perfetto_builder),
}


if __name__ == "__main__":
    print_rows(run(sys.argv[1], int(sys.argv[2])))
