"""One trace of many: surveys them, plans, and writes. Memory is flat whatever their sizes.

It knows no command line: what there is to tell comes back in an `Outcome`.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import gputrace
from gputrace.errors import InputError, OutputError, UsageError
from gputrace.merging import inputs, plan, rewrite
from gputrace.merging.events import Mover, Pids, text, us
from gputrace.merging.once import held_by, once
from gputrace.merging.survey import Survey, survey
from gputrace.merging.transfer import Transfer
from gputrace.model import Process, Recording
from gputrace.reading import recognise
from gputrace.reading.chrome import ChromeReader
from gputrace.reading.stream import ByteStream, Limits
from gputrace.reading.trackevents import TrackEvents
from gputrace.record import formats
from gputrace.record.recording import checked_output, gather
from gputrace.record.replace import replacing

if TYPE_CHECKING:
    from gputrace.merging.collectives import Alignment
    from gputrace.merging.plan import Clock, Plan, Task
    from gputrace.model import Exporter
    from gputrace.record.replace import Write

    Progress = Callable[[int, int], None]

#: Times of a JSON trace count from somewhat before the first that is known.
_MARGIN_NS = 1_000_000_000
_FLUSH_EVENTS = 1024


class Options:
    """How to merge. ``align`` is "clock" or "collectives"; ``collectives`` are patterns of their names; ``clocks`` says
    of files, by path, what clock their times are of.
    """

    def __init__(
        self,
        *,
        align: str = "clock",
        collectives: tuple[str, ...] = (),
        clocks: dict[str, Clock] | None = None,
        limits: Limits | None = None,
    ) -> None:
        self.align = align
        self.collectives = collectives
        self.clocks = clocks or {}
        self.limits = limits or Limits()


class Outcome:
    """``problems``: what of the inputs is not in the trace as it should be, by name. ``notes``: what else to know.

    ``path`` is "" where nothing was written. ``merged`` are the inputs that are in it; ``hosts`` how many they are of.
    """

    def __init__(self) -> None:
        self.path = ""
        self.size = 0
        self.merged: list[str] = []
        self.hosts = 0
        self.problems: list[str] = []
        self.notes: list[str] = []
        self.alignments: list[Alignment] = []


def merge(
    arguments: tuple[str, ...], output: str, options: Options | None = None, progress: Progress | None = None
) -> Outcome:
    """Write the traces that ``arguments`` name to ``output``. Raises `UsageError` and `OutputError`."""
    options = options or Options()
    format = formats.of_output(output)
    if format.suffix not in (".pftrace", ".json"):
        raise UsageError(f"cannot merge into {output}: name it .pftrace or .json, each also with .gz behind it")
    output = checked_output(output)
    outcome = Outcome()
    found = inputs.find(arguments, output)
    outcome.problems += found.missing
    folder = os.path.dirname(output)
    scratch = ""
    try:
        gathered = []
        if found.shard_folders:
            scratch = tempfile.mkdtemp(prefix=".gputrace-merge-", dir=folder)
            gathered = _gathered(found.shard_folders, scratch, outcome)
        surveys = _survey_all(found.files, gathered, options, outcome)
        made = plan.make(surveys, options.clocks)
        outcome.problems += made.refused
        outcome.notes += made.notes
        outcome.hosts = len({task.host.index for task in made.tasks})
        if made.tasks and options.align == "collectives":
            from gputrace.merging.collectives import align

            outcome.alignments = align(made, options.collectives, options.limits)
            outcome.notes += [each.told() for each in outcome.alignments if each.fit is not None]
            if not outcome.alignments:
                outcome.notes.append("nothing to align: all traces are of one host's clock, which is exact already")
            outcome.problems += [told for alignment in outcome.alignments for told in alignment.problems()]
        if made.tasks:
            _write(made, output, format, options, outcome, progress)
    except OSError as error:
        raise OutputError(f"cannot write {output}: {error.strerror or error}") from error
    finally:
        if scratch:
            shutil.rmtree(scratch, ignore_errors=True)
    return outcome


def _gathered(folders: list[str], scratch: str, outcome: Outcome) -> list[str]:
    """The shards of each folder as a trace of their own."""
    paths = []
    for number, folder in enumerate(folders):
        path = os.path.join(scratch, f"{number}-{os.path.basename(os.path.abspath(folder)).lstrip('.')}")
        try:
            outcome.notes += gather(folder, path)
            paths.append(path)
        except (OutputError, UsageError) as error:
            outcome.problems.append(str(error))
    return paths


def _survey_all(files: list[str], gathered: list[str], options: Options, outcome: Outcome) -> list[Survey]:
    surveys: list[Survey] = []
    paths = [*files, *gathered]
    again = inputs.repeated(paths)
    for path in paths:
        if path in again:
            outcome.problems.append(f"{path}: holds the same bytes as {again[path]}, so it is merged once")
            continue
        try:
            found = survey(path, options.limits)
        except InputError as error:
            outcome.problems.append(str(error))
            continue
        found.gathered = path in gathered
        outcome.problems += [f"{path}: {note}" for note in found.notes]
        if version := _other_version(found):
            outcome.problems.append(f"{path}: {version}")
        surveys.append(found)
    return once(surveys, outcome.problems)


def _other_version(found: Survey) -> str:
    wrote, ours = str(found.facts.get("gputrace_version", "")), gputrace.__version__
    if not wrote or wrote.split(".")[:2] == ours.split(".")[:2]:
        return ""
    return f"was written by gputrace {wrote} and is read by {ours}: what it says in new ways is taken over unread"


# --- writing ----------------------------------------------------------------------------------------------------------


def _write(
    made: Plan, output: str, format: formats.Format, options: Options, outcome: Outcome, progress: Progress | None
) -> None:
    exporter = formats.load(format.exporter)
    id = os.urandom(16).hex()
    done = 0
    total = sum(task.survey.size for task in made.tasks)

    def step(size: int) -> None:
        nonlocal done
        done = min(done + size, total)
        if progress:
            progress(done, total)

    with replacing(output, f"{id[:12]}.merged", gzip=format.gzip) as write:
        writer = _Packets if format.suffix == ".pftrace" else _Lines
        writer(made, exporter, id, write, options, os.path.dirname(output), step).run(_metadata(made, outcome), outcome)
        write(exporter.footer())
    outcome.path, outcome.size = output, os.path.getsize(output)
    outcome.merged = [task.survey.path for task in made.tasks]


def _metadata(made: Plan, outcome: Outcome) -> dict[str, object]:
    host = next((task.host for task in made.tasks if task.keeps_clocks), made.tasks[0].host)
    values: dict[str, object] = {
        "gputrace_version": gputrace.__version__,
        "merged_from": [task.survey.name for task in made.tasks],
        **held_by(task.survey for task in made.tasks),
        "timeline": f"{'REALTIME' if made.realtime else 'BOOTTIME'} of {host.label}",
        "hostname": host.name,
        "boot_id": host.boot,
        "pid_namespace": host.namespace,
        "hosts": made.next_index,
    }
    for task in made.tasks:
        if task.host.index:
            values[f"moved.{task.survey.name}"] = (
                f"{task.to_timeline.offset_ns / 1e9:+.9f} s, pids of host {task.host.index}"
            )
    for alignment in outcome.alignments:
        values[f"aligned.{alignment.name}"] = alignment.told()
    return values


class _Writer:
    """What writing either format has in common."""

    def __init__(
        self,
        made: Plan,
        exporter: type[Exporter],
        id: str,
        write: Write,
        options: Options,
        folder: str,
        step: Callable[[int], None],
    ) -> None:
        self.made = made
        self.exporter = exporter
        self.id = id
        self.write = write
        self.options = options
        self.folder = folder
        self.step = step
        self.pids = Pids()

    def ours_last(self) -> list[tuple[int, Task]]:
        """The tasks, numbered. Where two name one process, the engine goes by the last, and ours tells its rank."""
        return sorted(enumerate(self.made.tasks), key=lambda item: item[1].survey.tool == "gputrace")

    def events(self, index: int, task: Task, outcome: Outcome) -> Iterator[tuple[dict[str, Any], int]]:
        """A task's events, moved, each with its time on the timeline."""
        mover = Mover(task, index, self.pids)
        with ByteStream(task.survey.path, self.options.limits) as stream:
            reader = ChromeReader(stream) if task.survey.kind == recognise.CHROME else TrackEvents(stream)
            before = 0
            for batch in reader.batches():
                for event in batch:
                    ns = mover.move(event)
                    if ns is not None:
                        yield event, ns
                self.step(stream.taken - before)
                before = stream.taken
        unplaced = mover.unplaced
        if isinstance(reader, TrackEvents):
            unplaced += reader.undated
            if reader.left_out:
                what = ", ".join(f"{number:,} of {kind}" for kind, number in sorted(reader.left_out.items()))
                outcome.problems.append(
                    f"{task.survey.path}: JSON has no word for some of its packets ({what}): .pftrace keeps them"
                )
        if unplaced:
            outcome.problems.append(f"{task.survey.path}: {unplaced:,} events without a readable time are left out")


class _Packets(_Writer):
    """Perfetto's format: packets as they are, events by its exporter."""

    def run(self, metadata: dict[str, object], outcome: Outcome) -> None:
        ours = [t for t in self.made.tasks if t.keeps_clocks and t.survey.tool == "gputrace"]
        snapshots = self.made.snapshots if ours else []
        self.write(self.exporter.header(Recording(self.id, 0, 0), snapshots, metadata))
        for index, task in self.ours_last():
            if task.survey.kind == recognise.PERFETTO:
                if wrong := rewrite.write(task, self.write, self.options.limits, self.step):
                    outcome.problems.append(f"{task.survey.path}: {wrong}")
            else:
                self._transfer(index, task, outcome)

    def _transfer(self, index: int, task: Task, outcome: Outcome) -> None:
        recording = Recording(self.id, 0, 0)
        output = _Unclosed(self.write)

        def open_exporter(pid: int, name: str, order: int | None) -> Exporter:
            number = plan.free_number(self.made)
            process = Process(number, pid, name, [], 0, lambda: plan.free_number(self.made), order)
            return self.exporter(output, recording, process)

        transfer = Transfer(self.folder, open_exporter)
        for event, ns in self.events(index, task, outcome):
            transfer.add(event, ns)
        transfer.write()
        if transfer.left_out:
            what = ", ".join(f"{number:,} of {phase!r}" for phase, number in sorted(transfer.left_out.items()))
            outcome.problems.append(f"{task.survey.path}: some of its events are left out ({what})")
        if transfer.lanes:
            outcome.notes.append(f"{task.survey.path}: {transfer.lanes:,} slices that overlap others lie beside them")
        if transfer.cut:
            outcome.problems.append(f"{task.survey.path}: {transfer.cut:,} ends of slices have no beginning")


class _Unclosed:
    """A shard's file, as an exporter takes it, that goes on into the merged trace."""

    closed = False

    def __init__(self, write: Write) -> None:
        self._write = write

    def write(self, data: bytes) -> int:
        self._write(data)
        return len(data)

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass


class _Lines(_Writer):
    """Chrome's format: an event a line."""

    def run(self, metadata: dict[str, object], outcome: Outcome) -> None:
        base_ns = _base_ns(self.made.tasks)
        recording = Recording(self.id, base_ns, 0)
        self.write(self.exporter.header(recording, self.made.snapshots, metadata))
        early = 0
        for index, task in self.ours_last():
            lines: list[bytes] = []
            for event, ns in self.events(index, task, outcome):
                if event["ph"] != "M":
                    if ns < base_ns:
                        early += 1
                        ns = base_ns
                    event["ts"] = us(ns - base_ns)
                lines.append(text(event))
                if len(lines) >= _FLUSH_EVENTS:
                    self.write(b",\n".join(lines) + b",\n")
                    lines = []
            if lines:
                self.write(b",\n".join(lines) + b",\n")
        if early:
            outcome.problems.append(f"{early:,} events before the first clock reading are drawn at the trace's start")


def _base_ns(tasks: Iterable[Task]) -> int:
    """What a JSON trace's times count from: no event known beforehand is earlier."""
    starts = []
    for task in tasks:
        if task.survey.first_ns is not None:
            starts.append(task.to_timeline(task.survey.first_ns))
        if task.survey.kind == recognise.PERFETTO:
            starts += [task.to_timeline(snapshot.boottime_ns) for snapshot in task.survey.snapshots]
    return min(starts, default=_MARGIN_NS) - _MARGIN_NS
