"""What a thousand traces cost to sum up: on all CPUs by Dask beside one after another, and the memory of each process.

    python -m tests.benchmarks.fleet TRACES

Traces are of one rank, three thousand slices each, and lie in the folder for temporary files. Both ways must say the
same.
"""

from __future__ import annotations

import random
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from gputrace.exporters.perfetto import Perfetto

import gputrace
from gputrace.analysis.summary import Summarizer
from gputrace.fleet.job import do
from gputrace.fleet.pool import Pool, cpus
from gputrace.model import BEGIN, END, GROUP, SLICE, STREAM, THREAD, ClockSnapshot, Process, Recording, Track
from tests.benchmarks.figures import Row, in_child, print_rows, rows_of

TRACES = 1_000
STEPS = 1_000  # three slices each
BASE = 10**15
WALL_NS = 1_790_000_000_000_000_000
MEMORY_BYTES = 1 << 30
NAMES = 20


def measure(quick: bool = False) -> list[Row]:
    return rows_of(in_child("fleet", str(TRACES // 10 if quick else TRACES), fake=False))


def trace(path: Path, number: int, steps: int = STEPS) -> None:
    """Steps on the host, each launching a window on a GPU, their lengths normally distributed."""
    chance = random.Random(number)
    recording = Recording(f"{chance.getrandbits(128):032x}", BASE, 10**12)
    snapshots = [ClockSnapshot(BASE + 10**12, BASE, WALL_NS)]
    facts = {"gputrace_version": gputrace.__version__, "hostname": "node0", "first_number": 0, "last_number": 0}
    with open(path, "wb") as file:
        file.write(Perfetto.header(recording, snapshots, facts))
        writer = Perfetto(file, recording, Process(0, 100, "train.py", [], BASE, lambda: 0))
        thread, group = Track(1, THREAD, "MainThread", tid=100), Track(2, GROUP, "GPU 0 · simulated")
        stream = Track(3, STREAM, "stream 7", parent=group)
        for track in (thread, group, stream):
            writer.open_track(track)
        host: list[Any] = []
        gpu: list[Any] = []
        for step in range(steps):
            at, name = BASE + step * 90_000, f"layer {step % NAMES}"
            launch_ns, work_ns = round(chance.gauss(20_000, 1_000)), round(chance.gauss(40_000, 2_000))
            host += [
                (at, BEGIN, "step", None, 0, 0),
                (at + 100, SLICE, name, None, step + 1, at + 100 + launch_ns),
                (at + 60_000, END, None, None, 0, 0),
            ]
            gpu.append((at + 30_000, SLICE, name, None, step + 1, at + 30_000 + work_ns))
            if len(gpu) >= STEPS or step == steps - 1:
                writer.write(thread, host)
                writer.write(stream, gpu)
                host, gpu = [], []
        writer.flush()
        file.write(Perfetto.footer())


def summed(read: Any) -> Summarizer:
    """One trace, as it comes back from whoever read it."""
    summarizer = Summarizer()
    summarizer.add(read)
    return summarizer


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def one_after_another(files: list[str]) -> tuple[float, Summarizer]:
    """Seconds that it took, and what they say."""
    whole = Summarizer()
    started = time.perf_counter()
    for file in files:
        whole.merge(do(file, summed).result)
    return time.perf_counter() - started, whole


def in_parallel(files: list[str]) -> tuple[float, float, Summarizer, float]:
    """Seconds that it took, from before there is any process and from when all are there; what they say; and the most
    memory that one of them took, in MB.
    """
    whole = Summarizer()
    started = time.perf_counter()
    with Pool("", MEMORY_BYTES, len(files)) as pool:
        there = time.perf_counter()
        for done in pool.map([(file, summed) for file in files]):
            whole.merge(done.result)
        ended = time.perf_counter()
        most_mb = max(pool.of_each(peak_mb))
    return ended - started, ended - there, whole, most_mb


def main(count: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        files = [str(Path(folder) / f"{number:04}.pftrace") for number in range(count)]
        for number, file in enumerate(files):
            trace(Path(file), number)
        megabytes = sum(Path(file).stat().st_size for file in files) / 1e6
        one_after_another(files[:20])  # imports
        before_s, alone = one_after_another(files)
        together_s, of_it_s, together, most_mb = in_parallel(files)
        after_s, _ = one_after_another(files)
        alone_s = (before_s + after_s) / 2  # a machine's speed drifts
        assert together.summary().as_dict() == alone.summary().as_dict()
        assert not together.approximate
    slices = count * STEPS * 3
    note = f"{count:,} traces of {STEPS * 3:,} slices"
    aside = f"{together_s:.1f} s to {alone_s:.1f} s, {cpus()} CPUs"
    what = "summing traces up on all CPUs, to one after another"
    print_rows(
        [
            Row(f"{what}, start and all", together_s / alone_s, note=note, aside=aside),
            Row(f"{what}, once its processes are there", of_it_s / alone_s),
            Row(
                "summing them up one after another, slices",
                slices / alone_s / 1e3,
                unit="k/s",
                aside=f"{megabytes:.0f} MB",
            ),
            Row("the most memory that one of the processes took", most_mb, 300, unit="MB"),
        ]
    )


if __name__ == "__main__":
    main(int(sys.argv[1]))
