"""One recording from its start to its trace, for the command line and for `gputrace.trace()` alike.

It knows neither how a command is run nor how a process traces itself. A traced program imports it only when it records
itself, so it stays free of click and rich.
"""

from __future__ import annotations

import contextlib
import os
import stat
import sys

from gputrace import hostclock, ranks
from gputrace.errors import OutputError, UsageError
from gputrace.masking import mask
from gputrace.model import Recording
from gputrace.record import alive, formats, gitcommit
from gputrace.record.join import join, parts_of, remove
from gputrace.record.salvage import salvage_all
from gputrace.record.sizes import size_in_bytes
from gputrace.shards import LAUNCHER, ShardFolder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Protocol

    from gputrace.model import Exporter
    from gputrace.record.formats import Format
    from gputrace.record.join import Progress
    from gputrace.record.salvage import Salvaged
    from gputrace.shards import Value, Values

    class Drawn(Protocol):
        """What is drawn in a process's files."""

        slices: int
        windows: int
        unfinished: int

    #: Counts that in files, each up to so many bytes, of a format by its suffix; None if it does not know that one.
    Recount = Callable[[Iterable[tuple[str, int]], str], Drawn | None]

# What a report counts and a summary adds up.
_COUNTS = (
    "slices",
    "windows",
    "dropped",
    "no_room",
    "failed",
    "clamped",
    "out_of_order",
    "capture_skipped",
    "clock_violations",
    "unfinished",
)

# Those that can be counted again in what a process wrote.
_DRAWN = ("slices", "windows", "unfinished")

# A change of BOOTTIME minus MONOTONIC by more than this is a suspend; less is the width of two readings' brackets.
_SUSPEND_NS = 1_000_000

# How long a process may outlive the command before it counts as one that still runs.
_GRACE_S = 1.0

_MOST_NAMED = 4


class Session:
    """A recording under way: where its shards go, and what they will become.

    ``output`` is absolute. ``device`` is the kind chosen, ``device_reason`` one line that says why. ``renamed`` says
    why the output is not named as it was asked for; "" if it is.
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
        self.renamed = ""

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
    shards hold something, ``started`` the Python processes that could have. Every other number is a lower bound where a
    process did not come to a clean end: ``cut_short`` counts those that were killed, or left by `os._exit` or exec, and
    whose shards hold something, ``kept`` those of them whose every host slice was found in a ring, ``recounted`` those
    whose slices, windows and unfinished ones were counted in the file; ``unreported`` those
    that could write no more, as on a full disk; ``silent`` those that left nothing; ``running`` names those that still
    run, and then the shards are kept in ``folder``. ``told`` are messages, the processes' and ours.

    Of what was recorded: ``device``, the kind of device ("cuda", "simulated" or "host"); ``command``, its command line;
    ``nested``, the outputs of recordings inside this one; where no Python was seen, ``heirs``, the processes that still
    run and might start one. ``failed_to_trace`` says whether a process's tracing failed, and ``told`` then says why.
    ``missed`` says, also in ``told``, why a process recorded nothing of the region that was asked for.
    """

    def __init__(self) -> None:
        self.path = ""
        self.size = 0
        self.folder = ""
        self.device = ""
        self.command: list[str] = []
        self.processes = 0
        self.started = 0
        self.cut_short = 0
        self.kept = 0
        self.recounted = 0
        self.unreported = 0
        self.silent = 0
        self.running: list[str] = []
        self.nested: list[str] = []
        self.heirs: list[str] = []
        self.failed_to_trace = False
        self.slices = 0
        self.windows = 0
        self.dropped = 0
        self.no_room = 0
        self.failed = 0
        self.clamped = 0
        self.out_of_order = 0
        self.capture_skipped = 0
        self.clock_violations = 0
        self.unfinished = 0
        self.worst_uncertainty_ns = 0
        self.told: list[str] = []
        self.missed: list[str] = []

    def counts(self) -> dict[str, int]:
        """The counts by name, for the trace's own metadata."""
        return {name: getattr(self, name) for name in _COUNTS}

    def __repr__(self) -> str:
        """What is not 0 or empty."""
        return f"Summary({', '.join(f'{name}={value!r}' for name, value in vars(self).items() if value)})"

    @property
    def is_lower_bound(self) -> bool:
        """Did a process not come to say its last counts, and could not be counted for?"""
        return bool(self.cut_short > self.recounted or self.unreported or self.running)


def start_recording(
    output: str,
    device: str = "auto",
    command: Sequence[str] | None = None,
    *,
    unmasked: bool = False,
    max_size: int | str | None = None,
    instruments: Sequence[str] = (),
    options: Mapping[str, Value] | None = None,
) -> Session:
    """Make sure the trace can be written, choose the device, and make the shard folder, hidden beside the output.

    ``command`` is what is recorded, for the trace's metadata: this process if None. Its secrets and those of every
    process's command line are masked, unless ``unmasked``. ``max_size``: see `gputrace.trace`.
    ``instruments``: as `gputrace.instrument.registry.choose` returns them; ``options``: see
    `gputrace.shards.ShardFolder`. Raises `UsageError`
    (unknown suffix or device, no size), `OutputError` (the output cannot be written), `NoDriver` (``device`` is "cuda"
    and there is none). Nothing is left behind then.
    """
    from gputrace import devices

    rank = ranks.identity()
    output, renamed = _named_for(output, rank)
    format = formats.of_output(output)
    output = checked_output(output)
    exporter = formats.load(format.exporter)
    kind, reason = devices.choose(device, initialise=command is not None)
    ring_bytes = 0 if max_size is None else _ring_bytes(max_size)

    recording = Recording(os.urandom(16).hex(), hostclock.now_ns(), hostclock.boottime_offset_ns())
    path = _make_folder(output, recording.id)
    try:
        first = rank.first_number if rank else 0
        folder = ShardFolder.create(
            path, recording, format.suffix, format.exporter, kind, first, unmasked, ring_bytes, instruments, options
        )
        session = Session(output, format, exporter, folder, reason)
        session.renamed = renamed
        line = list(sys.orig_argv if command is None else command)
        folder.write_metadata(_facts(line if unmasked else mask(line), kind, reason))
        folder.add_snapshot(hostclock.snapshot())
        folder.add_writer(LAUNCHER)
    except OSError as error:
        remove(path)
        raise OutputError(f"cannot write into {os.path.dirname(output)}: {error.strerror}") from error
    return session


def finish_recording(session: Session, progress: Progress | None = None, recount: Recount | None = None) -> Summary:
    """Join the shards into the trace, and remove them unless a traced process still runs.

    One that runs gets a moment to end: helpers, such as multiprocessing's, outlive their parent a little. What killed
    processes left is counted by ``recount``; without it, their own last counts are all there is. Raises `OutputError`
    if the trace cannot be written: the shards are kept then, and the error says where.
    """
    alive.wait_for_writers(session.folder, _GRACE_S)
    session.take_snapshot()
    return _finish(session.folder, session.output, session.format, session.exporter, progress, recount)


def recover(path: str, output: str, progress: Progress | None = None, recount: Recount | None = None) -> Summary:
    """Finish the recording whose shard folder is ``path``, left by a launcher that died or could not write.

    ``recount``: see `finish_recording`. Raises `UsageError` if the output's suffix is another than the recording's,
    `OutputError` if the folder holds no recording or the trace cannot be written.
    """
    folder = _opened(path)
    format = formats.of_output(output)
    if format.suffix != folder.suffix:
        raise UsageError(
            f"this recording is in the format {folder.suffix} and cannot become {output}: "
            f"name the output {folder.suffix} or {folder.suffix}.gz"
        )
    return _finish(folder, checked_output(output), format, formats.load(folder.exporter), progress, recount)


def gather(path: str, output: str) -> list[str]:
    """Write what the shards in folder ``path`` hold so far to ``output``, and leave the folder as it is.

    Returns what there is to tell. Raises `OutputError` if the folder holds no recording, or ``output`` cannot be
    written.
    """
    folder = _opened(path)
    exporter = formats.load(folder.exporter)
    running = alive.writers(folder)
    try:
        salvaged = salvage_all(folder, exporter, running)
        summary = _add_up(folder, running, salvaged)
        metadata = folder.metadata() | summary.counts() | _numbers(folder)
        size = join(folder, output, exporter, gzip=False, metadata=metadata, salvaged=salvaged)
    except OSError as error:
        raise OutputError(f"cannot write {output}: {error.strerror}") from error
    if not size:
        raise OutputError(f"{path} holds no shard with anything in it")
    return summary.told


def is_shard_folder(path: str) -> bool:
    """Is this the folder of a recording?"""
    return os.path.isfile(os.path.join(path, "recording"))


def _opened(path: str) -> ShardFolder:
    try:
        return ShardFolder.open(path)
    except FileNotFoundError:
        why = "is not a recording's folder (no file 'recording' in it)" if os.path.isdir(path) else "does not exist"
        raise OutputError(f"{path} {why}") from None
    except NotADirectoryError:
        raise OutputError(f"{path} is not a recording's folder: it is a file") from None
    except OSError as error:
        raise OutputError(f"{path} cannot be read as a recording's folder: {error.strerror}") from error


def discard_recording(session: Session) -> None:
    """Remove the shards and write no trace: the command never started."""
    remove(session.folder.path)


def _finish(
    folder: ShardFolder,
    output: str,
    format: Format,
    exporter: type[Exporter],
    progress: Progress | None,
    recount: Recount | None,
) -> Summary:
    summary = None
    try:
        # Before the shards are read: what a process wrote that has ended by now is all there.
        running = alive.writers(folder)
        salvaged = salvage_all(folder, exporter, running)
        anew = _counted_anew(folder, running, exporter, salvaged, recount)
        summary = _add_up(folder, running, salvaged, anew)
        metadata = folder.metadata() | summary.counts() | _numbers(folder)
        gzip = format.gzip
        size = join(folder, output, exporter, gzip=gzip, metadata=metadata, salvaged=salvaged, progress=progress)
    except Exception as error:  # a third party's exporter may raise anything
        what = error.strerror if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
        if summary is None:  # not even what killed processes left could be drawn, as where the disk is full
            with contextlib.suppress(Exception):
                summary = _add_up(folder, set(), {})
        parts = [f"cannot write {output}: {what}", *(summary.told if summary else []), _how_to_recover(folder, output)]
        if summary and _all_there(summary):
            parts.insert(1, "Nothing recorded is lost")
        raise OutputError(". ".join(parts)) from error
    if size:
        summary.path, summary.size = output, size
    # Asked again: a process that ran may have started another, and some end while the trace is written.
    running |= alive.writers(folder)
    if not running and not summary.started:
        # On its way to its first line, a Python process has no shard yet. This looks at every process there is.
        heirs = alive.heirs(folder)
        running |= {pid for pid in heirs if alive.is_python(pid)}
        summary.heirs = [alive.name(pid) for pid in sorted(heirs - running)]
    if running:
        summary.running = [alive.name(pid) for pid in sorted(running)]
        summary.folder = folder.path
        summary.told.append(_still_runs(summary.running, folder, output))
    else:
        remove(folder.path)
    return summary


def _numbers(folder: ShardFolder) -> dict[str, int]:
    """Which shard numbers are taken, so that a merge need not look at every packet to know its ids."""
    numbers = folder.numbers()
    return {"first_number": numbers[0], "last_number": numbers[-1]} if numbers else {}


def _merge(folder: ShardFolder, output: str) -> str:
    from shlex import join as quoted

    return quoted(["gputrace", "merge", folder.path, "-o", output])


def _how_to_recover(folder: ShardFolder, output: str) -> str:
    if not os.path.isdir(folder.path):
        return f"The folder {folder.path} is gone, and what was recorded with it: something removed it meanwhile"
    return (
        f"What was recorded up to then is in {folder.path}; to write the trace after all, run: {_merge(folder, output)}"
    )


def _still_runs(running: list[str], folder: ShardFolder, output: str) -> str:
    named = ", ".join(running[:_MOST_NAMED])
    if len(running) > _MOST_NAMED:
        named += f" and {len(running) - _MOST_NAMED} more"
    what, they, have = (
        ("process", "it records", "it has") if len(running) == 1 else ("processes", "they record", "all have")
    )
    return (
        f"{what} {named} still run{'s' if len(running) == 1 else ''}: what {they} from now on stays in {folder.path}; "
        f"when {have} ended, run: {_merge(folder, output)}"
    )


def _all_there(summary: Summary) -> bool:
    return not (summary.told or summary.dropped or summary.cut_short or summary.is_lower_bound or summary.silent)


def _counted_anew(
    folder: ShardFolder,
    running: set[int],
    exporter: type[Exporter],
    salvaged: dict[int, Salvaged],
    recount: Recount | None,
) -> dict[int, Drawn]:
    """What those processes wrote, by number, that came to no end: more than they had said last."""
    found: dict[int, Drawn] = {}
    if recount is not None:
        images = dict(folder.writers())
        for number in folder.numbers():
            if alive.pid_of(images.get(number, "")) in running or folder.report(number).get("ended"):
                continue
            drawn = recount(parts_of(folder, number, exporter, salvaged.get(number)), folder.suffix)
            if drawn is not None:
                found[number] = drawn
    return found


def _add_up(
    folder: ShardFolder, running: set[int], salvaged: dict[int, Salvaged], anew: dict[int, Drawn] | None = None
) -> Summary:
    summary = Summary()
    summary.device = folder.device
    reports = folder.reports()
    # A process killed at once may have left nothing but its ring.
    shards = [n for n in folder.numbers() if os.path.getsize(folder.shard_path(n)) or n in salvaged]
    summary.processes = len(shards)
    # Started with -I, -E or -S, a process misses the boot and claims its shard when it imports gputrace.
    summary.started = max(len(folder.processes()), len(folder.numbers()))
    _add_cut_short(summary, folder, shards, reports, running)
    anew = anew or {}
    summary.recounted = min(len(anew), summary.cut_short)
    for number, report in reports.items():
        for name in _COUNTS:
            if number not in anew or name not in _DRAWN:
                setattr(summary, name, getattr(summary, name) + _count(report.get(name)))
        summary.worst_uncertainty_ns = max(summary.worst_uncertainty_ns, _count(report.get("worst_uncertainty_ns")))
        told = report.get("told", [])
        summary.told += told if isinstance(told, list) else [str(told)]
        if missed := report.get("missed"):
            summary.missed.append(str(missed))
    for drawn in anew.values():
        for name in _DRAWN:
            setattr(summary, name, getattr(summary, name) + getattr(drawn, name))
    for number, tail in salvaged.items():
        if number not in anew:
            summary.slices += tail.counts.slices
        summary.clamped += tail.counts.clamped
        summary.out_of_order += tail.counts.out_of_order
    summary.told += [f"tracing did not start in process {note}" for note in folder.notes()]
    summary.failed_to_trace = bool(summary.told)
    summary.told += [*_lost(folder, salvaged), *_suspends(folder), *summary.missed]
    summary.told = list(dict.fromkeys(summary.told))  # what a thousand processes say alike is told once
    summary.nested = folder.nested()
    command = folder.metadata().get("command_line")
    summary.command = command if isinstance(command, list) else []
    return summary


def _add_cut_short(
    summary: Summary, folder: ShardFolder, shards: list[int], reports: dict[int, Values], running: set[int]
) -> None:
    """Count the processes that neither run nor came to a clean end."""
    images = {number: f"of {number}" for number in folder.numbers()} | dict(folder.writers())
    failures, rings = folder.failures(), set(folder.rings())
    # A process may take further numbers and leave them empty.
    heard = {images[number] for number in (*shards, *reports) if number in images}
    for number in folder.numbers():
        if alive.pid_of(images[number]) in running or reports.get(number, {}).get("ended"):
            continue
        if number in failures:
            summary.unreported += 1
            summary.told.append(
                f"process {alive.pid_of(images[number])} could write no more: {os.strerror(failures[number])}. What it"
                " did from then on is missing"
            )
        elif number in shards:
            summary.cut_short += 1
            summary.kept += number in rings
        elif images[number] not in heard:
            summary.silent += 1


def _count(value: Value | None) -> int:
    return value if isinstance(value, int) else 0


def _lost(folder: ShardFolder, salvaged: dict[int, Salvaged]) -> list[str]:
    edges = sum(tail.lost for tail in salvaged.values())
    if not edges:
        return []
    return [
        f"the trace lacks the last {edges} begins and ends before a process was killed: the format {folder.suffix}"
        " cannot go on behind what it wrote (its exporter has no `resume`); record as .pftrace to have them"
    ]


def _suspends(folder: ShardFolder) -> list[str]:
    offsets = [snapshot.boottime_ns - snapshot.monotonic_ns for snapshot in folder.snapshots()]
    asleep_ns = offsets[-1] - folder.recording.boottime_offset_ns if offsets else 0
    if abs(asleep_ns) <= _SUSPEND_NS:
        return []
    return [f"the machine was suspended for {asleep_ns / 1e9:.1f} s meanwhile: the trace does not show that time"]


def _ring_bytes(max_size: int | str) -> int:
    try:
        return size_in_bytes(max_size)
    except UsageError as error:
        raise UsageError(f"max size (--max-size, max_size): {error}") from None


def _named_for(output: str, rank: ranks.Rank | None) -> tuple[str, str]:
    """The output with its %r, %h and %p filled in, and a rank's own name where all would write the same file."""
    if rank is None or "%r" in output or "%p" in output:
        return ranks.expand(output, rank), ""
    named = ranks.with_rank(ranks.expand(output, rank), rank)
    return named, (
        f"rank {rank.rank} writes {named}, as every rank was given -o {output}; "
        "name it yourself with %r (rank), %h (host) or %p (pid)"
    )


def _is_foreign_link(path: str) -> bool:
    """Would following a link lead where another user wants? As Linux asks of itself (fs.protected_symlinks)."""
    try:
        link, folder = os.lstat(path), os.stat(os.path.dirname(path) or ".")
    except OSError:
        return False
    shared = folder.st_mode & stat.S_ISVTX and folder.st_mode & stat.S_IWOTH
    return bool(stat.S_ISLNK(link.st_mode) and shared and link.st_uid not in (os.geteuid(), folder.st_uid))


def checked_output(output: str) -> str:
    """The output's absolute path, links followed. Raises `OutputError` if a trace cannot be put there."""
    try:
        path = os.path.realpath(output)
    except FileNotFoundError:
        raise OutputError(f"cannot write {output}: the current folder was removed; give -o a whole path") from None
    if _is_foreign_link(output):
        raise OutputError(f"cannot write {output}: it is another user's link, in a folder that everybody may write to")
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


def _clocks_and_pids() -> dict[str, str]:
    """What tells this boot's clocks, and these namespaces' clocks and pids, from those of others. Linux."""
    found = {}
    with contextlib.suppress(OSError), open("/proc/sys/kernel/random/boot_id") as file:
        found["boot_id"] = file.read().strip()
    with contextlib.suppress(OSError):
        found["pid_namespace"] = os.readlink("/proc/self/ns/pid")
    with contextlib.suppress(OSError):  # a container may have clocks of its own
        found["time_namespace"] = os.readlink("/proc/self/ns/time")
    return found


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
        **_clocks_and_pids(),
        **(rank.facts() if (rank := ranks.identity()) else {}),
        "command_line": command,
        "git_commit": commit,
        "device": device,
        "device_reason": device_reason,
        "start_boottime_ns": now.boottime_ns,
        "start_monotonic_ns": now.monotonic_ns,
        "start_realtime_ns": now.realtime_ns,
    }
