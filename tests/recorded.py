"""Records a piece of this process and reads it back with Perfetto's own engine.

    with recording(tmp_path) as run:                 # a tracer on a simulated GPU of its own
        with gputrace.span("step", stream=run.stream()):
            ...
    run.slices                                       # what the engine drew; run.report what the tracer counted

The recording's clock offset is 0, so a slice's ``ts`` is the program's own `time.monotonic_ns`. Every run checks on its
way out what no test may break: the engine dropped nothing, every END met its BEGIN, children stay inside their parents,
and every event went back to the device.
"""

from __future__ import annotations

import contextlib
import importlib
import threading
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from gputrace import devices, tracer
from gputrace.devices.simulated import NOT_READY, DriftingClock, SimulatedBackend, SimulatedGPU, SimulatedStream
from gputrace.model import Recording
from gputrace.record.join import join
from gputrace.record.kept import draw_shards
from gputrace.shards import ShardFolder
from tests.engine import Engine, Slice, assert_clean, counters, slices

EXPORTERS = {
    ".pftrace": "gputrace.exporters.perfetto:Perfetto",
    ".json": "gputrace.exporters.chrome:Chrome",
}


class Stamp(NamedTuple):
    """One event that the program's own thread recorded, and the truth about it."""

    stream: int
    host_ns: int


class WatchedGPU(SimulatedGPU):
    """A simulated GPU that remembers what each thread recorded on it. The tracer's own anchors are not among these."""

    def __init__(self, ordinal: int = 0, clock: DriftingClock | None = None) -> None:
        super().__init__(ordinal, clock or DriftingClock(skew_ppm=50, wander_ppm=10))
        self.stamps: dict[int, list[Stamp]] = defaultdict(list)  # by thread ident
        self.refuse_next = 0  # so many records of the program fail
        self.behind = False  # nothing that the program recorded has been reached
        self.program_streams = 0
        plain, plain_elapsed = self.record_raw, self.elapsed_raw

        def record(event: Any, stream: Any) -> tuple[int]:
            if self.refuse_next:
                self.refuse_next -= 1
                return (700,)
            code = plain(event, stream)
            if not code[0]:
                native = self._native(stream)
                self.stamps[threading.get_ident()].append(Stamp(native.handle, event.true_host_ns))
            return code

        def elapsed(start: Any, end: Any) -> tuple[int, float]:
            return (NOT_READY, 0.0) if self.behind else plain_elapsed(start, end)

        self.record_raw = record
        self.elapsed_raw = elapsed

    def stream(self, name: str = "") -> SimulatedStream:
        self.program_streams += 1
        return super().stream(name)

    def mine(self) -> list[Stamp]:
        """What the calling thread recorded, in order."""
        return self.stamps[threading.get_ident()]


class Run:
    """One recording: while it lasts, the GPUs; afterwards, what came of it."""

    def __init__(self, folder: ShardFolder, gpus: list[WatchedGPU], suffix: str) -> None:
        self.folder = folder
        self.gpus = gpus
        self.suffix = suffix
        if gpus:
            self.gpu = gpus[0]
        self.trace = b""
        self.report: dict[str, Any] = {}
        self.slices: list[Slice] = []
        self.counters: dict[tuple[str, ...], list[tuple[int, float]]] = {}
        self.engine: Engine | None = None

    def stream(self, name: str = "", gpu: int = 0) -> SimulatedStream:
        return self.gpus[gpu].stream(name)

    @property
    def host(self) -> list[Slice]:
        return [s for s in self.slices if not is_gpu(s)]

    @property
    def device(self) -> list[Slice]:
        return [s for s in self.slices if is_gpu(s)]

    def named(self, name: str) -> list[Slice]:
        return [s for s in self.slices if s.name == name]

    def parent_name(self, child: Slice) -> str | None:
        """The name of the slice a slice lies in, on its own track."""
        parent = enclosing(self.slices, child)
        return None if parent is None else parent.name


def is_gpu(slice: Slice) -> bool:
    return any(step.startswith("GPU ") for step in slice.track)


def enclosing(all_slices: list[Slice], child: Slice) -> Slice | None:
    """The slice one level up on the same track that holds a slice's begin."""
    above = [
        s
        for s in all_slices
        if s.track_id == child.track_id
        and s.depth == child.depth - 1
        and s.ts <= child.ts
        and (s.dur < 0 or child.ts + max(child.dur, 0) <= s.ts + s.dur)
    ]
    return above[-1] if above else None


def assert_nested(all_slices: list[Slice]) -> None:
    """On every track, a slice deeper than the top lies inside one a level up."""
    tracks: dict[int, list[Slice]] = defaultdict(list)
    for s in all_slices:
        tracks[s.track_id].append(s)
    for on_track in tracks.values():
        stack: list[Slice] = []
        for s in sorted(on_track, key=lambda s: (s.ts, s.depth)):
            del stack[s.depth :]
            assert len(stack) == s.depth, s
            if stack and stack[-1].dur >= 0:
                assert stack[-1].ts <= s.ts, (stack[-1], s)
                assert s.ts + max(s.dur, 0) <= stack[-1].ts + stack[-1].dur, (stack[-1], s)
            stack.append(s)


@contextlib.contextmanager
def recording(
    path: Path,
    device: str = "simulated",
    *,
    suffix: str = ".pftrace",
    gpus: int | list[WatchedGPU] = 1,
    leaked_events: int | None = 0,
    check: bool = True,
    exporter: str = "",
    options: dict[str, Any] | None = None,
) -> Iterator[Run]:
    """Record the block. ``leaked_events``: those of windows that the program left open; None: however many.
    ``options``: as `ShardFolder` takes them.
    """
    made = [WatchedGPU(n) for n in range(gpus)] if isinstance(gpus, int) else gpus
    backend: Any = mock.patch.object(devices, "open_backend", return_value=SimulatedBackend(made))
    if device == "cuda":  # whatever driver this process has
        made, backend = [], contextlib.nullcontext()
    number = sum(1 for p in path.iterdir() if p.name.startswith("shards"))
    place = path / f"shards{number}"
    place.mkdir()
    folder = ShardFolder.create(
        str(place), Recording(f"{number:032x}", 0, 0), suffix, exporter or EXPORTERS[suffix], device, options=options
    )
    run = Run(folder, made, suffix)
    with backend:
        recorder = tracer.Tracer(folder, device)
        recorder.start()
        try:
            yield run
        finally:
            recorder.stop()
    run.report = recorder.report()
    read_back(run)
    if check:
        assert run.engine is None or assert_clean(run.engine) is None
        assert_nested(run.slices)
        for gpu in made:
            if leaked_events is not None:
                assert gpu.live_events == leaked_events, f"{gpu.live_events} events alive, {leaked_events} expected"
            assert gpu.live_streams == gpu.program_streams


def read_back(run: Run) -> None:
    """Join what the folder holds and load it into the engine."""
    module, _, name = run.folder.exporter.partition(":")
    exporter = getattr(importlib.import_module(module), name)
    output = f"{run.folder.path}/joined{run.suffix}"
    if "last_ns" in run.folder.options:
        draw_shards(run.folder, exporter, set())
    if not join(run.folder, output, exporter, gzip=False, metadata={}):
        return
    run.trace = Path(output).read_bytes()
    run.engine = Engine(run.trace)
    run.slices = slices(run.engine)
    run.counters = counters(run.engine)
