"""The host's clocks, in integer nanoseconds.

It knows no device and no trace. Everything inside gputrace is CLOCK_MONOTONIC; a trace's own time is CLOCK_BOOTTIME,
which also counts suspends, so one offset a recording leads from one to the other.
"""

from __future__ import annotations

import os
import time

from gputrace.model import ClockSnapshot

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def _monotonic() -> Callable[[], int]:
    """CLOCK_MONOTONIC's reader, as an object of its own: a tool that freezes time for a test replaces the functions of
    `time` wherever it finds them, and a trace must not stand still with it.
    """
    if type(time.monotonic_ns).__name__ == "builtin_function_or_method":
        reader: Any = time.monotonic_ns
        return reader.__call__  # type: ignore[no-any-return]
    read, clock = time.clock_gettime_ns, time.CLOCK_MONOTONIC  # imported while time was frozen

    def monotonic_ns() -> int:
        return read(clock)

    return monotonic_ns


#: The time inside gputrace: CLOCK_MONOTONIC on Linux, its nearest kin elsewhere. A span reads it twice, so it is C all
#: the way.
now_ns = _monotonic()

# A read of two or three clocks takes well under a microsecond unless the thread is interrupted between them; of a few
# tries one is not.
_TRIES = 16

if hasattr(time, "CLOCK_BOOTTIME"):

    def _boottime_ns() -> int:
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME)
else:  # macOS: its CLOCK_MONOTONIC counts suspends itself

    def _boottime_ns() -> int:
        return now_ns()


def namespace() -> str:
    """Which clocks this process reads, where processes of a host may have clocks of their own (Linux: containers); ""
    where nobody can tell.
    """
    try:
        return os.readlink("/proc/self/ns/time")
    except OSError:
        return ""


def snapshot() -> ClockSnapshot:
    """The three host clocks read together: the narrowest of several brackets, the monotonic time its midpoint."""
    best: ClockSnapshot | None = None
    narrowest_ns = 0
    for _ in range(_TRIES):
        before_ns = now_ns()
        boottime_ns = _boottime_ns()
        realtime_ns = time.time_ns()
        width_ns = now_ns() - before_ns
        if best is None or width_ns < narrowest_ns:
            narrowest_ns = width_ns
            best = ClockSnapshot(boottime_ns, before_ns + width_ns // 2, realtime_ns)
    assert best is not None
    return best


def boottime_offset_ns() -> int:
    """CLOCK_BOOTTIME minus CLOCK_MONOTONIC, to a fraction of a microsecond.

    It is constant but for suspends. Read it once a recording: two readings differ by what the bracket leaves open.
    """
    if not hasattr(time, "CLOCK_BOOTTIME"):
        return 0
    offset_ns = 0
    narrowest_ns: int | None = None
    for _ in range(_TRIES):
        before_ns = now_ns()
        boottime_ns = _boottime_ns()
        width_ns = now_ns() - before_ns
        if narrowest_ns is None or width_ns < narrowest_ns:
            narrowest_ns = width_ns
            offset_ns = boottime_ns - before_ns - width_ns // 2
    return offset_ns
