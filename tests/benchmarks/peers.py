"""What a host slice costs with other tracers, beside this one: each by its own package.

In units of two bare `cuEventRecord`, as in `host_cost`. Each tracer has a process of its own, and is on for its own
loop alone where it would slow the baseline. One that is not installed has a row that says so:
``pip install '.[bench]'``, and torch and triton.
"""

from __future__ import annotations

import contextlib
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tests.benchmarks.figures import Row, in_child, print_rows, rows_of, twin, twins, using

SLICES = 1000  # between two looks at the clock
PAUSE_S = 0.01
OURS = "gputrace"


def measure(quick: bool = False) -> list[Row]:
    return measure_each("peers", TRACERS, 30 if quick else 150)


def run(name: str, rounds: int) -> list[Row]:
    tracer = TRACERS[name]
    return attempt(tracer, "x", False, lambda folder: slice_cost(tracer.function, folder, rounds))


class Peer(NamedTuple):
    """A tracer, what its row is called, and what one must know of it."""

    what: str
    function: Callable[..., Any]
    note: str = ""


def measure_each(module: str, known: dict[str, Peer], rounds: int, *, fake: bool = True) -> list[Row]:
    """Each peer by ``python -m tests.benchmarks.MODULE NAME ROUNDS``, ours once a twin; ``fake``: with that driver."""
    rows: list[Row] = []
    for name in known:
        for each in reversed(twins()) if known[name].what.startswith(OURS) else ("",):
            with using(each):
                rows += rows_of(in_child(module, name, str(rounds), fake=fake, null=1))
    return rows


def attempt(peer: Peer, unit: str, at_least: bool, measured: Callable[[Path], float]) -> list[Row]:
    """Its row; one without a figure where its package is missing or fails."""
    what = f"{peer.what}, {twin()}" if peer.what.startswith(OURS) else peer.what
    row = Row(what, None, unit=unit, at_least=at_least, note=peer.note)
    try:
        with tempfile.TemporaryDirectory() as folder:
            row.measured = measured(Path(folder))
    except ImportError as error:
        print(error, file=sys.stderr)
        row.aside = "not installed"
    except Exception as error:  # whatever another's package raises on a machine it was not made for
        print(repr(error), file=sys.stderr)
        row.aside = "does not run here"
    return [row]


def nothing() -> None:
    """Also what the traced calls call."""


class Traced(NamedTuple):
    """A loop of SLICES slices; ``on`` is called before it, ``off`` after it, and leaves nothing running."""

    loop: Callable[[], object]
    on: Callable[[], object] = nothing
    off: Callable[[], object] = nothing


def slice_cost(tracer: Callable[[Path], Any], folder: Path, rounds: int) -> float:
    """The median ratio of a slice to two bare records, each round between two runs of those."""
    from tests.benchmarks.program import bare_records, check, open_gpu

    driver = open_gpu()
    bare = bare_records(driver, check(driver.cuStreamCreate(1)), SLICES)
    clock = time.perf_counter_ns
    ratios = []
    with tracer(folder) as traced:
        for number in range(rounds + rounds // 5):
            time.sleep(PAUSE_S)
            t0 = clock()
            bare()
            t1 = clock()
            traced.on()
            traced.loop()  # the code is made ready for a tracer as it runs for the first time
            t2 = clock()
            traced.loop()
            t3 = clock()
            traced.off()  # or it would slow the baseline
            t4 = clock()
            bare()
            t5 = clock()
            if number >= rounds // 5:
                ratios.append(2 * (t3 - t2) / (t1 - t0 + t5 - t4))
    return statistics.median(ratios)


def with_blocks(open_slice: Callable[[str], Any], count: int = SLICES) -> Callable[[], None]:
    def loop() -> None:
        for _ in range(count):
            with open_slice("step"):
                pass

    return loop


def calls(count: int = SLICES) -> Callable[[], None]:
    def loop() -> None:
        for _ in range(count):
            nothing()

    return loop


@contextlib.contextmanager
def gputrace_span(folder: Path) -> Iterator[Traced]:
    from tests.benchmarks.program import recorded, spans

    with recorded("host"):
        yield Traced(spans(SLICES))


@contextlib.contextmanager
def gputrace_call(folder: Path) -> Iterator[Traced]:
    import gputrace

    stack = contextlib.ExitStack()

    def on() -> None:
        stack.enter_context(gputrace.trace(folder / "calls.pftrace", "host", instrument=["python.calls"]))

    yield Traced(calls(), on, stack.close)


@contextlib.contextmanager
def viztracer_call(folder: Path) -> Iterator[Traced]:
    from viztracer import VizTracer

    tracer = VizTracer(verbose=0)
    yield Traced(calls(), tracer.start, lambda: (tracer.stop(), tracer.clear()))


@contextlib.contextmanager
def viztracer_event(folder: Path) -> Iterator[Traced]:
    from viztracer import VizTracer

    tracer = VizTracer(verbose=0)
    yield Traced(with_blocks(tracer.log_event), tracer.start, lambda: (tracer.stop(), tracer.clear()))


@contextlib.contextmanager
def trace0_call(folder: Path) -> Iterator[Traced]:
    from trace0 import Tracer

    stack = contextlib.ExitStack()

    def on() -> None:
        stack.enter_context(Tracer(str(folder / "trace.pb"), trace_subprocesses=False))

    yield Traced(calls(), on, stack.close)


@contextlib.contextmanager
def nvtx_annotate(folder: Path) -> Iterator[Traced]:
    import nvtx

    yield Traced(with_blocks(nvtx.annotate))


@contextlib.contextmanager
def torch_record_function(folder: Path) -> Iterator[Traced]:
    from torch.profiler import ProfilerActivity, profile, record_function

    with profile(activities=[ProfilerActivity.CPU]):
        yield Traced(with_blocks(record_function))


@contextlib.contextmanager
def keke_kev(folder: Path) -> Iterator[Traced]:
    import keke

    output = keke.TraceOutput((folder / "trace.json").open("w"))

    def written() -> None:
        while not output.queue.empty():
            time.sleep(0.001)

    with output:
        yield Traced(with_blocks(keke.kev), off=written)


@contextlib.contextmanager
def proton_scope(folder: Path) -> Iterator[Traced]:
    """What `proton.start` does, less its search for a GPU."""
    import triton
    from triton import profiler
    from triton._C.libproton import proton as native
    from triton.profiler.flags import flags

    build_cupti(Path(triton.__path__[0]) / "_C" / "libproton.so", folder)
    os.environ["TRITON_CUPTI_LIB_PATH"] = str(folder)
    session = native.start(str(folder / "scopes"), "shadow", "trace", "cupti", "")
    flags.profiling_on = True
    try:
        yield Traced(with_blocks(profiler.scope))
    finally:
        native.finalize(session, "chrome_trace")


def build_cupti(user: Path, folder: Path) -> None:
    """A libcupti.so that does nothing and says that it went well, for all that ``user`` may ask of one."""
    names = sorted({name.decode() for name in re.findall(rb"\0(cupti[A-Z][A-Za-z]+)(?=\0)", user.read_bytes())})
    source = folder / "cupti.c"
    source.write_text("".join(f"int {name}(void) {{ return 0; }}\n" for name in names))
    subprocess.run(["cc", "-shared", "-fPIC", "-o", folder / "libcupti.so", source], check=True)


TRACERS = {
    OURS: Peer("gputrace, a host-only span", gputrace_span),
    "calls": Peer("gputrace, a call traced by `--python`", gputrace_call),
    "viztracer": Peer("viztracer, a traced call", viztracer_call),
    "log_event": Peer("viztracer, `log_event`", viztracer_event),
    "trace0": Peer("trace0, a traced call", trace0_call, "Python 3.13 and later"),
    "nvtx": Peer("`nvtx.annotate`", nvtx_annotate, "no tool attached: nothing is recorded"),
    "torch": Peer("torch, `record_function`", torch_record_function, "profiler on"),
    "proton": Peer("Proton, `scope`", proton_scope, "trace mode, on a CUPTI that does nothing"),
    "keke": Peer("keke, `kev`", keke_kev),
}


if __name__ == "__main__":
    print_rows(run(sys.argv[1], int(sys.argv[2])))
