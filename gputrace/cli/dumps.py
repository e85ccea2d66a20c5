"""Writes what the processes of a running recording keep of their last seconds, whenever one of them asks for it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from gputrace.cli.outcome import tell_dumped
from gputrace.cli.say import say
from gputrace.errors import OutputError
from gputrace.hostclock import now_ns
from gputrace.record.recording import dump_recording

if TYPE_CHECKING:
    from gputrace.record.recording import Session


class Dumps:
    """``quiet``: say only what went wrong; ``snapshot_every_s``: how often to read the host clocks meanwhile."""

    #: How often to look whether one was asked for.
    EVERY_S = 0.1
    #: By then other processes, too, have written what they did up to the moment that was asked for.
    _SETTLED_NS = 200_000_000

    def __init__(self, session: Session, quiet: bool, snapshot_every_s: float) -> None:
        self._session = session
        self._quiet = quiet
        self._snapshot_every_s = snapshot_every_s
        self._snapshot_s = time.monotonic()
        self._written: set[int] = set()

    def ask(self) -> None:
        """Ask for one here: the only way where no process of the recording can."""
        try:
            self._session.folder.ask_for_dump(now_ns())
        except OSError as error:
            say(f"the last seconds cannot be written: {error.strerror}")

    def look(self) -> None:
        """Write what was asked for long enough ago. Raises nothing."""
        if time.monotonic() - self._snapshot_s > self._snapshot_every_s:
            self._snapshot_s = time.monotonic()
            self._session.take_snapshot()
        self.write(now_ns() - self._SETTLED_NS)

    def write(self, until_ns: int | None = None) -> None:
        """Write what was asked for by then; all of it, if None."""
        try:
            asked = self._session.folder.dumps_asked_for()
        except OSError:
            return  # the folder is gone: the end says so
        for number, asked_ns in sorted(asked.items()):
            if number in self._written or (until_ns is not None and asked_ns > until_ns):
                continue
            self._written.add(number)
            try:
                path, slices = dump_recording(self._session, number, asked_ns)
            except OutputError as error:
                say(str(error))
            else:
                if not self._quiet:
                    tell_dumped(path, slices)
