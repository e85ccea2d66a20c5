"""Writes what a plan holds, in either format: packets as they are where they can be, events one by one.

Memory is flat whatever the sizes. It knows no command line: what there is to tell is added to an `Outcome`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from gputrace.merging import plan, rewrite
from gputrace.merging.events import Mover, Pids, text, us
from gputrace.merging.transfer import Transfer
from gputrace.model import Process, Recording
from gputrace.reading import recognise
from gputrace.reading.chrome import ChromeReader
from gputrace.reading.stream import ByteStream, Limits
from gputrace.reading.trackevents import TrackEvents

if TYPE_CHECKING:
    from gputrace.merging.collectives import Alignment
    from gputrace.merging.plan import Plan, Task
    from gputrace.model import Exporter
    from gputrace.record.replace import Write

#: Times of a JSON trace count from somewhat before the first that is known.
_MARGIN_NS = 1_000_000_000
_FLUSH_EVENTS = 1024


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


class Writer:
    """What writing either format has in common."""

    def __init__(
        self,
        made: Plan,
        exporter: type[Exporter],
        id: str,
        write: Write,
        limits: Limits,
        folder: str,
        step: Callable[[int], None],
    ) -> None:
        self.made = made
        self.exporter = exporter
        self.id = id
        self.write = write
        self.limits = limits
        self.folder = folder
        self.step = step
        self.pids = Pids()

    def ours_last(self) -> list[tuple[int, Task]]:
        """The tasks, numbered. Where two name one process, the engine goes by the last, and ours tells its rank."""
        return sorted(enumerate(self.made.tasks), key=lambda item: item[1].survey.tool == "gputrace")

    def events(self, index: int, task: Task, outcome: Outcome) -> Iterator[tuple[dict[str, Any], int]]:
        """A task's events, moved, each with its time on the timeline."""
        mover = Mover(task, index, self.pids)
        with ByteStream(task.survey.path, self.limits) as stream:
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

    def transfer(self, index: int, task: Task, outcome: Outcome, recording: Recording) -> None:
        """Write a task's events by the exporter, in order of time, those that overlap beside one another."""
        output = Unclosed(self.write)

        def open_exporter(pid: int, name: str, order: int | None) -> Exporter:
            number = plan.free_number(self.made)
            process = Process(number, pid, name, [], 0, lambda: plan.free_number(self.made), order)
            return self.exporter(output, recording, process)

        transfer = Transfer(self.folder, open_exporter)
        for event, ns in self.events(index, task, outcome):
            transfer.add(event, ns)
        transfer.write()
        tell_transferred(transfer, task.survey.path, outcome)


class PacketWriter(Writer):
    """Perfetto's format: packets as they are, events by its exporter."""

    def run(self, metadata: dict[str, object], outcome: Outcome) -> None:
        ours = [t for t in self.made.tasks if t.keeps_clocks and t.survey.tool == "gputrace"]
        snapshots = self.made.snapshots if ours else []
        recording = Recording(self.id, 0, 0)
        self.write(self.exporter.header(recording, snapshots, metadata))
        for index, task in self.ours_last():
            if task.survey.kind == recognise.PERFETTO:
                if wrong := rewrite.write(task, self.write, self.limits, self.step):
                    outcome.problems.append(f"{task.survey.path}: {wrong}")
            else:
                self.transfer(index, task, outcome, recording)


def tell_transferred(transfer: Transfer, path: str, outcome: Outcome) -> None:
    """What of a file's events is not in the trace as it was."""
    if transfer.left_out:
        what = ", ".join(f"{number:,} of {phase!r}" for phase, number in sorted(transfer.left_out.items()))
        outcome.problems.append(f"{path}: some of its events are left out ({what})")
    if transfer.lanes:
        outcome.notes.append(f"{path}: {transfer.lanes:,} slices that overlap others lie beside them")
    if transfer.cut:
        outcome.problems.append(f"{path}: {transfer.cut:,} ends of slices have no beginning")


class Unclosed:
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


class LineWriter(Writer):
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
