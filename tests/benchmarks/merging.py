"""What merging costs: bytes a second of one core, by what must change in them; memory; and how well hosts line up.

    python -m tests.benchmarks.merging few|many

Traces are of two ranks, a million edges a process, and lie in the folder for temporary files. CPU time, not the disk's.
"""

from __future__ import annotations

import json
import random
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from gputrace.exporters.perfetto import Perfetto

import gputrace
from gputrace.merging.merge import Options, merge
from gputrace.model import SLICE, THREAD, ClockSnapshot, Process, Recording, Track
from tests.benchmarks.figures import Row, in_child, print_rows, rows_of

BASE = 10**15
WALL_NS = 1_790_000_000_000_000_000
EDGES = 500_000  # slices a process, each a begin and an end
COLLECTIVES = 400
EVENTS = 100_000  # of the profile
BATCH = 500


def measure(quick: bool = False) -> list[Row]:
    few, many = (rows_of(in_child("merging", size, fake=False)) for size in ("few", "few" if quick else "many"))
    [grown] = [row for row in many if row.unit == "MB"]
    [least] = [row for row in few if row.unit == "MB"]
    rows = [row for row in many if row.unit != "MB"]
    note = f"{least.note} to {grown.note}, {least.measured:.0f} MB at first"
    return [*rows, Row("memory that a larger merge takes more", grown.measured - least.measured, 16, "MB", note=note)]


def trace(path: Path, host: str, rank: int, processes: int, first_number: int, ppm: float = 0.0) -> int:
    """A recording of a rank whose clock runs ``ppm`` fast, its size in bytes."""
    chance = random.Random(rank)
    recording = Recording(f"{chance.getrandbits(128):032x}", BASE, 10**12 * (1 + int(host[-1])))
    snapshots = [ClockSnapshot(BASE + recording.boottime_offset_ns, BASE, WALL_NS)]
    numbers = {"first_number": first_number, "last_number": first_number + processes - 1}
    facts = {
        "gputrace_version": gputrace.__version__,
        "hostname": host,
        "boot_id": host,
        "pid_namespace": host,
        **numbers,
    }
    with open(path, "wb") as file:
        file.write(Perfetto.header(recording, snapshots, facts))
        for number in range(first_number, first_number + processes):
            process = Process(number, 100 + number, "train.py", [], BASE, lambda: 0)
            writer, track = Perfetto(file, recording, process), Track(1, THREAD, "MainThread", tid=100 + number)
            writer.open_track(track)
            edges: list[Any] = []
            now = BASE
            for _ in range(EDGES):
                begin = now + int(chance.expovariate(1 / 10_000))
                now = begin + int(chance.expovariate(1 / 10_000))
                edges.append((begin, SLICE, f"kernel {chance.randrange(50)}", None, 0, now))
            for start in range(0, len(edges), BATCH):
                writer.write(track, edges[start : start + BATCH])
            if number == first_number:
                collectives = Track(2, THREAD, "collectives", tid=1)
                writer.open_track(collectives)
                writer.write(collectives, left_together(rank, ppm))
            writer.flush()
        file.write(Perfetto.footer())
    return path.stat().st_size


def left_together(rank: int, ppm: float) -> list[Any]:
    """All-reduces that every rank leaves at one true time and some us of its own, a straggler now and then."""
    together, own = random.Random(0), random.Random(rank + 1)
    edges: list[Any] = []
    true_ns = 0
    for _ in range(COLLECTIVES):
        true_ns += int(together.uniform(0.2e9, 0.3e9))
        late_ns = own.expovariate(1 / 15_000) + (own.expovariate(1 / 2e6) if own.random() < 0.1 else 0)
        at = BASE + round((true_ns + late_ns) * (1 + ppm * 1e-6)) + rank * 700_000_000
        edges.append((at - 1_000_000, SLICE, "all_reduce", None, 0, at))
    return edges


def profile(path: Path, events: int, first_us: int = 0) -> None:
    """In the shape of torch.profiler's."""
    chance = random.Random(9)
    with open(path, "w") as file:
        head = {"schemaVersion": 1, "host_name": "node0", "baseTimeNanoseconds": WALL_NS, "traceName": "x"}
        file.write(json.dumps(head)[:-1] + ', "traceEvents": [\n')
        for n in range(events):
            name = f"aten::{chance.randrange(50)}"
            event = {"ph": "X", "cat": "cpu_op", "name": name, "pid": 9000, "tid": 9000}
            args = json.dumps({"External id": n, "Ev Idx": n})
            times = f'"ts": {first_us + 21 * n // 2}.{n % 2 * 500:03}, "dur": 7.125'
            file.write(f'{json.dumps(event)[:-1]}, {times}, "args": {args}}},\n')
        file.write('{"ph": "i", "s": "g", "name": "end", "pid": "", "tid": "", "ts": 1}]}')


def timed(paths: list[Path], output: Path, **options: Any) -> tuple[float, Any]:
    """CPU seconds of a merge, and what came of it."""
    started = time.process_time()
    outcome = merge(tuple(map(str, paths)), str(output), Options(**options))
    taken = time.process_time() - started
    assert not outcome.problems, outcome.problems
    assert len(outcome.merged) == len(paths)
    return taken, outcome


def main(size: str) -> None:
    processes = 2 if size == "few" else 12
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        output = place / "all.pftrace"
        pairs = {
            "merging, nothing to change": ("node0", 64, 0.0),
            "merging, packet sequences to renumber": ("node0", 0, 0.0),
            "merging another host: ids, pids and clock to change": ("node1", 0, 30.0),
        }
        one = place / "rank0.pftrace"
        bytes_of_one = trace(one, "node0", 0, processes, 0)
        rows = []
        warm = place / "warm.pftrace"
        trace(warm, "node0", 5, 1, 200)
        timed([warm], output)  # imports
        for what, (host, first, ppm) in pairs.items():
            other = place / "rank1.pftrace"
            total = bytes_of_one + trace(other, host, 1, processes, first, ppm)
            best = min(timed([one, other], output)[0] for _ in range(3))
            rows.append(Row(what, total / best / 1e6, 200 if first else None, "MB/s", True))
            if ppm:
                # To find the collectives, both are read through first.
                taken, _ = timed([one, other], output, align="collectives")
                rows.append(Row(f"{what}, aligned by collectives", total / taken / 1e6, unit="MB/s"))
            other.unlink()
        profile(place / "k.json", EVENTS)
        taken, _ = timed([place / "k.json"], output)
        rows.append(Row("merging a torch profile into .pftrace, events", EVENTS / taken / 1e3, unit="k/s"))
        peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
        rows.append(Row("peak", peak_mb, unit="MB", note=f"{2 * bytes_of_one / 1e6:.0f} MB"))
        print_rows(rows)


if __name__ == "__main__":
    main(sys.argv[1])
