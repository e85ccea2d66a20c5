"""The windows open now: what both profilers have in common.

It knows which stream a window was opened on and what stands against closing it; it records and reads nothing.
"""

from __future__ import annotations

from _thread import get_ident
from itertools import count

from gputrace.devices import stream_handle
from gputrace.devices.base import PER_THREAD
from gputrace.errors import Capturing, NotRegistered, WindowFailed, WrongStream

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Hashable
    from types import TracebackType
    from typing import Any

    from gputrace.anchoring import Stamp
    from gputrace.clock import Placed
    from gputrace.devices.base import Device


class Token:
    """Stands for one open window; good for one `stop` or `abandon`."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number

    def __repr__(self) -> str:
        return f"Token({self.number})"


class Open:
    """A window that has been opened and not closed."""

    __slots__ = ("error", "handle", "placed", "queue", "stamp", "start", "start_ns", "traceback")

    def __init__(self, handle: int, start: Any, start_ns: int = 0) -> None:
        self.handle = handle
        self.queue = queue_of(handle)
        self.start = start
        self.stamp: Stamp | None = None  # of `start`, once read
        self.placed: Placed | None = None  # where `start` is on the host's timeline, once the map got there
        self.start_ns = start_ns  # host clock, for the draining way
        self.error: BaseException | None = None
        self.traceback: TracebackType | None = None


def queue_of(handle: int) -> Hashable:
    """What tells one stream's queue from another's: the per-thread default stream is a different one on each thread."""
    return (handle, get_ident()) if handle == PER_THREAD else handle


class OpenWindows:
    """The windows open now, by token. Thread-safe; never waits.

    By the token itself, not by its number: another profiler's token must not be found here. No lock, as in `EventPool`.
    """

    def __init__(self) -> None:
        self._open: dict[Token, Open] = {}
        self._numbers = count()

    def __len__(self) -> int:
        return len(self._open)

    def all(self) -> list[Open]:
        return list(self._open.values())

    def add(self, window: Open) -> Token:
        token = Token(next(self._numbers))
        self._open[token] = window
        return token

    def take(self, token: Token) -> Open | None:
        """The token's window, which is open no longer; None if it was not open."""
        return self._open.pop(token, None) if isinstance(token, Token) else None

    def take_all(self) -> list[Open]:
        return [window for token in list(self._open) if (window := self.take(token)) is not None]

    def fail(self, error: BaseException | str, stream: Any) -> None:
        """See `EventProfiler.failure`. The first error stays: later ones follow from it."""
        if not self._open:
            return
        failed = error if isinstance(error, BaseException) else WindowFailed(str(error))
        queue = None if stream is None else queue_of(stream_handle(stream))
        for window in self.all():
            if window.error is None and (queue is None or window.queue == queue):
                window.error, window.traceback = failed, failed.__traceback__


def taken(window: Open | None, token: Token) -> Open:
    if window is None:
        raise NotRegistered(f"{token!r} was never issued here, or was used: a token closes one window, once")
    return window


def may_close(window: Open, stream: Any, device: Device) -> int:
    """The handle to close a window on. Raises what stands against measuring it."""
    if window.error is not None:
        # One error may poison many windows: each raises it with the traceback it came with, not with all the others'.
        raise window.error.with_traceback(window.traceback)
    handle = stream_handle(stream)
    if queue_of(handle) != window.queue:
        where = f"started on stream {window.handle:#x} and stopped on {handle:#x}"
        if handle == window.handle:
            where = "started on one thread's default stream and stopped on another's"
        raise WrongStream(f"the window was {where}: stop it where it started")
    if device.stream_capturing(handle):
        raise Capturing(f"a capture of stream {handle:#x} began inside the window, which is abandoned")
    return handle
