"""Recording and devices from inside a program: `gputrace.trace` and `gputrace.device`.

Importing it costs what joining shards needs, so `gputrace` does so only when asked for one of its names.
"""

from __future__ import annotations

import os
import sys
from _thread import RLock

from gputrace import exithook, tracer
from gputrace.collector import is_at_work
from gputrace.errors import UsageError
from gputrace.instrument.registry import choose
from gputrace.record import recording
from gputrace.record.advice import why_empty
from gputrace.record.region import counters_options, last_options
from gputrace.record.tally import Summary

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import TracebackType
    from typing import Any

    from gputrace.devices.base import Device

#: One recording a process starts or stops at a time, whatever threads ask.
_starting = RLock()
_changing = False  # while one does; a signal's handler may come here from within, past the lock


def _after_fork_in_child() -> None:
    """Another thread of the parent's may have been starting or stopping; it is not here to let the lock go."""
    global _starting, _changing
    _starting, _changing = RLock(), False


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


class _Changing:
    """While it is entered, a recording starts or stops."""

    def __enter__(self) -> None:
        global _changing
        self._before, _changing = _changing, True

    def __exit__(self, *_: object) -> None:
        global _changing
        _changing = self._before


def _refuse_at_work() -> None:
    if is_at_work():
        raise UsageError(
            "a recording can neither start nor stop in a finaliser, or a signal's handler, that interrupts gputrace's"
            " own work: have it done behind that, by a thread of the program's"
        )


class trace:
    """Record this process: as a context manager, or from ``start()`` to ``stop()``.

    ``with gputrace.trace("out.pftrace"): ...``. ``path``'s suffix chooses the format; ``device`` is "auto", "cuda",
    "simulated" or "host". ``max_size`` bounds what the process keeps of host spans that are not written yet, in bytes
    or like "64MB" (None: 32 MB); beyond it spans are not recorded, and counted. The pure twin keeps to a number of
    spans instead. ``instrument``: True for the patches that `gputrace record` applies to frameworks, too, False for
    none, or their names. ``counters``: how often to read those of the process and of its GPUs, or "off". ``last``: keep
    only so much of the end, like "30s", which `gputrace.dump` and SIGUSR2 have written meanwhile, too; None: all of it.
    Starting raises `UsageError` (unknown suffix, device or instrument, no size, no time, or something records already),
    `OutputError` (the path cannot be written) and `NoDriver`. Stopping waits at most 10 s for the device, raises
    `OutputError` if the trace cannot be written, and returns a summary, also in ``summary``. Under ``gputrace record``
    the command's own recording goes on and this one writes nothing: the summary's path is empty. So it is where nothing
    was recorded: no file is written then, and the summary's ``told`` says why. It says, too, where a rank's file is
    called otherwise than ``path``.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        device: str = "auto",
        *,
        max_size: int | str | None = None,
        instrument: bool | str | Iterable[str] = True,
        counters: str = "100ms",
        last: str | None = None,
    ) -> None:
        self.path = os.fspath(path)
        self.device = device
        self.max_size = max_size
        self.instrument = instrument
        self.counters = counters
        self.last = last
        self.summary: Summary | None = None
        self._session: recording.Session | None = None
        self._unregister: Callable[[], None] = lambda: None
        self._tracer: tracer.Tracer | None = None

    def start(self) -> trace:
        """Begin to record. Returns itself."""
        _refuse_at_work()
        with _starting:
            return self._start()

    def _start(self) -> trace:
        running = tracer.current()
        if running is not None and not running.own:
            # The program was written to record itself, and somebody records it from outside: theirs has it all.
            running.tell(f"{self.path} was not written: `gputrace record` records this process already")
            self.summary = Summary()
            return self
        if running is not None or _changing:
            raise UsageError("this process is being recorded already, by another gputrace.trace: stop it first")
        wanted = [self.instrument] if isinstance(self.instrument, str) else self.instrument
        instruments = choose() if wanted is True else choose(only=() if wanted is False else wanted)
        options = counters_options(self.counters, "counters") | last_options(self.last, "last")
        with _Changing():
            session = recording.start_recording(
                self.path, self.device, max_size=self.max_size, instruments=instruments, options=options
            )
            started = None
            try:
                started = tracer.Tracer(session.folder, session.device, own=True)
                started.write_dump = lambda number, now_ns: recording.dump_recording(session, number, now_ns)
                started.start()
                self._session, self._tracer, self.summary = session, started, None
                self._unregister = exithook.register(self._at_exit)
            except BaseException as error:  # a signal's handler may raise here, too
                self._session = self._tracer = None
                if started is not None and tracer.current() is started:
                    started.stop(0)
                recording.discard_recording(session)
                if isinstance(error, (OSError, RuntimeError)):
                    raise UsageError(f"cannot start to record: {error}") from error
                raise
        return self

    def stop(self) -> Summary:
        """Write the trace and return what it came to. Calling it again returns the same. Raises `UsageError` if nothing
        records, and where the program's code runs in the middle of gputrace's own work, as a finaliser may: the
        recording goes on then, until it is stopped elsewhere or the program ends.
        """
        _refuse_at_work()
        with _starting, _Changing():
            return self._stop()

    def _stop(self) -> Summary:
        if self._tracer is not None and self._session is not None:
            running, session = self._tracer, self._session
            self._tracer = self._session = None
            self._unregister()
            if os.getpid() != running.pid:  # a forked child came here: the recording is its parent's
                raise UsageError("the recording belongs to the process that started it")
            try:
                running.stop()
            finally:  # a signal's handler may have raised meanwhile
                self.summary = recording.finish_recording(session)
            if session.renamed:
                self.summary.told.append(session.renamed)
            if not self.summary.path:
                self.summary.told.append(f"{self.path} was not written: {why_empty(self.summary)}")
        if self.summary is None:
            raise UsageError("nothing records: call start() first")
        return self.summary

    def __enter__(self) -> trace:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._tracer is not None and os.getpid() != self._tracer.pid:
            return  # a forked child leaves the block: the recording is its parent's
        if error is None:
            self.stop()
            return
        try:
            self.stop()
        except Exception as failed:  # the program's own exception goes first
            error.add_note(f"gputrace: the trace was not written: {failed}")

    def _at_exit(self) -> None:
        """The program ends without `stop`: the trace is written all the same."""
        if self._tracer is not None and os.getpid() == self._tracer.pid:
            try:
                self.stop()
            except Exception as error:  # nobody is left to raise it to
                sys.stderr.write(f"gputrace: {error}\n")


def device(kind: str = "cuda", stream: Any = None) -> Device:
    """The device for an `EventProfiler`: the one a stream belongs to, or else of the calling thread's current context.

    ``kind`` is "cuda" or "simulated". Raises `NoDriver`, `DriverError` (no context is current, or no such stream) and
    `UsageError` (unknown kind).
    """
    from gputrace.devices import device_of

    return device_of(kind, stream)
