"""What stands in the buffers beside spans: moments, counters' values, and the mark of a failure.

Plain records. Each says by ``host_open`` or ``gpu_open`` that it is neither a begin nor an end.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gputrace.model import Args


class Instant:
    """A moment on a host thread."""

    __slots__ = ("args", "name", "t0")
    host_open = None  # neither begin nor end: see `Span.host_open`
    value = None

    def __init__(self, name: str, t0: int, args: Args | None) -> None:
        self.name = name
        self.t0 = t0
        self.args = args


class Sample:
    """A value of a counter."""

    __slots__ = ("name", "t0", "unit", "value")
    host_open = None

    def __init__(self, name: str, t0: int, value: int | float, unit: str) -> None:
        self.name = name
        self.t0 = t0
        self.value = value
        self.unit = unit


class FailureMark:
    """In a stream's queue: every window open at this position failed."""

    __slots__ = ("error",)
    gpu_open = None  # neither begin nor end: see `Span.gpu_open`

    def __init__(self, error: str) -> None:
        self.error = error
