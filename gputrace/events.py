"""The pool of one device's events: handed out, taken back, counted.

Creating an event is a driver call with a lock behind it, and a traced program opens thousands of windows a second, so
events are reused for as long as the pool lives. It knows nothing of what an event marks.
"""

from __future__ import annotations

from _thread import allocate_lock

from gputrace.errors import DriverError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from gputrace.devices.base import Device


class EventPool:
    """Events of one device. Thread-safe. Conservation holds on every path: created = pooled + live."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.created = 0
        self._free: list[Any] = []
        self._lock = allocate_lock()

    @property
    def pooled(self) -> int:
        """Events waiting here to be used again."""
        return len(self._free)

    @property
    def live(self) -> int:
        """Events handed out and not yet back."""
        return self.created - len(self._free)

    def acquire(self) -> Any:
        """An event, to be given back with `release`. Never waits for the device.

        Raises `DriverError` where the device has no more to give; nothing is then owed.
        """
        try:
            return self._free.pop()
        except IndexError:
            pass
        with self.device.active():
            event = self.device.event_create()
        with self._lock:
            self.created += 1
        return event

    def release(self, event: Any) -> None:
        """Take an event back, whatever its state: recording a pending event again is allowed."""
        self._free.append(event)

    def close(self) -> None:
        """Destroy the pooled events. A device that is gone took its events with it: its errors mean nothing here."""
        try:
            with self.device.active():
                while self._free:
                    event = self._free.pop()
                    with self._lock:
                        self.created -= 1
                    self.device.event_destroy(event)
        except DriverError:
            with self._lock:
                self.created -= len(self._free)
                self._free.clear()
