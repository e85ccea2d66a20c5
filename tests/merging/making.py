"""Traces of made-up hosts, and what the engine draws of them: what a merge must not change."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gputrace.exporters.chrome import Chrome
from gputrace.exporters.perfetto import Perfetto

import gputrace
from gputrace.model import SLICE, ClockSnapshot, Exporter, Recording
from tests.engine import Engine, Slice, assert_clean, counters, slices
from tests.exporters.recordings import BASE, Script

EXPORTERS: dict[str, type[Exporter]] = {".pftrace": Perfetto, ".json": Chrome}
WALL_NS = 1_790_000_000_000_000_000


class Host:
    """A machine: its name, and how its clocks stand. CLOCK_MONOTONIC is `BASE` at the start of each trace.

    ``boottime_ns`` is BOOTTIME minus MONOTONIC, ``wall_ns`` REALTIME minus MONOTONIC.
    """

    def __init__(self, name: str, boottime_ns: int = 31_000_000_456, wall_ns: int = WALL_NS) -> None:
        self.name = name
        self.boottime_ns = boottime_ns
        self.wall_ns = wall_ns

    def snapshots(self, after_ns: Iterable[int] = (0, 10_000_000_000)) -> list[ClockSnapshot]:
        return [ClockSnapshot(BASE + a + self.boottime_ns, BASE + a, BASE + a + self.wall_ns) for a in after_ns]


def recording_id(number: int) -> str:
    return hashlib.md5(b"recording %d" % number).hexdigest()


def write_trace(
    path: Path,
    host: Host,
    *scripts: Script,
    number: int = 0,
    snapshots: list[ClockSnapshot] | None = None,
    **facts: Any,
) -> Path:
    """A recording of ``scripts`` on ``host``; the format is ``path``'s. ``number`` makes its id."""
    bare = path.name.removesuffix(".gz")
    exporter = EXPORTERS["." + bare.rpartition(".")[2]]
    recording = Recording(recording_id(number), BASE, host.boottime_ns)
    numbers = [script.process.number for script in scripts]
    metadata = {
        "gputrace_version": gputrace.__version__,
        "hostname": host.name,
        "boot_id": f"boot of {host.name}",
        "pid_namespace": "pid:[1]",
        "first_number": min(numbers),
        "last_number": max(numbers),
        **facts,
    }
    data = exporter.header(recording, host.snapshots() if snapshots is None else snapshots, metadata)
    data += b"".join(script.shard(exporter, recording) for script in scripts) + exporter.footer()
    path.write_bytes(gzip.compress(data) if path.name.endswith(".gz") else data)
    return path


def program(number: int = 0, pid: int = 4242, steps: int = 3, name: str = "train.py") -> Script:
    """A thread with nested slices, a stream its arrows lead to, a lane of it, and a counter."""
    script = Script(number, pid, name)
    thread, stream = script.thread(), script.stream()
    loss = script.track("counter", "loss")
    host_edges, gpu_edges, samples = [], [], []
    for step in range(steps):
        at, flow = 1_000 + step * 100_000, step + 1
        host_edges += [
            (at, 1, "step", {"number": step}),
            (at + 10, SLICE, "forward", None, flow, at + 900),
            (at + 5_000, 2),
        ]
        gpu_edges += [(at + 2_000, SLICE, "forward", {"error_ns": 7}, flow, at + 60_000)]
        samples += [(at + 1, 4, 0.5 / (step + 1))]
    script.add(thread, *host_edges)
    script.add(stream, *gpu_edges)
    script.add(loss, *samples)
    return script


class Drawn:
    """What the engine draws of a trace. Times are the timeline's, in ns, also where the file counts from elsewhere."""

    def __init__(self, path: Path) -> None:
        data = path.read_bytes()
        if path.name.endswith(".gz"):
            data = gzip.decompress(data)
        self.engine = Engine(data)
        assert_clean(self.engine)
        base_ns = 0
        if data[:1] == b"[":
            events = json.loads(data)
            [recording] = [e["args"] for e in events if e.get("name") == "gputrace.recording"]
            base_ns = recording["base_ns"] + recording["boottime_offset_ns"]
        self.slices = slices(self.engine)
        for each in self.slices:
            each.ts += base_ns
        self.counters = {
            path: [(ts + base_ns, value) for ts, value in samples] for path, samples in counters(self.engine).items()
        }

    def rows(self, shift_ns: int = 0) -> list[Any]:
        """Every slice with where its arrows lead, sorted; ids, which no two files share, left out."""
        by_id = {each.id: each for each in self.slices}
        return sorted(
            (*_seen(each, shift_ns), sorted(_seen(by_id[id], shift_ns) for id in each.flows_to)) for each in self.slices
        )

    def named(self, name: str) -> list[Slice]:
        return [each for each in self.slices if each.name == name]

    def processes(self) -> dict[int, str]:
        return {
            row["pid"]: row["name"]
            for row in self.engine.query("select pid, name from process where pid != 0 and pid < 4294967295")
        }


def _seen(each: Slice, shift_ns: int) -> tuple[Any, ...]:
    return (each.track, each.name, each.ts + shift_ns, each.dur, each.depth, repr(sorted(each.args.items())))
