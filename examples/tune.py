"""A small tuner: which tile size multiplies matrices fastest, where some of the candidates do not work?

    python examples/tune.py

The kernel is simulated: numpy computes what it would, tile by tile, and the simulated GPU is busy for as long as a
model of it says. What a tuner has to get right is real: a candidate whose launch fails does almost no work, and one
that takes the device down leaves nothing to read, so by the clock alone both would win.
"""

from __future__ import annotations

import logging

import numpy as np

from gputrace import EventProfiler
from gputrace.devices.simulated import SimulatedGPU, SimulatedStream
from gputrace.errors import DriverError, WindowError
from gputrace.measurement import Reading

SIZE = 256
REPEATS = 3
TILES = (8, 16, 32, 64, 128, 256)
SHARED_BYTES = 96 * 1024
FAULTY_TILE = 16  # reads past its tile and takes the context down
rng = np.random.default_rng(0)
A, B = rng.standard_normal((2, SIZE, SIZE), dtype=np.float32)
EXPECTED = A @ B


class LaunchError(Exception):
    """The kernel did not run."""


def matmul(tile: int) -> np.ndarray:
    """What the kernel computes."""
    result = np.zeros((SIZE, SIZE), dtype=np.float32)
    for k in range(0, SIZE, tile):
        result += A[:, k : k + tile] @ B[k : k + tile]
    return result


def launch(stream: SimulatedStream, tile: int) -> None:
    """Enqueue the kernel. Raises `LaunchError`, as a driver does for more shared memory than there is."""
    shared_bytes = 2 * tile * tile * 4
    if shared_bytes > SHARED_BYTES:
        raise LaunchError(f"asks for {shared_bytes // 1024} KiB of shared memory, there are {SHARED_BYTES // 1024}")
    # Small tiles fetch every number more often; big ones leave few blocks, and some multiprocessors idle.
    traffic_ns = 2 * SIZE**3 / tile * 4 / 90
    idle = 1 + (tile / 64) ** 2
    stream.launch(int((traffic_ns + 2 * SIZE**3 / 900) * idle))


def measure(gpu: SimulatedGPU, tile: int) -> list[Reading]:
    """Time a candidate. Raises what stands against using it."""
    if not np.allclose(matmul(tile), EXPECTED, atol=1e-3):
        raise LaunchError("computes something else")
    stream = gpu.stream()
    with EventProfiler(gpu) as profiler:
        measurements = []
        for _ in range(REPEATS):
            token = profiler.start(stream)
            try:
                launch(stream, tile)
            except LaunchError as error:
                profiler.failure(error, stream)  # or this empty window would be the fastest of all
            measurements.append(profiler.stop(stream, token))
        if tile == FAULTY_TILE:
            gpu.fail_after = 0  # from here on the device answers nothing but errors
        return [measurement.result() for measurement in measurements]


def tune() -> tuple[int, list[tuple[int, float, str]]]:
    """The best tile, and a row for each: tile, microseconds, what was wrong."""
    rows = []
    for tile in TILES:
        try:
            readings = measure(SimulatedGPU(), tile)  # its own device: a fault must not hurt the next candidate
        except (LaunchError, WindowError, DriverError) as error:
            rows.append((tile, float("inf"), str(error)))
            continue
        best = min(readings, key=lambda reading: reading.duration_ns)
        rows.append((tile, best.duration_ns / 1e3, "" if best.error is None else str(best.error)))
    return min(rows, key=lambda row: row[1])[0], rows


def main() -> None:
    # The profiler logs why a window could not be read; here the table says so.
    logging.getLogger("gputrace").setLevel(logging.CRITICAL)
    best, rows = tune()
    print(f"matmul {SIZE} x {SIZE} on a simulated GPU, best of {REPEATS}\n")
    print("  tile      microseconds")
    for tile, us, wrong in rows:
        shown = "failed" if us == float("inf") else f"{us:,.1f}"
        print(f"{'*' if tile == best else ' '} {tile:>4}  {shown:>16}  {wrong}".rstrip())
    print(f"\nuse tiles of {best}")


if __name__ == "__main__":
    main()
