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
from gputrace.counts import Counts
from gputrace.errors import OutputError, UsageError
from gputrace.masking import mask
from gputrace.model import Recording
from gputrace.record import alive, formats, gitcommit
from gputrace.record.join import join, remove
from gputrace.record.mended import mend_all
from gputrace.record.salvage import Salvaged, salvage_all
from gputrace.record.sizes import size_in_bytes
from gputrace.record.tally import Summary, add_up, counted_anew
from gputrace.shards import CLOCKS, LAUNCHER, RECORDING_FILES, ShardFolder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from gputrace.model import Exporter
    from gputrace.record.formats import Format
    from gputrace.record.join import Progress
    from gputrace.record.mended import Mend
    from gputrace.record.tally import Drawn, Recount
    from gputrace.textfiles import Value

# How long a process may outlive the command before it counts as one that still runs.
_GRACE_S = 1.0

_MOST_NAMED = 4


class Session:
    """A recording under way: where its shards go, and what they will become.

    ``output`` is absolute. ``device`` is the kind chosen, ``device_reason`` one line that says why. ``renamed`` says
    why the output is not named as it was asked for; "" if it is. ``goal`` is the output's name as it was asked for, its
    %r, %h and %p filled in.
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
        self.goal = ""

    def take_snapshot(self) -> None:
        """Read the host clocks and keep the reading. Never raises: a full disk must not end a command early."""
        with contextlib.suppress(OSError):
            self.folder.add_snapshot(hostclock.snapshot())

    def how_to_recover(self) -> str:
        """What to tell someone whose shards were not joined."""
        return _how_to_recover(self.folder, self.output)


def start_recording(
    output: str,
    device: str = "auto",
    command: Sequence[str] | None = None,
    *,
    unmasked: bool = False,
    max_size: int | str | None = None,
    instruments: Sequence[str] = (),
    options: Mapping[str, Value] | None = None,
    folder: str = "",
    before_folder: Callable[[], object] = lambda: None,
) -> Session:
    """Make sure the trace can be written, choose the device, and make the shard folder, hidden beside the output.

    ``command`` is what is recorded, for the trace's metadata: this process if None. Its secrets and those of every
    process's command line are masked, unless ``unmasked``. ``max_size``: see `gputrace.trace`.
    ``instruments``: as `gputrace.instrument.registry.choose` returns them; ``options``: see
    `gputrace.shards.ShardFolder`. ``folder`` is where the trace is put if ``output`` names a place elsewhere, to which
    the caller brings it then. ``before_folder()`` is called right before there is something that a kill would leave.
    Raises `UsageError` (unknown suffix or device, no size), `OutputError` (the output cannot
    be written), `NoDriver` (``device`` is "cuda" and there is none). Nothing is left behind then.
    """
    from gputrace import devices

    rank = ranks.identity()
    goal, renamed = _named_for(output, rank)
    format = formats.of_output(mask([goal])[0] if folder else goal)
    output = checked_output(os.path.join(folder, os.path.basename(goal)) if folder else goal)
    exporter = formats.load(format.exporter)
    options = {**(options or {}), CLOCKS: hostclock.namespace()}
    if "last_ns" in options:
        options["output"] = output
    kind, reason = devices.choose(device, initialise=command is not None)
    ring_bytes = 0 if max_size is None else _ring_bytes(max_size)

    recording = Recording(os.urandom(16).hex(), hostclock.now_ns(), hostclock.boottime_offset_ns())
    before_folder()
    path = _make_folder(output, recording.id)
    try:
        first = rank.first_number if rank else 0
        shards = ShardFolder.create(
            path, recording, format.suffix, format.exporter, kind, first, unmasked, ring_bytes, instruments, options
        )
        session = Session(output, format, exporter, shards, reason)
        session.renamed, session.goal = mask([renamed])[0] if folder else renamed, goal
        line = list(sys.orig_argv if command is None else command)
        shards.write_metadata(_facts(line if unmasked else mask(line), kind, reason))
        shards.add_snapshot(hostclock.snapshot())
        shards.add_writer(LAUNCHER)
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
    lost = alive.wait_for_writers(session.folder, _GRACE_S)
    session.take_snapshot()
    summary = _finish(session.folder, session.output, session.format, session.exporter, progress, recount)
    summary.told += [
        f"process {named} was started as the command ended, and is not in the trace: it was over before its first line"
        for named in lost
    ]
    return summary


def recover(
    path: str,
    output: str,
    progress: Progress | None = None,
    recount: Recount | None = None,
    mend: Mend | None = None,
) -> Summary:
    """Finish the recording whose shard folder is ``path``, left by a launcher that died or could not write.

    ``recount``: see `finish_recording`. ``mend`` finds what is good of a damaged shard; without it, one is taken up to
    its end, or to where its format says. Raises `UsageError` if the output's suffix is another than the recording's,
    `OutputError` if the folder holds no recording or the trace cannot be written.
    """
    folder = _opened(path)
    format = formats.of_output(output)
    if format.suffix != folder.suffix:
        raise UsageError(
            f"this recording is in the format {folder.suffix} and cannot become {output}: "
            f"name the output {folder.suffix} or {folder.suffix}.gz"
        )
    exporter = formats.load(folder.exporter)
    return _finish(folder, checked_output(output), format, exporter, progress, recount, mend, again=True)


def dump_recording(session: Session, number: int, until_ns: int) -> tuple[str, int]:
    """Write what all processes keep of the last seconds before ``until_ns``, as dump ``number``, while they go on.

    Returns where to, and how many slices that is. Raises `OutputError`.
    """
    from gputrace.record.kept import write_dump

    folder, gzip = session.folder, session.format.gzip
    output = folder.dump_output(number)
    try:
        metadata = folder.metadata() | _numbers(folder)
        running = alive.writers(folder)
        drawn = write_dump(folder, output, session.exporter, until_ns, running, gzip=gzip, metadata=metadata)
    except Exception as error:  # a third party's exporter may raise anything
        what = error.strerror if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
        raise OutputError(f"cannot write {output}: {what}") from error
    return output, drawn.slices


def gather(path: str, output: str, recount: Recount | None = None, mend: Mend | None = None) -> Summary:
    """Write what the shards in folder ``path`` hold so far to ``output``, and leave the folder as it is.

    ``recount``: see `finish_recording`; ``mend``: see `recover`. Raises `OutputError` if the folder holds no
    recording, or ``output`` cannot be
    written.
    """
    folder = _opened(path)
    exporter = formats.load(folder.exporter)
    running = alive.writers(folder)
    try:
        with _drawn_beside(folder, output):
            salvaged, anew = _drawn_now(folder, exporter, running, recount, mend)
            summary = add_up(folder, running, salvaged, anew)
            metadata = folder.metadata() | summary.counts() | _numbers(folder)
            size = join(folder, output, exporter, gzip=False, metadata=metadata, salvaged=salvaged)
    except OSError as error:
        raise OutputError(f"cannot write {output}: {error.strerror}") from error
    if not size:
        raise OutputError(". ".join([f"{path} holds no shard with anything in it", *summary.told]))
    return summary


def is_shard_folder(path: str) -> bool:
    """Is this the folder of a recording?"""
    return any(os.path.isfile(os.path.join(path, name)) for name in RECORDING_FILES)


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
    mend: Mend | None = None,
    *,
    again: bool = False,
) -> Summary:
    """``again``: by a merge, so that where it fails another one fails alike."""
    summary = None
    try:
        # Before the shards are read: what a process wrote that has ended by now is all there.
        running = alive.writers(folder)
        with _drawn_beside(folder, output):
            salvaged, anew = _drawn_now(folder, exporter, running, recount, mend)
            summary = add_up(folder, running, salvaged, anew)
            metadata = folder.metadata() | summary.counts() | _numbers(folder)
            gzip = format.gzip
            size = join(folder, output, exporter, gzip=gzip, metadata=metadata, salvaged=salvaged, progress=progress)
    except Exception as error:  # a third party's exporter may raise anything
        what = error.strerror if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
        if summary is None:  # not even what killed processes left could be drawn, as where the disk is full
            with contextlib.suppress(Exception):
                summary = add_up(folder, set(), {})
        helps = isinstance(error, OSError) or not again
        then = _how_to_recover(folder, output) if helps else f"What was recorded stays in {folder.path}"
        parts = [f"cannot write {output}: {what}", *(summary.told if summary else []), then]
        if summary and _all_there(summary):
            parts.insert(1, "Nothing recorded is lost")
        raise OutputError(". ".join(parts)) from error
    if size:
        summary.path, summary.size = output, size
    elif "last_ns" in folder.options and any(report.get("slices") for report in folder.reports().values()):
        summary.missed.append("what was recorded was over before the last seconds: a longer one (--last, last=) has it")
        summary.told.append(summary.missed[-1])
    # Asked again: a process that ran may have started another, and some end while the trace is written.
    running |= alive.writers(folder)
    running |= {pid for pid in alive.starting(folder).values() if alive.is_python(pid)}
    if not running and (not summary.started or "writers" in folder.damage):
        # On its way to its first line, a Python process has no shard yet. This looks at every process there is.
        heirs = alive.heirs(folder)
        running |= {pid for pid in heirs if alive.is_python(pid)}
        summary.heirs = [alive.name(pid) for pid in sorted(heirs - running)]
    if running:
        summary.running = [alive.name(pid) for pid in sorted(running)]
        summary.folder = folder.path
        summary.told.append(_still_runs(summary.running, folder, output))
    elif again and summary.damaged:
        summary.folder = folder.path
        summary.told.append(f"{folder.path} stays, as not all of it could be read: remove it if nothing can mend it")
    else:
        remove(folder.path)
    return summary


@contextlib.contextmanager
def _drawn_beside(folder: ShardFolder, output: str) -> Iterator[None]:
    """Draw what is drawn of the folder's files beside the output, if that lies elsewhere: their disk may be full."""
    beside = os.path.dirname(output)
    if beside == os.path.dirname(folder.path):
        yield
        return
    from tempfile import TemporaryDirectory

    with TemporaryDirectory(prefix=".gputrace-merge-", dir=beside, ignore_cleanup_errors=True) as folder.drawn_in:
        try:
            yield
        finally:
            folder.drawn_in = folder.path


def _drawn_now(
    folder: ShardFolder, exporter: type[Exporter], running: set[int], recount: Recount | None, mend: Mend | None
) -> tuple[dict[int, Salvaged], Mapping[int, Drawn]]:
    """Draw what no process has drawn itself: what killed ones left, or what all keep of their last seconds; and mend
    what is damaged. Returns what came of it, and what was counted, by shard number.
    """
    if folder.options.get("last_ns"):
        from gputrace.record.kept import draw_shards

        drawn = draw_shards(folder, exporter, running)
        paths = {number: folder.drawn_path(number) for number in drawn}
        found = {number: Salvaged(os.path.getsize(path), 0, Counts(), path=path) for number, path in paths.items()}
        return {number: shard for number, shard in found.items() if shard.length}, drawn
    salvaged = salvage_all(folder, exporter, running)
    if mend is not None:
        mend_all(folder, exporter, salvaged, mend)
    return salvaged, counted_anew(folder, running, exporter, salvaged, recount)


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
        f"rank {rank.rank} writes {named}, as every rank was given the output {output}; "
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
    if "://" in output:
        from gputrace.remote import is_url, shown

        if is_url(output):
            raise OutputError(
                f"cannot write {shown(output)}: a program records itself to a file of this machine. Name a path, and "
                "copy it there when the recording is over; or let gputrace record -o write it, which takes URLs"
            )
    try:
        path = os.path.realpath(output)
    except FileNotFoundError:
        raise OutputError(f"cannot write {output}: the current folder was removed; give a whole path") from None
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
        os.chmod(path, 0o700)  # a umask may have taken what we need ourselves
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
    if clocks := hostclock.namespace():
        found["time_namespace"] = clocks
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
