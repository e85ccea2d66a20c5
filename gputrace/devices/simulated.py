"""A simulated GPU: streams that are in-order queues, and a clock of its own that drifts.

For machines without a GPU: examples, CI and tests show and check a whole trace with it. Work is a duration on a stream;
nothing is computed. A stream is one number, the host time at which its queue runs empty, so nothing runs in the
background and every stamp's true host time is known. It knows no profiler and no trace.
"""

from __future__ import annotations

import os
import struct
from _thread import RLock
from contextlib import nullcontext
from math import cos, pi, sin
from time import sleep
from weakref import WeakSet

from gputrace import hostclock
from gputrace.devices.base import AMBIENT_HANDLES, LEGACY_DEFAULT, Backend, Device, Stream
from gputrace.errors import DriverError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from typing import Any

NOT_READY = 600
#: Above every address, so that no real driver could take one of these handles for its own.
SIMULATED_HANDLES = 1 << 62
_OK = (0,)
_ACTIVE = nullcontext()
_F32 = struct.Struct("f")


class DriftingClock:
    """A device clock as a function of host time: an offset, a skew, a slow wander, and a tick it counts in.

    ``skew_ppm`` is constant. ``wander_ppm`` is the amplitude of a sine over ``wander_period_s`` added to the rate; its
    integral is taken exactly. ``tick_ns`` is what stamps are rounded down to. It shows ``offset_ns`` at the host time
    ``origin_ns`` (by default now).
    """

    def __init__(
        self,
        skew_ppm: float = 20.0,
        wander_ppm: float = 0.0,
        wander_period_s: float = 7.0,
        tick_ns: int = 32,
        offset_ns: int = 5_000_000_000,
        origin_ns: int | None = None,
    ) -> None:
        self.skew_ppm = skew_ppm
        self.wander_ppm = wander_ppm
        self.wander_period_s = wander_period_s
        self.tick_ns = tick_ns
        self.offset_ns = offset_ns
        self.origin_ns = hostclock.now_ns() if origin_ns is None else origin_ns

    def device_ns(self, host_ns: int) -> int:
        """What the clock shows at a host time (CLOCK_MONOTONIC, ns)."""
        elapsed = host_ns - self.origin_ns
        extra = elapsed * self.skew_ppm * 1e-6
        if self.wander_ppm:
            period_ns = self.wander_period_s * 1e9
            extra += self.wander_ppm * 1e-6 * period_ns / (2 * pi) * (1 - cos(2 * pi * elapsed / period_ns))
        shown = self.offset_ns + elapsed + round(extra)
        return shown - shown % self.tick_ns

    def rate_ppm(self, host_ns: int) -> float:
        """How much faster than the host's it runs at a host time, in parts per million."""
        phase = 2 * pi * (host_ns - self.origin_ns) / (self.wander_period_s * 1e9)
        return self.skew_ppm + self.wander_ppm * sin(phase)


class SimulatedEvent:
    """A timestamp. ``true_host_ns`` is when the device makes it, the truth a test compares a trace with."""

    __slots__ = ("captured", "recorded", "true_host_ns")

    def __init__(self) -> None:
        self.true_host_ns = 0
        self.recorded = False
        self.captured = False


class SimulatedStream:
    """An in-order queue of work, by its duration. ``handle`` is the int that stands for it."""

    def __init__(self, gpu: SimulatedGPU, handle: int, id: int, name: str) -> None:
        self.gpu = gpu
        self.handle = handle
        self.id = id
        self.name = name
        self.idle_at_ns = 0  # host time at which the queue runs empty
        self._capture_ns: int | None = None

    def launch(self, duration_ns: int) -> None:
        """Enqueue work of this duration. Returns at once."""
        with self.gpu.lock:
            if self._capture_ns is not None:
                self._capture_ns += int(duration_ns)
            else:
                self.idle_at_ns = self._next_start_ns() + int(duration_ns)

    def wait_event(self, event: SimulatedEvent) -> None:
        """Later work here starts only after the event: how one stream waits for another."""
        with self.gpu.lock:
            self.idle_at_ns = max(self.idle_at_ns, event.true_host_ns)

    def synchronize(self) -> None:
        """Block until the queue is empty."""
        self.gpu.sleep_until(self.idle_at_ns)

    def begin_capture(self) -> None:
        """From here to `end_capture` launches are noted in a graph, not run."""
        self._capture_ns = 0

    def end_capture(self) -> int:
        """The captured work's duration in ns: launch it to replay the graph."""
        duration_ns, self._capture_ns = self._capture_ns, None
        return duration_ns or 0

    @property
    def capturing(self) -> bool:
        return self._capture_ns is not None

    def _next_start_ns(self) -> int:
        return max(self.gpu.now_ns() + self.gpu.submit_delay_ns, self.idle_at_ns)


class SimulatedGPU(Device):
    """One simulated GPU with one context.

    ``submit_delay_ns`` passes between a launch and its earliest start. ``fail_after`` makes every call fail once so
    many events were recorded, as a lost device does (None: never). ``now_ns`` is the host's clock, and ``sleep`` (in
    seconds) waits on it: others are for tests.
    """

    kind = "simulated"

    def __init__(
        self,
        ordinal: int = 0,
        clock: DriftingClock | None = None,
        submit_delay_ns: int = 4_000,
        now_ns: Callable[[], int] = hostclock.now_ns,
        sleep: Callable[[float], None] = sleep,
    ) -> None:
        self.ordinal = ordinal
        self.name = "Simulated GPU"
        self.context = ordinal + 1
        self.clock = clock or DriftingClock()
        self.tick_ns = self.clock.tick_ns
        self.labels: dict[str, Any] = {"simulated": True, "clock skew (ppm)": self.clock.skew_ppm}
        self.submit_delay_ns = submit_delay_ns
        self.now_ns = now_ns
        self._sleep = sleep
        self.fail_after: int | None = None
        self.lock = RLock()
        _gpus.add(self)
        self.live_events = 0
        self.live_streams = 0
        self._recorded = 0
        self._next_id = 1
        self._streams: dict[int, SimulatedStream] = {}
        self._default = SimulatedStream(self, LEGACY_DEFAULT, 0, "default stream")
        self._streams.update(dict.fromkeys(AMBIENT_HANDLES, self._default))  # threads share it
        self.record_raw = self._record
        self.capturing_raw = self._capturing
        self.elapsed_raw = self._elapsed

    # What a program uses.

    def stream(self, name: str = "") -> SimulatedStream:
        """A new stream; ``name`` is what the trace calls it."""
        stream: SimulatedStream = self.stream_create()
        if name:
            stream.name = name
        return stream

    def sleep_until(self, host_ns: int) -> None:
        """Block until a host time (CLOCK_MONOTONIC, ns)."""
        while (left_ns := host_ns - self.now_ns()) > 0:
            self._sleep(left_ns / 1e9)

    # What the device protocol asks for.

    def active(self) -> AbstractContextManager[object]:
        return _ACTIVE

    def event_create(self) -> SimulatedEvent:
        self._check("event_create")
        with self.lock:
            self.live_events += 1
        return SimulatedEvent()

    def event_destroy(self, event: SimulatedEvent) -> None:
        with self.lock:
            self.live_events -= 1

    def event_record(self, event: SimulatedEvent, stream: Any) -> None:
        code = self._record(event, stream)[0]
        if code:
            raise DriverError("event_record", code)

    def event_query(self, event: SimulatedEvent) -> bool:
        self._check("event_query")
        if event.captured:
            raise DriverError("event_query", 907, "captured event")
        return self.now_ns() >= event.true_host_ns

    def event_wait(self, event: SimulatedEvent) -> None:
        self._check("event_wait")
        self.sleep_until(event.true_host_ns)
        self._check("event_wait")

    def elapsed_ms(self, start: SimulatedEvent, end: SimulatedEvent) -> float:
        code, ms = self._elapsed(start, end)
        if code:
            raise DriverError("elapsed", code, "not ready" if code == NOT_READY else "")
        return ms

    def stream_create(self) -> SimulatedStream:
        self._check("stream_create")
        with self.lock:
            id, self._next_id = self._next_id, self._next_id + 1
            handle = SIMULATED_HANDLES + (self.context << 32) + (id << 4)
            stream = self._streams[handle] = SimulatedStream(self, handle, id, f"stream {id}")
            self.live_streams += 1
        return stream

    def stream_destroy(self, stream: SimulatedStream) -> None:
        with self.lock:
            self._streams.pop(stream.handle, None)
            self.live_streams -= 1

    def stream_capturing(self, stream: Any) -> bool:
        return self._native(stream).capturing

    # Raw calls.

    def _record(self, event: SimulatedEvent, stream: Any) -> tuple[int]:
        native = self._native(stream)
        with self.lock:
            self._recorded += 1
            if self._lost:
                return (999,)
            event.recorded = True
            event.captured = native.capturing
            if not event.captured:
                event.true_host_ns = native.idle_at_ns = native._next_start_ns()
        return _OK

    def _capturing(self, stream: Any) -> tuple[int, bool]:
        return 0, self._native(stream).capturing

    def _elapsed(self, start: SimulatedEvent, end: SimulatedEvent) -> tuple[int, float]:
        if self._lost:
            return 999, 0.0
        if not (start.recorded and end.recorded) or start.captured or end.captured:
            return 400, 0.0
        if self.now_ns() < max(start.true_host_ns, end.true_host_ns):
            return NOT_READY, 0.0
        ns = self.clock.device_ns(end.true_host_ns) - self.clock.device_ns(start.true_host_ns)
        return 0, _F32.unpack(_F32.pack(ns / 1e6))[0]

    @property
    def _lost(self) -> bool:
        return self.fail_after is not None and self._recorded > self.fail_after

    def _check(self, call: str) -> None:
        if self._lost:
            raise DriverError(call, 999, "device lost")

    def _native(self, stream: Any) -> SimulatedStream:
        """A stream by itself or by its handle."""
        if isinstance(stream, SimulatedStream):
            if stream.gpu is not self:
                raise DriverError("stream", 400, "invalid handle", "the stream belongs to another device")
            return stream
        try:
            return self._streams[stream]
        except (KeyError, TypeError):
            raise DriverError("stream", 400, "invalid handle", f"{stream!r} is no stream of this device") from None


class SimulatedBackend(Backend):
    """The simulated GPUs of this process."""

    kind = "simulated"

    def __init__(self, gpus: list[SimulatedGPU] | None = None) -> None:
        self.gpus = [default_gpu()] if gpus is None else gpus

    def stream(self, handle: int) -> Stream:
        for gpu in self.gpus:
            native = gpu._streams.get(handle)
            if native is not None:
                return Stream(gpu, native, handle, native.id, native.name)
        raise DriverError("stream", 400, "invalid handle", f"{handle:#x} is no stream of a simulated GPU")

    def describe(self) -> dict[str, Any]:
        return {
            "driver": "simulated",
            "devices": [{"ordinal": gpu.ordinal, "name": gpu.name} for gpu in self.gpus],
        }


_default: SimulatedGPU | None = None
_gpus: WeakSet[SimulatedGPU] = WeakSet()


def _after_fork_in_child() -> None:
    """Another thread of the parent's may have been holding a lock; it is not here to let it go."""
    for gpu in _gpus:
        gpu.lock = RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


def default_gpu() -> SimulatedGPU:
    """The process's simulated GPU: what ``--device simulated`` traces and examples launch on."""
    global _default
    if _default is None:
        _default = SimulatedGPU()
    return _default
