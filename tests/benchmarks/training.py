"""What a training step on the CPU costs more while it is traced: by each of gputrace's options, and by other tracers.

The model is a transformer as small as they get, whose steps are nearly all Python and dispatch: larger ones pay less.
Steps with a tracer and without take turns in one process, a process for each tracer; the figure is the median of the
ratios in processor time of all threads, what a tracer does on its own included and what it does after the steps not.
"""

from __future__ import annotations

import contextlib
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

from gputrace.instrument.registry import PATCHES
from tests.benchmarks.figures import Row, print_rows
from tests.benchmarks.peers import OURS, Peer, attempt, measure_each


def measure(quick: bool = False) -> list[Row]:
    return measure_each("training", TRACERS, 10 if quick else 30, fake=False)


def run(name: str, rounds: int) -> list[Row]:
    tracer = TRACERS[name]
    return attempt(tracer, "x", False, lambda folder: step_ratio(tracer.function, folder, rounds))


def step_ratio(tracer: Callable[[Path], AbstractContextManager[Any]], folder: Path, rounds: int) -> float:
    """The median ratio of traced steps to bare ones, each round between two runs of those."""
    import torch

    from tests.torch.overhead import make_step

    torch.set_num_threads(1)
    steps = make_step("tiny")

    def took_ns() -> int:
        begin_ns = time.process_time_ns()
        steps()
        return time.process_time_ns() - begin_ns

    def traced_ns() -> int:
        with tracer(folder):
            steps()  # code is made ready for a tracer as it runs for the first time
            return took_ns()

    traced_ns()
    ratios = []
    before = took_ns()
    for _ in range(rounds):
        traced = traced_ns()
        took_ns()  # undone by then, too
        after = took_ns()
        ratios.append(2 * traced / (before + after))
        before = after
    return statistics.median(ratios)


@contextlib.contextmanager
def gputrace_with(instruments: bool | list[str], folder: Path) -> Iterator[None]:
    import gputrace

    recording = gputrace.trace(folder / "training.pftrace", "host", instrument=instruments)
    with recording:
        yield
    if recording.summary is None or recording.summary.told:
        raise RuntimeError(f"it did not run: {recording.summary}")


def torch_profiler(folder: Path, **settings: bool) -> AbstractContextManager[Any]:
    from torch.profiler import ProfilerActivity, profile

    return profile(activities=[ProfilerActivity.CPU], **settings)


@contextlib.contextmanager
def viztracer(folder: Path) -> Iterator[None]:
    from viztracer import VizTracer

    tracer = VizTracer(verbose=0)
    tracer.start()
    try:
        yield
    finally:
        tracer.stop()
        tracer.clear()


def option(name: str, *instruments: str, note: str = "") -> Peer:
    """What is on by default, and this besides."""
    default = [each for each, patch in PATCHES.items() if patch.default]
    return Peer(f"gputrace, `{name}`", partial(gputrace_with, [*default, *instruments]), note)


TRACERS = {
    OURS: Peer("gputrace, no option", partial(gputrace_with, True), "modules, backward, optimizer, batches"),
    "backward": option("--torch-backward", "torch.backward", note="each module's backward besides"),
    "ops": option("--torch-ops", "torch.ops", note="operators besides"),
    "python": option("--python", "python.calls", "python.exceptions", note="the program's own calls besides"),
    "profiler": Peer("torch.profiler", torch_profiler, "operators"),
    "profiler with shapes": Peer("torch.profiler, `record_shapes`", partial(torch_profiler, record_shapes=True)),
    "profiler with stacks": Peer(
        "torch.profiler, `with_stack`", partial(torch_profiler, with_stack=True), "every Python call"
    ),
    "viztracer": Peer("viztracer", viztracer, "every call, of C functions too"),
}


if __name__ == "__main__":
    print_rows(run(sys.argv[1], int(sys.argv[2])))
