"""Every error gputrace raises, in one small hierarchy.

::

    GputraceError
    ├── UsageError            the call was wrong: an unknown device, suffix or stream handle
    ├── OutputError           the output cannot be written
    ├── InputError            a trace cannot be read: which file, and where in it
    ├── EngineError           no trace processor can be used
    │   └── QueryError        it refuses SQL: why, and where in it
    ├── DeviceError           the device cannot be used
    │   ├── NoDriver          no driver on this machine, or one too old
    │   └── DriverError       a driver call failed: which one, with what code
    └── WindowError           a profiling window cannot be measured
        ├── NotRegistered     a token never issued, or used before
        ├── WrongStream       stopped on another stream than it was started on
        ├── WindowFailed      device work failed inside the window
        ├── Capturing         the stream is being captured: nothing may be recorded
        └── Unreadable        the window's events could not be read back

Nothing here is raised into a program by a span: spans are fenced. These reach a caller who asked for a
measurement, started a recording, or typed a command.
"""

from __future__ import annotations


class GputraceError(Exception):
    """Base of every error gputrace raises. Its text says what was tried, what was found and what to do."""


class UsageError(GputraceError):
    """The call itself was wrong; nothing was started."""


class OutputError(GputraceError):
    """The output cannot be written; nothing was started."""


class InputError(GputraceError):
    """A trace cannot be read.

    ``path`` is the file, ``place`` the offset in bytes (unzipped) at which that showed, ``what`` the reason.
    """

    def __init__(self, path: str, place: int, what: str) -> None:
        self.path = path
        self.place = place
        self.what = what
        where = f" (at byte {place:,})" if place else ""
        super().__init__(f"{path}: {what}{where}")


class EngineError(GputraceError):
    """Perfetto's trace processor cannot be found or started, or it failed."""


class QueryError(EngineError):
    """The trace processor refuses a query.

    ``reason`` is its own; ``line`` and ``column`` count from 1 and are 0 where it names no place. ``excerpt`` is that
    line of the SQL with a caret under the place, or "".
    """

    def __init__(self, reason: str, line: int = 0, column: int = 0, excerpt: str = "") -> None:
        self.reason = reason
        self.line = line
        self.column = column
        self.excerpt = excerpt
        where = f"line {line}, column {column}: " if line else ""
        super().__init__(f"{where}{reason}" + (f"\n{excerpt}" if excerpt else ""))


class DeviceError(GputraceError):
    """The device cannot be used."""


class NoDriver(DeviceError):
    """There is no usable driver on this machine."""


class DriverError(DeviceError):
    """A driver call failed.

    ``call`` is the driver function's name, ``code`` its result as an int (-1 where the binding raised
    instead of returning one).
    """

    def __init__(self, call: str, code: int, name: str = "", hint: str = "") -> None:
        self.call = call
        self.code = code
        self.name = name
        text = f"{call} failed with {name or 'error'} ({code})"
        super().__init__(f"{text}: {hint}" if hint else text)


class WindowError(GputraceError):
    """A profiling window cannot be measured."""


class NotRegistered(WindowError):
    """The token was never issued by this profiler, or its window has been closed already."""


class WrongStream(WindowError):
    """The window was started on another stream: its two events would not measure one queue."""


class WindowFailed(WindowError):
    """Device work failed inside the window, so its duration would be that of the failure."""


class Capturing(WindowError):
    """The stream is being captured into a graph: an event recorded now would become part of the graph."""


class Unreadable(WindowError):
    """The window's events could not be read back from the device."""
