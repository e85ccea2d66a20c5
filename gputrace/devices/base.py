"""What a device must be able to do: one screen, implemented by `cuda.py`, `simulated.py` and nothing else.

It knows no profiler, no clock map and no trace. A `Device` is one context of one GPU: events belong to it and can be
compared with one another. A `Backend` is a driver: it tells which device a stream belongs to.

Two calls are made by the program's own thread inside every span, and one by the collector for every event, so they are
raw: they return the driver's own tuple, whose first item is falsy on success, and are bound once to a local name.
Everything else is checked and raises `DriverError`. Any exception out of a raw call is a driver error too: bindings
raise for result codes they do not know.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from typing import Any

#: The stream handles that mean another stream on each context or thread: legacy default, legacy, per-thread.
LEGACY_DEFAULT = 0
LEGACY = 1
PER_THREAD = 2
AMBIENT_HANDLES = (LEGACY_DEFAULT, LEGACY, PER_THREAD)


class Device:
    """One context of one GPU.

    Attributes: ``kind`` ("cuda", "simulated"); ``ordinal``, the GPU's index; ``name``, as the driver says it;
    ``context``, an int that identifies the context in this process; ``tick_ns``, the resolution of event timestamps
    in ns, for error bounds; ``labels``, facts for the trace (driver version and the like).
    """

    kind: str
    ordinal: int
    name: str
    context: int
    tick_ns: int
    labels: dict[str, Any]

    # Raw calls of the hot path: see the module's docstring.
    record_raw: Any  # (event, stream) -> (code,)
    capturing_raw: Any  # (stream) -> (code, status): the stream captures if either is truthy
    elapsed_raw: Any  # (start, end) -> (code, milliseconds as a float that holds an f32; signed)

    def functions(self) -> tuple[int, int, int, int, int] | None:
        """The addresses of the driver's functions for the raw calls, and of those that tell the current context and its
        id, for a caller in C; None where there are none, because the device is in Python.
        """
        return None

    def active(self) -> AbstractContextManager[object]:
        """Inside, this device's context is current on the calling thread and its capture mode is relaxed.

        Needed around every checked call below on a thread, or at a time, that is not known to have the context current.
        Both are put back on the way out. Raises `DriverError` if the context is gone.
        """
        raise NotImplementedError

    def event_create(self) -> Any:
        """A timing event of this context."""
        raise NotImplementedError

    def event_destroy(self, event: Any) -> None:
        raise NotImplementedError

    def event_record(self, event: Any, stream: Any) -> None:
        """Enqueue a timestamp at the stream's current position. Never waits."""
        raise NotImplementedError

    def event_query(self, event: Any) -> bool:
        """Has the device passed the event?"""
        raise NotImplementedError

    def event_wait(self, event: Any) -> None:
        """Block, without the GIL, until the device has passed the event."""
        raise NotImplementedError

    def elapsed_ms(self, start: Any, end: Any) -> float:
        """Signed device time from one reached event to another, in ms, rounded to an f32."""
        raise NotImplementedError

    def stream_create(self) -> Any:
        """A stream that does not synchronise with the legacy default stream."""
        raise NotImplementedError

    def stream_destroy(self, stream: Any) -> None:
        raise NotImplementedError

    def stream_capturing(self, stream: Any) -> bool:
        """Is the stream, or for the legacy stream any stream it would wait for, being captured into a graph?"""
        raise NotImplementedError


class Stream:
    """A stream as a backend knows it.

    ``native`` is what the device's calls take; ``handle`` the int the program knows it by; ``id`` a small number for
    people, unique in its context.
    """

    __slots__ = ("device", "handle", "id", "name", "native")

    def __init__(self, device: Device, native: Any, handle: int, id: int, name: str) -> None:
        self.device = device
        self.native = native
        self.handle = handle
        self.id = id
        self.name = name


class Backend:
    """A driver, found on this machine. ``kind`` as in `Device`."""

    kind: str

    def stream(self, handle: int) -> Stream:
        """The stream behind a handle, and the device it belongs to. May be asked again for a handle it has seen.

        For the handles in `AMBIENT_HANDLES` the answer is the one of the calling thread's current context. Raises
        `DriverError` for a handle the driver does not know, or where no context is current.
        """
        raise NotImplementedError

    def describe(self) -> dict[str, Any]:
        """For `gputrace doctor`: driver, bindings, devices. Initialises the driver, creates no context."""
        raise NotImplementedError
