"""A host clock that only moves when somebody reads it or a test moves it: profiling without waiting, and repeatable."""

from __future__ import annotations

import random

from gputrace.devices.simulated import DriftingClock, SimulatedGPU
from gputrace.profiler import EventProfiler

ORIGIN_NS = 1_000_000_000_000


class VirtualHost:
    """Each read takes a few tens of ns; now and then the reader loses the GIL for up to ``stall_ns``."""

    def __init__(self, seed: int = 0, stall_ns: int = 0, stall_share: float = 0.05) -> None:
        self.at_ns = ORIGIN_NS
        self._random = random.Random(seed)
        self._stall_ns = stall_ns
        self._stall_share = stall_share

    def now_ns(self) -> int:
        self.at_ns += self._random.randint(20, 120)
        if self._stall_ns and self._random.random() < self._stall_share:
            self.at_ns += self._random.randrange(self._stall_ns)
        return self.at_ns

    def advance(self, ns: int) -> None:
        self.at_ns += ns

    def sleep(self, seconds: float) -> None:
        self.at_ns += int(seconds * 1e9) + 1


def virtual_gpu(
    host: VirtualHost,
    skew_ppm: float = 50,
    wander_ppm: float = 10,
    wander_period_s: float = 7,
    tick_ns: int = 32,
    offset_ns: int = 5_000_000_000,
    submit_delay_ns: int = 4_000,
) -> SimulatedGPU:
    clock = DriftingClock(skew_ppm, wander_ppm, wander_period_s, tick_ns, offset_ns, ORIGIN_NS)
    return SimulatedGPU(0, clock, submit_delay_ns, host.now_ns, host.sleep)


def virtual_profiler() -> tuple[VirtualHost, SimulatedGPU, EventProfiler]:
    host = VirtualHost()
    gpu = virtual_gpu(host)
    return host, gpu, EventProfiler(gpu, host.now_ns)


def run_for(host: VirtualHost, profiler: EventProfiler, ns: int, every_ns: int = 50_000_000) -> None:
    """Let time pass, with a tick now and then, as a tracer's collector gives."""
    for _ in range(0, ns, every_ns):
        host.advance(every_ns)
        profiler.tick()
