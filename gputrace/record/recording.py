"""One recording from its start to its trace, for the command line and for `gputrace.trace()` alike.

It knows neither how a command is run nor how a process traces itself. A traced program imports it only when it records
itself, so it stays free of click and rich.
"""

from __future__ import annotations

import contextlib
import os
import stat
import sys

from gputrace import hostclock
from gputrace.errors import OutputError, UsageError
from gputrace.model import Recording
from gputrace.record import formats, gitcommit
from gputrace.record.join import join, remove
from gputrace.shards import ShardFolder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from gputrace.model import Exporter
    from gputrace.record.formats import Format
    from gputrace.record.join import Progress
    from gputrace.shards import Value

# What a report counts and a summary adds up.
_COUNTS = (
    "slices",
    "windows",
    "dropped",
    "failed",
    "clamped",
    "out_of_order",
    "capture_skipped",
    "clock_violations",
    "unfinished",
)

# A change of BOOTTIME minus MONOTONIC by more than this is a suspend; less is the width of two readings' brackets.
_SUSPEND_NS = 1_000_000


class Session:
    """A recording under way: where its shards go, and what they will become.

    ``output`` is absolute. ``device`` is the kind chosen, ``device_reason`` one line that says why.
    """

    def __init__(
        self, output: str, format: Format, exporter: type[Exporter], folder: ShardFolder, device_reason: str
    ) -> None:
        self.output = output
        self.format = format
        self.exporter = exporter
        self.folder = folder
        self.device = folder.device
        self.device_reason = device_reason

    def take_snapshot(self) -> None:
        """Read the host clocks and keep the reading. Never raises: a full disk must not end a command early."""
        with contextlib.suppress(OSError):
            self.folder.add_snapshot(hostclock.snapshot())

    def how_to_recover(self) -> str:
        """What to tell someone whose shards were not joined."""
        return _how_to_recover(self.folder, self.output)


class Summary:
    """What a recording came to: counts are of all its processes, sizes in bytes, times in ns.

    ``path`` is "" where nothing was written, because no process traced anything. ``processes`` counts those whose
    shards hold something, ``started`` the Python processes that could have. ``unreported`` were killed before they
    could count, so every other number is a lower bound where it is not 0. ``told`` are their messages and ours.
    """

    def __init__(self) -> None:
        self.path = ""
        self.size = 0
        self.processes = 0
        self.started = 0
        self.unreported = 0
        self.slices = 0
        self.windows = 0
        self.dropped = 0
        self.failed = 0
        self.clamped = 0
        self.out_of_order = 0
        self.capture_skipped = 0
        self.clock_violations = 0
        self.unfinished = 0
        self.worst_uncertainty_ns = 0
        self.told: list[str] = []

    def counts(self) -> dict[str, int]:
        """The counts by name, for the trace's own metadata."""
        return {name: getattr(self, name) for name in _COUNTS}


def start_recording(output: str, device: str = "auto", command: Sequence[str] | None = None) -> Session:
    """Make sure the trace can be written, choose the device, and make the shard folder, hidden beside the output.

    ``command`` is what is recorded, for the trace's metadata: this process if None. Raises `UsageError` (unknown
    suffix or device), `OutputError` (the output cannot be written), `NoDriver` (``device`` is "cuda" and there is
    none). Nothing is left behind then.
    """
    from gputrace import devices

    format = formats.of_output(output)
    output = _checked(output)
    exporter = formats.load(format.exporter)
    kind, reason = devices.choose(device, initialise=command is not None)

    recording = Recording(os.urandom(16).hex(), hostclock.now_ns(), hostclock.boottime_offset_ns())
    path = _make_folder(output, recording.id)
    try:
        folder = ShardFolder.create(path, recording, format.suffix, format.exporter, kind)
        session = Session(output, format, exporter, folder, reason)
        folder.write_metadata(_facts(list(sys.orig_argv if command is None else command), kind, reason))
        folder.add_snapshot(hostclock.snapshot())
    except OSError as error:
        remove(path)
        raise OutputError(f"cannot write into {os.path.dirname(output)}: {error.strerror}") from error
    return session


def finish_recording(session: Session, progress: Progress | None = None) -> Summary:
    """Join the shards into the trace, and remove them. All processes of interest must have ended or flushed.

    Raises `OutputError` if the trace cannot be written: the shards are kept then, and the error says where.
    """
    session.take_snapshot()
    return _finish(session.folder, session.output, session.format, session.exporter, progress)


def recover(path: str, output: str, progress: Progress | None = None) -> Summary:
    """Finish the recording whose shard folder is ``path``, left by a launcher that died or could not write.

    Raises `UsageError` if the output's suffix is another than the recording's, `OutputError` if the folder holds no
    recording or the trace cannot be written.
    """
    try:
        folder = ShardFolder.open(path)
    except OSError as error:
        raise OutputError(f"{path} cannot be read as a recording's folder: {error.strerror}") from error
    format = formats.of_output(output)
    if format.suffix != folder.suffix:
        raise UsageError(f"this recording is in the format {folder.suffix}: it cannot become {output}")
    return _finish(folder, _checked(output), format, formats.load(folder.exporter), progress)


def discard_recording(session: Session) -> None:
    """Remove the shards and write no trace: the command never started."""
    remove(session.folder.path)


def _finish(
    folder: ShardFolder, output: str, format: Format, exporter: type[Exporter], progress: Progress | None
) -> Summary:
    try:
        summary = _add_up(folder)
        metadata = folder.metadata() | summary.counts()
        size = join(folder, output, exporter, gzip=format.gzip, metadata=metadata, progress=progress)
    except Exception as error:  # a third party's exporter may raise anything
        what = error.strerror if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
        raise OutputError(f"cannot write {output}: {what}. {_how_to_recover(folder, output)}") from error
    if size:
        summary.path, summary.size = output, size
    remove(folder.path)
    return summary


def _how_to_recover(folder: ShardFolder, output: str) -> str:
    from shlex import join as quoted

    command = quoted(["gputrace", "merge", folder.path, "-o", output])
    return f"Nothing recorded is lost; to write the trace after all, run: {command}"


def _add_up(folder: ShardFolder) -> Summary:
    summary = Summary()
    reports = folder.reports()
    shards = [number for number in folder.numbers() if os.path.getsize(folder.shard_path(number))]
    summary.processes = len(shards)
    # Started with -I, -E or -S, a process misses the boot and claims its shard when it imports gputrace.
    summary.started = max(len(folder.processes()), len(folder.numbers()))
    summary.unreported = len([number for number in shards if number not in reports])
    for report in reports.values():
        for name in _COUNTS:
            setattr(summary, name, getattr(summary, name) + _count(report.get(name)))
        summary.worst_uncertainty_ns = max(summary.worst_uncertainty_ns, _count(report.get("worst_uncertainty_ns")))
        told = report.get("told", [])
        summary.told += told if isinstance(told, list) else [str(told)]
    summary.told += [f"tracing did not start in process {note}" for note in folder.notes()]
    summary.told += _suspends(folder)
    summary.told = list(dict.fromkeys(summary.told))  # what a thousand processes say alike is told once
    return summary


def _count(value: Value | None) -> int:
    return value if isinstance(value, int) else 0


def _suspends(folder: ShardFolder) -> list[str]:
    offsets = [snapshot.boottime_ns - snapshot.monotonic_ns for snapshot in folder.snapshots()]
    asleep_ns = offsets[-1] - folder.recording.boottime_offset_ns if offsets else 0
    if abs(asleep_ns) <= _SUSPEND_NS:
        return []
    return [f"the machine was suspended for {asleep_ns / 1e9:.1f} s meanwhile: the trace does not show that time"]


def _checked(output: str) -> str:
    """The output's absolute path, links followed. Raises `OutputError` if a trace cannot be put there."""
    path = os.path.realpath(output)
    parent = os.path.dirname(path)
    try:
        mode = os.stat(parent).st_mode
    except FileNotFoundError:
        raise OutputError(f"cannot write {output}: the folder {parent} does not exist; make it first") from None
    except OSError as error:
        raise OutputError(f"cannot write {output}: {error.strerror}") from error
    if not stat.S_ISDIR(mode):
        raise OutputError(f"cannot write {output}: {parent} is a file, not a folder")
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return path
    except OSError as error:
        raise OutputError(f"cannot write {output}: {error.strerror}") from error
    if stat.S_ISDIR(mode):
        raise OutputError(f"cannot write {output}: it is a folder; name a file in it, {output}/trace.pftrace")
    if not stat.S_ISREG(mode):
        raise OutputError(f"cannot write {output}: it exists and is no ordinary file")
    if not os.access(path, os.W_OK):
        raise OutputError(f"cannot write {output}: it exists and you may not write it")
    return path


def _make_folder(output: str, id: str) -> str:
    parent, name = os.path.split(output)
    path = os.path.join(parent, f".{name[:48]}.{id[:12]}")
    try:
        os.mkdir(path, 0o700)
    except OSError as error:
        raise OutputError(
            f"cannot write {output}: its folder takes no new files ({error.strerror}); choose another with -o"
        ) from error
    return path


def _facts(command: list[str], device: str, device_reason: str) -> dict[str, Value]:
    """What a trace says about its recording. Nothing of the environment: traces get shared."""
    import gputrace

    now = hostclock.snapshot()
    system = os.uname()
    try:
        commit = gitcommit.commit(os.getcwd())
    except OSError:  # the current directory was removed
        commit = ""
    return {
        "gputrace_version": getattr(gputrace, "__version__", ""),
        "python_version": sys.version.split()[0],
        "platform": f"{system.sysname} {system.release} {system.machine}",
        "hostname": system.nodename,
        "command_line": command,
        "git_commit": commit,
        "device": device,
        "device_reason": device_reason,
        "start_boottime_ns": now.boottime_ns,
        "start_monotonic_ns": now.monotonic_ns,
        "start_realtime_ns": now.realtime_ns,
    }
