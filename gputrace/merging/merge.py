"""One trace of many: surveys them, plans, and writes. Memory is flat whatever their sizes.

It knows no command line: what there is to tell comes back in an `Outcome`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable
from typing import TYPE_CHECKING

import gputrace
from gputrace.errors import InputError, OutputError, UsageError
from gputrace.merging import inputs, plan
from gputrace.merging.once import held_by, once
from gputrace.merging.survey import Survey, survey
from gputrace.merging.writing import LineWriter, Outcome, PacketWriter
from gputrace.reading.drawn import drawn
from gputrace.reading.mending import mend
from gputrace.reading.stream import Limits
from gputrace.record import formats
from gputrace.record.recording import checked_output, gather
from gputrace.record.replace import replacing
from gputrace.remote import here

if TYPE_CHECKING:
    from gputrace.merging.plan import Clock, Plan

    Progress = Callable[[int, int], None]


class Options:
    """How to merge. ``align`` is "clock" or "collectives"; ``collectives`` are patterns of their names; ``clocks`` says
    of files, by path, what clock their times are of. ``goal`` is where the caller brings the output then,
    and is no input.
    """

    def __init__(
        self,
        *,
        align: str = "clock",
        collectives: tuple[str, ...] = (),
        clocks: dict[str, Clock] | None = None,
        limits: Limits | None = None,
        goal: str = "",
    ) -> None:
        self.align = align
        self.collectives = collectives
        self.clocks = clocks or {}
        self.limits = limits or Limits()
        self.goal = goal


def merge(
    arguments: tuple[str, ...], output: str, options: Options | None = None, progress: Progress | None = None
) -> Outcome:
    """Write the traces that ``arguments`` name to ``output``. Those that lie elsewhere are all fetched first.

    Raises `UsageError` and `OutputError`.
    """
    options = options or Options()
    format = formats.of_output(output)
    if format.suffix not in (".pftrace", ".json"):
        raise UsageError(f"cannot merge into {output}: name it .pftrace or .json, each also with .gz behind it")
    output = checked_output(output)
    outcome = Outcome()
    found = inputs.find(arguments, options.goal or output)
    clocks = inputs.by_input("--clock", options.clocks, arguments, found)
    outcome.problems += [*found.missing, *found.again]
    folder = os.path.dirname(output)
    scratch, stack = "", contextlib.ExitStack()
    try:
        gathered = []
        if found.shard_folders:
            scratch = tempfile.mkdtemp(prefix=".gputrace-merge-", dir=folder)
            gathered = _gathered(found.shard_folders, scratch, outcome)
        surveys = _survey_all([*_fetched(found.files, stack, outcome), *gathered], gathered, options, outcome)
        made = plan.make(surveys, clocks)
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
        stack.close()
        if scratch:
            shutil.rmtree(scratch, ignore_errors=True)
    return outcome


def _fetched(files: list[str], stack: contextlib.ExitStack, outcome: Outcome) -> list[str]:
    """The files as they can be opened until ``stack`` is closed. A merge reads each of them several times."""
    paths = []
    for path in files:
        try:
            paths.append(stack.enter_context(here(path)))
        except InputError as error:
            outcome.problems.append(str(error))
    return paths


def _gathered(folders: list[str], scratch: str, outcome: Outcome) -> list[str]:
    """The shards of each folder as a trace of their own."""
    paths = []
    for number, folder in enumerate(folders):
        path = os.path.join(scratch, f"{number}-{os.path.basename(os.path.abspath(folder)).lstrip('.')}")
        try:
            summary = gather(folder, path, drawn, mend)
            (outcome.problems if summary.damaged else outcome.notes).extend(summary.told)
            paths.append(path)
        except (OutputError, UsageError) as error:
            outcome.problems.append(str(error))
    return paths


def _survey_all(paths: list[str], gathered: list[str], options: Options, outcome: Outcome) -> list[Survey]:
    surveys: list[Survey] = []
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
        writer = PacketWriter if format.suffix == ".pftrace" else LineWriter
        writer(made, exporter, id, write, options.limits, os.path.dirname(output), step).run(
            _metadata(made, outcome), outcome
        )
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
