"""A background thread of a tracing process: runs a function every so often, until told to stop.

A bare `_thread`, not a `threading.Thread`: the program must not find it among its own. It knows nothing of tracing.
"""

from __future__ import annotations

import os
from _thread import RLock, allocate_lock, get_ident, get_native_id, start_new_thread
from time import sleep

from gputrace.fence import let_through
from gputrace.hostclock import now_ns

# The builtin part of `signal`, which itself costs a traced program's start the import of enum.
_signal: Any = __import__("_signal")

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _thread import LockType
    from collections.abc import Callable
    from typing import Any, Final

PERIOD_S: Final = 0.05

_at_work: set[int] = set()


class AtWork:
    """While it is entered, this thread does our own work. A garbage collection may run the program's code in there, and
    so may a signal: what they ask for must neither begin the same work anew nor wait for its end.
    """

    def __enter__(self) -> None:
        _at_work.add(get_ident())

    def __exit__(self, *_: object) -> None:
        _at_work.discard(get_ident())


def is_at_work() -> bool:
    """Is this thread in the middle of our own work?"""
    return get_ident() in _at_work


#: The threads of ours that run in this process.
_ours: set[int] = set()
_forks = 0


def forget_threads() -> None:
    """In a forked child: there are none yet. One that forked it, in a finaliser of the program's, was its parent's and
    ends.
    """
    global _forks
    _forks += 1
    _ours.clear()


def is_left_alone() -> bool:
    """Are threads of ours all that is left of this process? A child that another thread than the main one forked ends
    with its last thread, past the interpreter's own end. Linux; elsewhere nobody can tell.
    """
    try:
        with open("/proc/self/stat", "rb") as stat:
            if stat.read().rpartition(b")")[2].split(None, 1)[0] != b"Z":
                return False
        return {int(tid) for tid in os.listdir("/proc/self/task")} <= _ours | {os.getpid()}
    except (OSError, ValueError, IndexError):
        return False


class Collector:
    """Calls ``work()`` every ``period_s`` seconds, 50 ms unless it is set, on a thread of its own. ``work`` must not
    raise.
    """

    def __init__(self, work: Callable[[], None], period_s: float = PERIOD_S) -> None:
        self._work = work
        self.period_s = period_s
        self._guard = RLock()  # a signal's handler may come here from within
        self._running = False
        self._stopping = False
        self._bell = allocate_lock()  # held while there is nothing to hurry for
        self._gone: LockType | None = None  # the current thread's own: held while it runs
        self._last: Callable[[], None] | None = None
        self._tid = 0

    @property
    def running(self) -> bool:
        return self._running

    def hurry(self) -> bool:
        """Has the thread been asked to stop?"""
        return self._stopping

    def start(self) -> bool:
        """Start the thread if it does not run, and have one that was asked to stop go on. False if no thread can be
        started (the interpreter is shutting down).

        A signal's handler may raise out of any line here: nothing is held or said that the next start could not mend.
        """
        if self._running and not self._stopping:
            return True
        with self._guard:
            if self._running:
                self._stopping = self._last is not None
                return True
            self._bell.acquire(blocking=False)
            gone = allocate_lock()
            gone.acquire()
            self._stopping = False
            self._gone, self._tid = gone, 0
            self._running = True
            try:
                start_new_thread(self._run, (gone,))
            except RuntimeError as error:
                self._running = False
                let_through(error)
                return False
            except BaseException:  # whether it was started nobody can tell: it ends if it was
                self._gone = None
                self._running = False
                raise
        return True

    def dismiss(self) -> None:
        """Ask the thread to stop; for the thread itself, which cannot wait for its own end."""
        self._stopping = True

    def ring(self) -> None:
        """Do not wait for the period's end."""
        try:
            self._bell.release()
        except RuntimeError as error:
            let_through(error)  # else it was rung already

    def stop(self, timeout_s: float) -> bool:
        """Ask the thread to stop and wait until it is gone, for the operating system too. False if it is late.

        Asked for on that very thread, it does nothing: it cannot wait for itself, and goes on when its caller is done.
        """
        gone = self._gone
        if not self._running or gone is None or get_native_id() == self._tid:
            return True
        self._stopping = True
        self.ring()
        if not gone.acquire(timeout=timeout_s):
            return False
        gone.release()
        _wait_for_exit(self._tid)
        return True

    def finish(
        self, last: Callable[[], None], interrupted: Callable[[], None], moved: Callable[[], int], patience_s: float
    ) -> bool:
        """Have the thread call ``last()``, which must not raise, and end; wait for that. No signal's handler of the
        program's runs there, so none can break it off halfway.

        Returns False, and waits no more, once ``moved()`` has said the same for ``patience_s`` seconds. What a handler
        raises here meanwhile is raised at the end; ``interrupted()`` is called at once. If the thread does not run and
        none can be started (3.12, at the interpreter's end), ``last()`` is called on this one.
        """
        ended = allocate_lock()
        ended.acquire()
        ticket = [True]  # whoever takes it does it: a handler may raise before we know that a thread was started
        done: list[bool] = []  # or that we have `ended`
        tids: list[int] = []

        def run() -> None:
            try:
                ticket.pop()
            except IndexError:
                return
            tids.append(get_native_id())
            try:
                last()
            finally:
                done.append(True)
                ended.release()

        def run_there() -> None:
            _take_no_signals()
            with AtWork():
                run()

        raised: BaseException | None = None
        before, since_ns = moved(), now_ns()
        self._last = run
        self.dismiss()
        while not done:
            try:
                self.ring()
                if ticket and not self._running:
                    start_new_thread(run_there, ())
                if ended.acquire(timeout=PERIOD_S):
                    break
                if moved() != before:
                    before, since_ns = moved(), now_ns()
                elif now_ns() - since_ns > patience_s * 1e9:
                    return False
            except BaseException as error:
                if ticket and not self._running and isinstance(error, RuntimeError):
                    run()
                    break
                raised = error
                interrupted()
        if tids[0] != get_native_id():
            _wait_for_exit(tids[0])
        if raised is not None:
            raise raised
        return True

    def _run(self, gone: LockType) -> None:
        self._tid = tid = get_native_id()
        _take_no_signals()
        _ours.add(tid)
        forks = _forks
        try:
            with AtWork():
                while forks == _forks and self._goes_on(gone):
                    self._bell.acquire(timeout=self.period_s)
                    if not self._stopping:
                        self._work()
                if self._last is not None and forks == _forks:
                    self._last()
        finally:
            _ours.discard(tid)
            if gone is self._gone:
                self._running = False
            gone.release()

    def _goes_on(self, gone: LockType) -> bool:
        """Is this thread to go on? If not, `start` is told so in the same breath, and starts another."""
        with self._guard:
            if gone is not self._gone:
                return False
            if self._stopping and self._last is None:
                self._running = False
            return not self._stopping


def _take_no_signals() -> None:
    """A signal handled on a thread of ours would not wake the program's main thread from what it waits in."""
    if hasattr(_signal, "pthread_sigmask"):
        _signal.pthread_sigmask(_signal.SIG_BLOCK, _signal.valid_signals())


def _wait_for_exit(tid: int) -> None:
    """Wait, at most 50 ms, until a thread that ended has left the process: Python 3.12 counts threads before a fork."""
    task = f"/proc/self/task/{tid}"
    for _ in range(500):
        if not os.path.exists(task):
            return
        sleep(0.0001)
