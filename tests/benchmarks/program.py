"""The traced program of the benchmarks: a CUDA context, streams, and loops that do nothing but what is measured.

Import it only in a process that has the fake driver.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gputrace


def open_gpu() -> Any:
    """The bindings' driver module, with the first GPU's primary context current. Raises RuntimeError."""
    from cuda.bindings import driver

    check(driver.cuInit(0))
    check(driver.cuCtxSetCurrent(check(driver.cuDevicePrimaryCtxRetain(check(driver.cuDeviceGet(0))))))
    return driver


def check(result: tuple[Any, ...]) -> Any:
    """What a call returned beside its result code. Raises RuntimeError if that is not success."""
    code, *values = result
    if int(code):
        raise RuntimeError(repr(code))
    return values[0] if len(values) == 1 else values


@contextlib.contextmanager
def recorded(device: str = "cuda") -> Iterator[gputrace.trace]:
    """Record the block into a file that is thrown away. Raises RuntimeError if tracing ended early, as on a full disk:
    what was measured from then on cost nothing.
    """
    with tempfile.TemporaryDirectory() as folder, gputrace.trace(Path(folder) / "run.pftrace", device) as running:
        yield running
    assert running.summary is not None
    if running.summary.failed_to_trace:
        raise RuntimeError("; ".join(running.summary.told))


def bare_records(driver: Any, stream: Any, count: int) -> Callable[[], None]:
    """The baseline: two events recorded, ``count`` times over, and nothing kept of them."""
    record = driver.cuEventRecord
    first, last = check(driver.cuEventCreate(0)), check(driver.cuEventCreate(0))

    def run() -> None:
        for _ in range(count):
            record(first, stream)
            record(last, stream)

    return run


def spans(count: int, stream: Any = None) -> Callable[[], None]:
    """``count`` spans on one place in the program, on a stream or on what is current."""
    span = gputrace.span

    def on_stream() -> None:
        for _ in range(count):
            with span("step", stream=stream):
                pass

    def plain() -> None:
        for _ in range(count):
            with span("step"):
                pass

    return plain if stream is None else on_stream
