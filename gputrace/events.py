"""The pool of one device's events: handed out, taken back, counted.

Creating an event is a driver call with a lock behind it, and a traced program opens thousands of windows a second, so
events are reused for as long as the pool lives. It knows nothing of what an event marks.
"""

from __future__ import annotations

from gputrace.errors import DeviceError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from gputrace.devices.base import Device


class EventPool:
    """Events of one device. Thread-safe. Conservation holds on every path: created = pooled + live.

    There is no lock: each step is one atomic operation of a list or a dict. A lock might be held by the very thread
    that a signal's handler interrupts, and the handler may well open a window.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self._all: dict[int, Any] = {}  # by id()
        self._free: list[Any] = []
        self._closed = False

    @property
    def created(self) -> int:
        """Events that exist."""
        return len(self._all)

    @property
    def pooled(self) -> int:
        """Events waiting here to be used again."""
        return len(self._free)

    @property
    def live(self) -> int:
        """Events handed out and not yet back."""
        return len(self._all) - len(self._free)

    def acquire(self) -> Any:
        """An event, to be given back with `release`. Never waits for the device.

        Raises `DriverError` where the device has no more to give; nothing is then owed.
        """
        try:
            return self._free.pop()
        except IndexError:
            pass
        event = None
        try:
            with self.device.active():
                event = self.device.event_create()
                self._all[id(event)] = event
        except BaseException:
            if event is not None:  # made, but then the caller's context could not be put back
                self.release(event)
            raise
        return event

    def release(self, event: Any) -> None:
        """Take an event back, whatever its state: recording a pending event again is allowed."""
        self._free.append(event)
        if self._closed:
            self.close()

    def close(self) -> None:
        """Destroy the pooled events, and from now on each event that comes back."""
        self._closed = True
        try:
            with self.device.active():
                self._destroy_pooled()
        except DeviceError:  # the context is gone, and took its events with it
            while self._free:
                self._all.pop(id(self._free.pop()), None)

    def forget(self) -> None:
        """In a forked child: the events are the parent's. Touches no driver."""
        self._free.clear()
        self._all.clear()

    def _destroy_pooled(self) -> None:
        while True:
            try:
                event = self._free.pop()
            except IndexError:
                return
            self._all.pop(id(event), None)
            try:
                self.device.event_destroy(event)
            except DeviceError:
                continue  # this one was gone already; the others may not be
