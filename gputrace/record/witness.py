"""Tells signals that were sent to the whole process group from those to us alone: the command has the former already.

With what call a signal was sent does not come with it. So a process of ours stands by in the group, does nothing, and
lets wait whatever reaches it: what waits there, too, was sent to all. Linux; elsewhere nothing is known to be.
"""

from __future__ import annotations

import contextlib
import os
import signal
import warnings
from time import monotonic, sleep

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Set

#: How far apart one call may reach two processes.
_APART_S = 0.002
#: What waited at one who stood by, beside what was asked for, was sent to all for so long.
_LATELY_S = 1.0
#: How often one that stands by looks whether we are still there.
_LOOK_S = 1.0


class Witness:
    """The process that stands by. Make it with the signals in ``blocked`` blocked."""

    def __init__(self, blocked: Set[int]) -> None:
        self._blocked = blocked
        self._pid = _stand_by()
        self._others: dict[int, float] = {}  # by signal: until when it counts

    def saw(self, number: int) -> bool:
        """Did a signal that just reached us reach it, too? Asked once for each."""
        end_s = monotonic() + _APART_S
        while number not in (waiting := self._waiting(self._pid)) and monotonic() < end_s:
            sleep(_APART_S / 10)
        before, self._pid = self._pid, _stand_by()  # nothing waits there
        now_s = monotonic()
        lately = self._others.pop(number, 0.0) > now_s
        # What came in between waits at the one before alone.
        self._others |= dict.fromkeys((waiting | self._waiting(before)) - {number}, now_s + _LATELY_S)
        _dismiss(before)
        return number in waiting or lately

    def close(self) -> None:
        _dismiss(self._pid)

    def _waiting(self, pid: int) -> set[int]:
        """The signals that wait at a process that stands by: none if it cannot be seen."""
        try:
            with open(f"/proc/{pid}/status", "rb") as status:
                (bits,) = (int(line.split()[1], 16) for line in status if line.startswith(b"ShdPnd:"))
        except (OSError, ValueError):
            return set()
        return {number for number in self._blocked if bits >> (number - 1) & 1}


def _stand_by() -> int:
    """Start one. Returns its pid; 0 if none can be."""
    ours = os.getpid()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of threads: it takes no lock of theirs
            pid = os.fork()
    except OSError:
        return 0
    if pid:
        return pid
    try:
        os.closerange(0, os.sysconf("SC_OPEN_MAX"))  # nobody is to wait for it at the end of a pipe
        while os.getppid() == ours:
            sleep(_LOOK_S)
    finally:
        os._exit(0)


def _dismiss(pid: int) -> None:
    if pid:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
