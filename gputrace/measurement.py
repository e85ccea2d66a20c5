"""What closing a window returns: a duration, known once the device has been there, and its place on the host timeline.

It knows no driver: how to read a window is its profiler's business.
"""

from __future__ import annotations

import enum
from time import sleep

from gputrace.hostclock import now_ns

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator
    from typing import Any, Final, Protocol

    class Reader(Protocol):
        """How a measurement asks its profiler."""

        def poll(self, measurement: Measurement) -> None:
            """Resolve the measurement if the device has been there; never waits for the device."""


#: What a window reports when its events could not be read: one hour, a time that can win no tuning.
UNREADABLE_NS: Final = 3600 * 1_000_000_000


class TimingMethod(enum.Enum):
    """Whose clock a duration was measured on."""

    DEVICE = "device"  # two events in the stream, the device's own clock
    SYSTEM = "system"  # the host's clock, around work that was waited for


class Placement(enum.Enum):
    """How a window was put on the host timeline."""

    EXACT = "exact"  # between two anchors
    APPROXIMATE = "approximate"  # beyond the first or last anchor, on the slope of the nearest ones
    NONE = "none"  # not at all: no anchor could be taken, or the window could not be read


class Reading:
    """A window read back. All times are integer ns.

    ``duration_ns`` is on the clock that ``timing`` says, off by at most ``duration_uncertainty_ns``. ``start_ns`` and
    ``end_ns`` are on the host's CLOCK_MONOTONIC, each off by at most ``uncertainty_ns`` (all None where the window is
    not placed); as two clocks never run quite alike, they lie a little more or less than the duration apart. ``error``
    says why a window could not be read; its duration is then one hour.
    """

    __slots__ = (
        "duration_ns",
        "duration_uncertainty_ns",
        "end_ns",
        "error",
        "placement",
        "start_ns",
        "timing",
        "uncertainty_ns",
    )

    def __init__(
        self,
        duration_ns: int,
        *,
        timing: TimingMethod,
        duration_uncertainty_ns: int = 0,
        start_ns: int | None = None,
        end_ns: int | None = None,
        placement: Placement = Placement.NONE,
        uncertainty_ns: int | None = None,
        error: Exception | None = None,
    ) -> None:
        self.duration_ns = duration_ns
        self.duration_uncertainty_ns = duration_uncertainty_ns
        self.timing = timing
        self.start_ns = start_ns
        self.end_ns = end_ns
        self.placement = placement
        self.uncertainty_ns = uncertainty_ns
        self.error = error

    def __repr__(self) -> str:
        return (
            f"Reading(duration_ns={self.duration_ns}, timing={self.timing.value}, start_ns={self.start_ns},"
            f" placement={self.placement.value}, uncertainty_ns={self.uncertainty_ns}, error={self.error!r})"
        )


def unreadable(error: Exception, timing: TimingMethod = TimingMethod.DEVICE) -> Reading:
    """The reading of a window that cannot be read. `Measurement.done` says so in the log, where somebody asks."""
    return Reading(UNREADABLE_NS, timing=timing, error=error)


class Measurement:
    """A closed window's duration: now or later.

    ``result()`` blocks, ``await`` does not block the loop, ``done()`` neither. May be asked from any thread, any number
    of times; every answer is the same `Reading`.
    """

    __slots__ = ("_reader", "_reading", "_untold", "window")

    def __init__(self, reader: Reader | None, reading: Reading | None = None, window: Any = None) -> None:
        self._reader = reader
        self._reading = reading
        self._untold = True
        self.window = window  # its profiler's: what there is to read

    def done(self) -> bool:
        """Has the device been there? Never waits for it."""
        reader = self._reader  # another thread may resolve it meanwhile
        if self._reading is None and reader is not None:
            reader.poll(self)
        if self._untold and self._reading is not None:
            self._untold = False
            self._tell(self._reading)
        return self._reading is not None

    def _tell(self, reading: Reading) -> None:
        """A line in the log for a window that could not be read: here, on a thread of the program's own. Logging from
        the collector's would enter that thread among the program's.
        """
        if reading.error is not None:
            import logging

            logging.getLogger("gputrace").error(
                "a profiling window could not be read back (%s); it reports one hour so that nothing takes it for fast",
                reading.error,
            )

    def result(self, timeout: float | None = None) -> Reading:
        """Wait for the window's work and read it. ``timeout`` in seconds; raises `TimeoutError` after it, and may then
        be called again. Never raises for a window that cannot be read: see `Reading.error`.
        """
        deadline_ns = None if timeout is None else now_ns() + timeout * 1e9
        pauses = _pauses()
        while not self.done():
            pause = next(pauses)
            if deadline_ns is not None:
                left = (deadline_ns - now_ns()) / 1e9
                if left <= 0:
                    raise TimeoutError(f"the device had not finished the window after {timeout} s")
                pause = min(pause, left)
            sleep(pause)
        assert self._reading is not None
        return self._reading

    def __await__(self) -> Generator[object, None, Reading]:
        return self._wait().__await__()

    async def _wait(self) -> Reading:
        import asyncio  # a program that awaits has it already

        pauses = _pauses()
        while not self.done():
            await asyncio.sleep(next(pauses))
        assert self._reading is not None
        return self._reading

    @property
    def resolved(self) -> bool:
        """Is the answer here already? Asks nobody."""
        return self._reading is not None

    def resolve(self, reading: Reading) -> None:
        """For its profiler: the answer."""
        self._reading = reading
        self._reader = self.window = None

    def __repr__(self) -> str:
        return f"Measurement({self._reading if self._reading is not None else 'pending'})"


def _pauses() -> Generator[float, None, None]:
    """How long to sleep before asking again, in s: short at first, for tuners; then a twentieth of the time waited.

    A driver's own wait would be as quick, but it cannot keep anchors fresh meanwhile, and it would hold an executor
    thread under asyncio.
    """
    started_ns = now_ns()
    yield 0.0
    while True:
        yield min(max((now_ns() - started_ns) / 20e9, 20e-6), 1e-3)
