"""One trace to another format: whole, or a part of it.

A whole trace goes over packet by packet or event by event, by what merges traces, in flat memory, with no time moved.
Packets that become JSON, and a part of packets, are written as they are read, where they are even enough for that. What
is left, a part of JSON, a table, uneven packets, is read into columns first.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import gputrace
from gputrace.converting import tabular
from gputrace.converting.course import Course
from gputrace.converting.drawn import Drawing
from gputrace.converting.places import Places
from gputrace.converting.streamed import Streaming
from gputrace.errors import OutputError, UsageError
from gputrace.merging.plan import Host, Plan, Shift, Task
from gputrace.merging.survey import Survey, survey
from gputrace.merging.writing import Outcome, PacketWriter, Unclosed
from gputrace.model import ClockSnapshot, Process, Recording
from gputrace.reading import recognise
from gputrace.reading.stream import Limits
from gputrace.record import formats
from gputrace.record.recording import checked_output
from gputrace.record.replace import replacing
from gputrace.remote import here
from gputrace.table.read import read
from gputrace.table.trace import matcher, tracks_like
from gputrace.table.unmatched import nothing_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gputrace.converting.places import OpenExporter
    from gputrace.model import Exporter
    from gputrace.record.replace import Write
    from gputrace.table.trace import Trace

#: A double of us holds every ns below that; a trace of later times counts from its own beginning.
_MOST_EXACT_NS = 1 << 52
_DRAWN = ("slices", "instants", "counters")
_BELOW_ZERO = "{path}: its times begin at {ns:,} ns; no format knows any below 0, so they count from there"


class _NothingOfIt(Exception):
    """Nothing of a trace is of the part that was asked for: what there is instead."""


class Part:
    """What of a trace is wanted: ``tracks`` and ``names`` are patterns, none of them meaning all; ``start_ns`` and
    ``end_ns`` count from the trace's beginning.
    """

    def __init__(
        self,
        *,
        tracks: tuple[str, ...] = (),
        names: tuple[str, ...] = (),
        start_ns: int | None = None,
        end_ns: int | None = None,
    ) -> None:
        self.tracks = tracks
        self.names = names
        self.start_ns = start_ns
        self.end_ns = end_ns

    def __bool__(self) -> bool:
        return bool(self.tracks or self.names or self.start_ns is not None or self.end_ns is not None)


def convert(
    path: str,
    output: str,
    part: Part | None = None,
    *,
    table: str = "slices",
    limits: Limits | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Outcome:
    """Write the trace in ``path``, or a part of it, to ``output``, in the format that the output's name asks for.

    ``path`` may be a URL, as for `gputrace.read`. ``table`` is which of a trace's tables becomes the rows of a Parquet,
    Arrow or CSV file. Where nothing is of the part nothing is written: the outcome has no path then, and its last
    problem says what there is instead. Raises `InputError` where ``path`` is no trace, `UsageError` for an output of no
    known format, and `OutputError`.
    """
    part, limits = part or Part(), limits or Limits()
    outcome = Outcome()
    suffix = os.path.splitext(output)[1].lower()
    as_table = suffix in tabular.SUFFIXES
    format = None if as_table else _format(output)
    real = checked_output(output)
    if os.path.exists(real) and os.path.exists(path) and os.path.samefile(path, real):
        raise UsageError(f"cannot write {output}: it is the trace that is read; name another file")
    try:
        gzip = format is not None and format.gzip
        with here(path) as path, replacing(real, f"{os.urandom(6).hex()}.converted", gzip=gzip) as write:
            if format is None:
                tables = (table,) if table in _DRAWN else _held(part)
                tabular.write(_part_of(path, part, limits, outcome, tables), table, suffix, write)
            elif not part and not (format.suffix != ".pftrace" and _is_perfetto(path, limits)):
                _pass_on(path, format, write, limits, outcome, real, progress)
            elif _is_perfetto(path, limits) and _stream(Course(path, limits), part, format, write, outcome):
                pass
            else:
                _draw(_part_of(path, part, limits, outcome, _held(part)), format, write, outcome)
    except _NothingOfIt as nothing:
        outcome.problems.append(f"{nothing}: {output} is not written")
        return outcome
    except OSError as error:
        raise OutputError(f"cannot write {output}: {error.strerror or error}") from error
    outcome.path, outcome.size, outcome.merged = real, os.path.getsize(real), [path]
    return outcome


def _format(output: str) -> formats.Format:
    try:
        format = formats.of_output(output)
    except UsageError as error:
        raise UsageError(f"{error}; or {', '.join(tabular.SUFFIXES)} for a table") from error
    return format


def _part_of(path: str, part: Part, limits: Limits, outcome: Outcome, tables: Sequence[str]) -> Trace:
    """Raises `_NothingOfIt` if none of ``tables`` holds anything of the part."""
    trace = read(path, limits=limits)
    outcome.problems += [str(problem) for problem in trace.problems]
    if not part:
        return trace
    origin = trace.start_ns
    found = trace.select(
        tracks=part.tracks or None,
        names=part.names or None,
        start_ns=None if part.start_ns is None else origin + part.start_ns,
        end_ns=None if part.end_ns is None else origin + part.end_ns,
    )
    if not any(len(getattr(found, each)) for each in tables):
        raise _NothingOfIt(nothing_of(trace, part.tracks, part.names, tables))
    return found


def _held(part: Part) -> Sequence[str]:
    """The tables of which one must hold something of a part, or nothing is of it. Names choose no counters: those are
    in every part of their tracks and times, and nobody asked for them by name.
    """
    return _DRAWN[:2] if part.names else _DRAWN


# --- a part -----------------------------------------------------------------------------------------------------------


def _draw(trace: Trace, format: formats.Format, write: Write, outcome: Outcome) -> None:
    first_ns = trace.start_ns
    base_ns = _base_ns(first_ns, format)
    if first_ns < 0:
        outcome.notes.append(_BELOW_ZERO.format(path=trace.path, ns=first_ns))
        trace = _moved(trace, -first_ns)
        base_ns = 0
    with _drawn(trace, base_ns, format, write) as open_exporter:
        drawing = Drawing(trace, open_exporter)
        drawing.write()
    lanes = int((trace.slices.lane > 0).sum())
    if lanes:
        outcome.notes.append(f"{trace.path}: {lanes:,} slices that overlap others lie beside them")
    _tell_lost(drawing.arrows_lost, trace.path, outcome)


def _stream(course: Course, part: Part, format: formats.Format, write: Write, outcome: Outcome) -> bool:
    """The same as it is read; False where that cannot be done."""
    if not course.is_even or course.start_ns < 0:
        return False
    wanted, is_named = tracks_like(course.tracks, part.tracks or "*"), matcher(part.names or "*")
    start_ns, end_ns = (None if ns is None else course.start_ns + ns for ns in (part.start_ns, part.end_ns))
    with _drawn(course, _base_ns(course.start_ns, format), format, write) as open_exporter:
        streaming = Streaming(course, Places(course.tracks, open_exporter), wanted, is_named, start_ns, end_ns)
        streaming.write()
    outcome.problems += [str(problem) for problem in course.problems]
    _tell_lost(streaming.arrows_lost, course.path, outcome)
    if part and not (streaming.edges or (streaming.samples and not part.names)):
        whole = read(course.path, limits=course.limits)  # what there is instead
        raise _NothingOfIt(nothing_of(whole, part.tracks, part.names, _held(part)))
    return True


@contextlib.contextmanager
def _drawn(trace: Trace | Course, base_ns: int, format: formats.Format, write: Write) -> Iterator[OpenExporter]:
    """What stands around the events of a trace: the header, and the footer."""
    exporter = formats.load(format.exporter)
    recording = Recording(os.urandom(16).hex(), base_ns, 0)
    clocks = trace.clocks
    rows = zip(clocks.boottime_ns.tolist(), clocks.monotonic_ns.tolist(), clocks.realtime_ns.tolist(), strict=True)
    write(exporter.header(recording, [ClockSnapshot(*row) for row in rows], _facts(trace.path, trace.metadata)))
    output = Unclosed(write)
    numbers = iter(range(1, 1 << 20))

    def open_exporter(pid: int, name: str, order: int) -> Exporter:
        process = Process(next(numbers), pid, name, [], base_ns, lambda: next(numbers), order)
        return exporter(output, recording, process)

    yield open_exporter
    write(exporter.footer())


def _tell_lost(arrows: int, path: str, outcome: Outcome) -> None:
    if arrows:
        outcome.problems.append(f"{path}: {arrows:,} arrows are left out, as a slice bears two ends")


def _is_perfetto(path: str, limits: Limits) -> bool:
    return recognise.recognise(path, limits) == recognise.PERFETTO


def _moved(trace: Trace, by_ns: int) -> Trace:
    for table in (trace.slices, trace.instants, trace.counters):
        table.ts_ns += by_ns
    return trace


def _base_ns(first_ns: int, format: formats.Format) -> int:
    """What a JSON trace's times are to count from."""
    return max(first_ns, 0) if format.suffix == ".json" and first_ns > _MOST_EXACT_NS else 0


def _facts(path: str, facts: dict[str, object]) -> dict[str, object]:
    plain = {name: value for name, value in facts.items() if not name.startswith("gputrace.end")}
    return {**plain, "gputrace_version": gputrace.__version__, "converted_from": os.path.basename(path)}


# --- a whole trace ----------------------------------------------------------------------------------------------------


def _pass_on(
    path: str,
    format: formats.Format,
    write: Write,
    limits: Limits,
    outcome: Outcome,
    output: str,
    progress: Callable[[int, int], None] | None,
) -> None:
    exporter = formats.load(format.exporter)
    found = survey(path, limits)
    outcome.problems += [f"{path}: {note.replace('merged', 'converted')}" for note in found.notes]
    made, task = _unmoved(found)
    first_ns = found.first_ns or 0
    if first_ns + task.to_timeline.offset_ns < 0:
        outcome.notes.append(_BELOW_ZERO.format(path=path, ns=first_ns))
        task.to_timeline = Shift(-first_ns)
    done = 0

    def step(size: int) -> None:
        nonlocal done
        done = min(done + size, found.size)
        if progress:
            progress(done, found.size)

    id = found.recording if re.fullmatch("[0-9a-f]{32}", found.recording) else os.urandom(16).hex()
    facts = _facts(path, found.facts)
    writer = PacketWriter(made, exporter, id, write, limits, os.path.dirname(output), step)
    if found.kind == recognise.PERFETTO:
        writer.run(facts, outcome)
    else:
        recording = Recording(id, _base_ns(first_ns + task.to_timeline.offset_ns, format), 0)
        write(exporter.header(recording, made.snapshots, facts))
        writer.transfer(0, task, outcome, recording)
    write(exporter.footer())


def _unmoved(found: Survey) -> tuple[Plan, Task]:
    """A plan that leaves every time where it is: those of a JSON trace of ours go back onto BOOTTIME."""
    ours = found.tool == "gputrace"
    host = Host(0, found.hostname, str(found.facts.get("boot_id", "")), str(found.facts.get("pid_namespace", "")))
    task = Task(found, host)
    task.to_timeline = Shift(found.base_ns if ours else 0)
    task.keeps_clocks = ours
    made = Plan()
    made.tasks, made.hosts = [task], [host]
    made.snapshots = found.snapshots if ours else []
    if found.numbers:
        made.ranges.append(found.sequence_range())
    else:
        made.taken = set(found.sequences)
    return made, task
