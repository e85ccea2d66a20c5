"""What a recording came to: its processes' own counts added up, and all that there is to tell of it.

It reads a folder and knows no format: what a process's files draw is counted by whoever does.
"""

from __future__ import annotations

import os

from gputrace.errors import InputError
from gputrace.instrument.registry import CALLS_SHOWN, MODULES_SEEN
from gputrace.record import alive
from gputrace.record.join import parts_of
from gputrace.record.ringfile import dropped
from gputrace.shards import LAUNCHER

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from typing import Protocol

    from gputrace.model import Exporter
    from gputrace.record.salvage import Salvaged
    from gputrace.shards import ShardFolder
    from gputrace.textfiles import Value, Values

    class Drawn(Protocol):
        """What is drawn in a process's files."""

        slices: int
        windows: int
        unfinished: int

    #: Counts that in files, each up to so many bytes, of a format by its suffix; None if it does not know that one.
    #: Raises `InputError`.
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
    "short_calls",
    "clock_violations",
    "unfinished",
    "stopped",
)

# Those that can be counted again in what a process wrote.
_DRAWN = ("slices", "windows", "unfinished")

# A change of BOOTTIME minus MONOTONIC by more than this is a suspend; less is the width of two readings' brackets.
_SUSPEND_NS = 1_000_000


class Summary:
    """What a recording came to: counts are of all its processes, sizes in bytes, times in ns.

    ``path`` is "" where nothing was written, because no process traced anything. ``processes`` counts those whose
    shards hold something, ``started`` the Python processes that could have. Every other number is a lower bound where a
    process did not come to a clean end: ``cut_short`` counts those that were killed, or left by `os._exit` or exec, and
    whose shards hold something, ``kept`` those of them whose every host slice was found in a ring, ``recounted`` those
    whose slices, windows and unfinished ones were counted in the file, ``drops_known`` those that say in a ring what
    they dropped, ``cut_short_windows`` their windows; ``unreported`` those that could write no more,
    as on a full disk, ``unread`` those whose counts are damaged, ``uncounted`` those of whose files a part is missing
    and what is left could not be counted; ``silent`` those that recorded something and were over before any of it was
    written; ``stopped`` those whose tracing failed midway; ``running`` names those that still run, and then the shards
    are kept in ``folder``. ``unbounded`` counts the windows of which nobody said how far off they
    may be; ``worst_uncertainty_ns`` is of the others. ``damaged``: part of what was recorded cannot be read, or is
    gone. ``told`` are messages, the processes' and ours.

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
        self.cut_short_windows = 0
        self.recounted = 0
        self.drops_known = 0
        self.unreported = 0
        self.unread = 0
        self.uncounted = 0
        self.unbounded = 0
        self.damaged = False
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
        self.short_calls = 0
        self.clock_violations = 0
        self.unfinished = 0
        self.stopped = 0
        self.worst_uncertainty_ns = 0
        self.told: list[str] = []
        self.missed: list[str] = []

    def counts(self) -> dict[str, int]:
        """The counts by name, for the trace's own metadata. One that could write no more has stopped, too."""
        counts = {name: getattr(self, name) for name in (*_COUNTS, "silent")}
        return counts | {"stopped": self.stopped + self.unreported}

    def __repr__(self) -> str:
        """What is not 0 or empty."""
        return f"Summary({', '.join(f'{name}={value!r}' for name, value in vars(self).items() if value)})"

    @property
    def is_lower_bound(self) -> bool:
        """Did a process not come to say its last counts, and could not be counted for?"""
        lost = self.silent or self.stopped or self.unreported or self.uncounted
        return bool(self.cut_short > self.recounted or lost or self.running)


class Images:
    """The process images of a folder by their numbers, and what is missing of them.

    ``reports`` are what they said last. ``shards`` are the numbers whose shards hold something, ``damaged`` those whose
    shards are shorter than they were, or gone, ``unread`` those whose reports are damaged.
    """

    def __init__(self, folder: ShardFolder) -> None:
        self.writers = {number: image for number, image in folder.writers() if number != LAUNCHER}
        self.reports = folder.reports()
        self.sizes = {number: os.path.getsize(folder.shard_path(number)) for number in folder.numbers()}
        self.shards = [number for number, size in self.sizes.items() if size]
        self.unread = {number for number in self.reports if f"{number}.report" in folder.damage}
        if (unknown := len(self.sizes.keys() - self.writers.keys())) and "writers" not in folder.damage:
            folder.damage["writers"] = f"does not say who wrote {unknown} of {len(self.sizes)} shards"
        self.damaged: set[int] = set()
        self.damaged |= {number for number in self.sizes if f"{number}.shard" in folder.damage}
        for number in sorted({*self.sizes, *self.writers, *self.reports}):
            size, wrote = self.sizes.get(number), _count(self.reports.get(number, {}).get("shard_bytes"))
            if size is None:
                self._lacks(folder, number, "is gone")
            elif size < wrote:
                left = f"holds {size:,} of the {wrote:,} bytes that were in it"
                self._lacks(folder, number, left if size else "is empty")

    def ended(self, number: int) -> bool:
        """Did it come to its end, and say so?"""
        return bool(self.reports.get(number, {}).get("ended"))

    def pid(self, number: int) -> int:
        """0 if it is not known."""
        return alive.pid_of(self.writers.get(number, "")) or _count(self.reports.get(number, {}).get("pid"))

    def _lacks(self, folder: ShardFolder, number: int, what: str) -> None:
        self.damaged.add(number)
        folder.damage.setdefault(f"{number}.shard", what)


def counted_anew(
    folder: ShardFolder,
    running: set[int],
    exporter: type[Exporter],
    salvaged: dict[int, Salvaged],
    recount: Recount | None,
) -> dict[int, Drawn]:
    """What those processes wrote, by number, that came to no end, or not all of which is there: other than they said
    last.
    """
    found: dict[int, Drawn] = {}
    if recount is not None:
        images = Images(folder)
        for number in images.sizes:
            if images.pid(number) in running or (images.ended(number) and number not in images.damaged):
                continue
            try:
                drawn = recount(parts_of(folder, number, exporter, salvaged.get(number)), folder.suffix)
            except InputError:  # gone meanwhile, or no longer ours to read; whoever joins it says so
                continue
            if drawn is not None:
                found[number] = drawn
    return found


def add_up(
    folder: ShardFolder, running: set[int], salvaged: dict[int, Salvaged], anew: Mapping[int, Drawn] | None = None
) -> Summary:
    """The summary of a recording. ``running`` are the pids of processes that go on, ``anew`` is of `counted_anew`."""
    summary = Summary()
    summary.device = folder.device
    images = Images(folder)
    # A process killed at once may have left nothing but its ring.
    images.shards = [number for number in images.sizes if images.sizes[number] or number in salvaged]
    summary.processes = len(images.shards)
    # Started with -I, -E or -S, a process misses the boot and claims its shard when it imports gputrace.
    summary.started = max(len(folder.processes()), len(images.sizes))
    anew = anew or {}
    _add_cut_short(summary, folder, images, running, anew)
    summary.recounted = min(len(anew.keys() - images.unread - images.damaged), summary.cut_short)
    summary.uncounted = len((images.damaged & images.sizes.keys() | images.unread) - anew.keys())
    for number, report in images.reports.items():
        for name in _COUNTS:
            if name not in _DRAWN or number not in anew.keys() | images.damaged:
                setattr(summary, name, getattr(summary, name) + _count(report.get(name)))
        summary.worst_uncertainty_ns = max(summary.worst_uncertainty_ns, _count(report.get("worst_uncertainty_ns")))
        told = report.get("told", [])
        summary.told += told if isinstance(told, list) else [str(told)]
        if missed := report.get("missed"):
            summary.missed.append(str(missed))
    for drawn in anew.values():
        for name in _DRAWN:
            setattr(summary, name, getattr(summary, name) + getattr(drawn, name))
    summary.unbounded = _unbounded(images, anew)
    for number, tail in salvaged.items():
        if number not in anew:
            summary.slices += tail.counts.slices
        summary.clamped += tail.counts.clamped
        summary.out_of_order += tail.counts.out_of_order
    summary.told += [f"tracing did not start in process {note}" for note in folder.notes()]
    summary.failed_to_trace = bool(summary.told)
    summary.told += [*_lost(folder, salvaged), *_suspends(folder), *summary.missed, *_no_calls(folder, images)]
    summary.nested = folder.nested()
    command = folder.metadata().get("command_line")
    summary.command = command if isinstance(command, list) else []
    summary.damaged = bool(folder.damage)
    summary.told += _damage(folder, images)
    summary.told = list(dict.fromkeys(summary.told))  # what a thousand processes say alike is told once
    return summary


def _unbounded(images: Images, anew: Mapping[int, Drawn]) -> int:
    """Windows of which no process said how far off they may be: those after its last report, if it made one."""
    count = 0
    for number in images.reports.keys() | anew.keys():
        report = images.reports.get(number, {})
        bounded = _count(report.get("windows")) if report.get("worst_uncertainty_ns") else 0
        there = anew[number].windows if number in anew else _count(report.get("windows"))
        count += max(there - bounded, 0) if number in anew or number not in images.damaged else 0
    return count


#: What the damage of a file costs, by its name or its ending.
_COST = {
    "recording": "what its copy says was taken",
    "metadata": "the trace does not say what was recorded, and where",
    "snapshots": "the trace's clocks are told by what is left of it",
    "processes": "how many processes were started is not known",
    "writers": "which processes wrote, and may still run, is known in part",
    "nested": "what was recorded inside this recording is not known",
    "notes": "why a process was not traced may be missing",
    "shard": "what is not there is missing in the trace",
    "report": "what the process counted, such as what it dropped, is not known",
    "ring": "the last that the process did is missing",
    "kept": "what the process did from there on is missing",
}


def _damage(folder: ShardFolder, images: Images) -> Iterator[str]:
    """A line for each file that is not as it was written."""
    for name, what in folder.damage.items():
        (number, *_), ending = name.split("."), name.rpartition(".")[2]
        cost = _COST.get(name) or _COST.get(ending, "")
        pid = images.pid(int(number)) if number.isdecimal() else 0
        yield f"{os.path.basename(folder.path)}/{name}{f' (process {pid})' if pid else ''} {what}: {cost}"


def _no_calls(folder: ShardFolder, images: Images) -> Iterator[str]:
    """A line where calls of Python's functions were asked for, some were made, and none was of those to show."""
    reports = images.reports.values()
    seen: dict[str, None] = {}
    for report in reports:
        modules = report.get(MODULES_SEEN)
        seen |= dict.fromkeys(modules if isinstance(modules, list) else [])
    if not seen or any(report.get(CALLS_SHOWN) for report in reports):
        return
    include = str(folder.options.get("python_include", ""))
    looked_for = f"like {include.replace(',', ' or ')} (--python-include)" if include else "of the program's own"
    yield f"no Python call is shown: none was of a module {looked_for}. Some that were called: {', '.join(seen)}"


def _add_cut_short(
    summary: Summary, folder: ShardFolder, images: Images, running: set[int], anew: Mapping[int, Drawn]
) -> None:
    """Count the processes that neither run nor came to a clean end."""
    rings = {number for number in folder.rings() if f"{number}.ring" not in folder.damage}
    begun = folder.begun()
    if folder.options.get("last_ns"):
        begun |= rings  # what one holds beyond the last pieces is not drawn
        rings = set()
    failures = folder.failures()
    for number in images.sizes:
        if images.pid(number) in running or images.ended(number):
            continue
        if number in failures:
            summary.unreported += 1
            summary.told.append(
                f"process {images.pid(number)} could write no more: {os.strerror(failures[number])}. What it"
                " did from then on is missing"
            )
        elif number in images.unread:
            summary.unread += 1
        elif number in images.damaged:
            pass  # what is left of it says little of how it ended
        elif number in images.shards:
            summary.cut_short += 1
            in_report = _count(images.reports.get(number, {}).get("windows"))
            summary.cut_short_windows += anew[number].windows if number in anew else in_report
            if number in rings:
                summary.kept += 1
                _add_dropped(summary, folder.ring_path(number), images.reports.get(number, {}))
        elif number in begun:
            summary.silent += 1


def _add_dropped(summary: Summary, ring: str, report: Values) -> None:
    """Add what a killed process dropped after its last report: its ring outlives it."""
    counted = dropped(ring)
    if counted is not None:
        summary.drops_known += 1
        summary.dropped += max(sum(counted) - _count(report.get("dropped")), 0)
        summary.no_room += max(counted[0] - _count(report.get("no_room")), 0)


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
