"""Runs a command so that whoever called us cannot tell: its files, terminal, signals and exit status are its own.

It knows no trace. The command stays in our process group, so what is sent to that, as by the terminal's keys, reaches
it by itself; what is sent to us alone is passed on. Our own signals are blocked meanwhile and read one by one, so
none is lost and none kills us before the command has ended. `os.posix_spawn` rather than `subprocess`: it gives the
command the signal mask we were started with and every descriptor we inherited, and costs no import.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys
import time

from gputrace.errors import GputraceError
from gputrace.record.witness import Witness

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

NOT_FOUND = 127
NOT_EXECUTABLE = 126

# SIGKILL and SIGSTOP cannot be passed on; faults and pipe errors are our own.
_PASSED_ON = {
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGALRM,
    signal.SIGCONT,
    signal.SIGTSTP,
    signal.SIGWINCH,
}
# The terminal sends these to the whole process group: the command has its own already. (SIGHUP it may send to a
# session's leader alone, and SIGCONT twice does no harm.)
_FROM_TERMINAL = {signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP, signal.SIGWINCH}
_SI_KERNEL = 0x80
# Stopped by one of these, the command was stopped as a job, by its terminal or on its own.
_JOB_CONTROL = {signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU}

# The Python at work here ignores these; a command must not inherit that.
_IGNORED_BY_PYTHON = [signal.SIGPIPE, signal.SIGXFSZ]


class CannotStart(GputraceError):
    """The command did not start. ``exit_code`` is a shell's: 127 where it does not exist, else 126."""

    def __init__(self, text: str, exit_code: int) -> None:
        self.exit_code = exit_code
        super().__init__(text)


class Signals:
    """Keeps signals that are passed on waiting, instead of letting them kill us; a context manager.

    ``kept`` are those signals. The ones ignored from the start (nohup, background jobs) are left ignored, by us and by
    the command. A trace is put together inside, too: the Ctrl-C that ended the command is often pressed twice. They
    stay blocked for good: the exit code of a command that is over is not to change by what reaches us on our way out.
    """

    def __enter__(self) -> Signals:
        if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # or the exit status would be lost
        self.kept = {number for number in _PASSED_ON if signal.getsignal(number) is not signal.SIG_IGN}
        self.mask_before = signal.pthread_sigmask(signal.SIG_BLOCK, {*self.kept, signal.SIGCHLD})
        self.witness = Witness(self.kept) if hasattr(signal, "sigtimedwait") else None
        return self

    def __exit__(self, *_: object) -> None:
        if self.witness is not None:
            self.witness.close()

    def take(self, number: signal.Signals) -> bool:
        """Has this signal arrived? Forget it if so."""
        if number not in self.kept or number not in signal.sigpending():
            return False
        signal.sigwait({number})
        return True


class Command:
    """A command that was started and not yet waited for."""

    def __init__(self, pid: int, signals: Signals) -> None:
        self.pid = pid
        self._kept = signals.kept
        self._witness = signals.witness
        self._taken: Mapping[int, Callable[[], None]] = {}

    def wait(
        self, tick: Callable[[], None], every_s: float, taken: Mapping[int, Callable[[], None]] | None = None
    ) -> int:
        """Wait for the end, passing signals on, calling ``tick`` every ``every_s`` seconds.

        ``taken`` are signals that are meant for us, and what is called for them. Returns the exit code, or minus the
        number of the signal that killed it.
        """
        self._taken = taken or {}
        next_tick_s = time.monotonic() + every_s
        while True:
            pid, status = os.waitpid(self.pid, os.WNOHANG | os.WUNTRACED)
            if pid and not os.WIFSTOPPED(status):
                return os.waitstatus_to_exitcode(status)
            if pid and os.WSTOPSIG(status) in _JOB_CONTROL:
                # Whoever started us is to see the job stopped. Continued, we pass that on like any signal.
                os.kill(os.getpid(), signal.SIGSTOP)
            self._pass_on(max(0.0, next_tick_s - time.monotonic()))
            if time.monotonic() >= next_tick_s:
                next_tick_s = time.monotonic() + every_s
                tick()

    def _pass_on(self, timeout_s: float) -> None:
        """Wait for one signal; hand it to the command if it came to us alone."""
        if self._witness is None:  # macOS: look now and then; who sent a signal cannot be known
            time.sleep(min(timeout_s, 0.02))
            for number in signal.sigpending() & self._kept:
                signal.sigwait({number})
                if number not in _FROM_TERMINAL:
                    self._send(number)
            return
        info = signal.sigtimedwait({*self._kept, signal.SIGCHLD}, timeout_s)
        if info is None or info.si_signo == signal.SIGCHLD:
            return
        to_all = self._witness.saw(info.si_signo)
        if to_all or (info.si_code == _SI_KERNEL and info.si_signo in _FROM_TERMINAL):
            return
        self._send(info.si_signo)

    def _send(self, number: int) -> None:
        if number in self._taken:
            self._taken[number]()
            return
        # Not waited for yet, so the pid is still the command's, ended or not. It may have become another user's.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(self.pid, number)


def start(arguments: list[str], environment: Mapping[str, str], signals: Signals) -> Command:
    """Start a command, looked for on PATH as a shell does. Raises `CannotStart`."""
    name = arguments[0]

    def spawn(path: str, argv: list[str]) -> Command:
        mask = signals.mask_before
        pid = os.posix_spawnp(path, argv, environment, setsigmask=mask, setsigdef=_IGNORED_BY_PYTHON)
        return Command(pid, signals)

    try:
        try:
            return spawn(name, arguments)
        except OSError as error:
            found = _find(name)
            if error.errno != errno.ENOEXEC or found is None:
                raise
            # A script without a first line that names its interpreter: every shell runs it itself.
            return spawn("/bin/sh", ["/bin/sh", found, *arguments[1:]])
    except (OSError, ValueError) as error:
        raise _cannot_start(name, error) from None


def end_as(exit_code: int) -> int:
    """Die of the signal the command died of, so that our caller sees what it would have seen.

    Returns an exit code otherwise: the command's own, or 128 plus the signal's number where we survived it.
    """
    if exit_code >= 0:
        return exit_code
    import resource

    number = -exit_code
    with contextlib.suppress(OSError, ValueError):
        # No core of ours beside the command's. One byte and not none: none is not heeded where cores are piped to a
        # handler, one is (core(5)).
        resource.setrlimit(resource.RLIMIT_CORE, (1, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    with contextlib.suppress(OSError, ValueError):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os.kill(os.getpid(), number)
    return 128 + number


def _cannot_start(name: str, error: OSError | ValueError) -> CannotStart:
    found = _find(name)
    if isinstance(error, ValueError):
        return CannotStart(f"cannot run {name!r}: {error}", NOT_EXECUTABLE)
    if not isinstance(error, FileNotFoundError):
        return CannotStart(f"cannot run {found or name}: {error.strerror}{_meant(found)}", NOT_EXECUTABLE)
    if found:
        return CannotStart(f"cannot run {found}: the interpreter that its first line names does not exist", NOT_FOUND)
    where = "no such file" if "/" in name else "it is not on PATH"
    return CannotStart(f"command not found: {name}: {where}{_meant(name)}", NOT_FOUND)


def _meant(name: str | None) -> str:
    """What someone who named a file as the command may have meant."""
    if name is None or not os.path.isfile(name):
        return ""
    meant = f"python {name}" if name.endswith(".py") else os.path.join(".", name) if "/" not in name else ""
    return f"; did you mean: {meant}?" if meant else ""


def _find(name: str) -> str | None:
    """The file a command's name means, executable or not."""
    folders = [""] if "/" in name else os.get_exec_path()
    return next((path for folder in folders if os.path.isfile(path := os.path.join(folder, name))), None)
