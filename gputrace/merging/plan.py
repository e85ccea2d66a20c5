"""What must change in each trace so that all fit on one timeline and in one file.

The timeline is the BOOTTIME of one host, the reference's; where no input knows that clock, it is REALTIME. Traces of
the same boot of a host share its clock already and are not moved. The wall clocks of different hosts tie them to one
another, by the snapshots of REALTIME and BOOTTIME in each.
"""

from __future__ import annotations

import itertools
import statistics
from typing import TYPE_CHECKING

from gputrace.errors import InputError
from gputrace.merging.survey import MONOTONIC, OWN_SEQUENCE, REALTIME, scan_packets
from gputrace.reading import recognise

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gputrace.merging.survey import Survey
    from gputrace.model import ClockSnapshot

#: Of one boot, REALTIME minus BOOTTIME is the same in every trace to some us, unless somebody set the clock.
SAME_BOOT_NS = 1_000_000
#: A change within one trace beyond this is a clock that was set.
STEP_NS = 1_000_000
#: pids and tids are below 2^22 on Linux, so this keeps those of hosts apart; hosts are few enough for 31 bits.
HOST_SHIFT = 22
MOST_HOSTS = 1 << 8


class Shift:
    """A trace's time to the timeline's: ``t + offset_ns``, and ``skew`` more for each ns since ``origin_ns``."""

    __slots__ = ("offset_ns", "origin_ns", "skew")

    def __init__(self, offset_ns: int = 0, skew: float = 0.0, origin_ns: int = 0) -> None:
        self.offset_ns = offset_ns
        self.skew = skew
        self.origin_ns = origin_ns

    def __call__(self, ns: int) -> int:
        moved = ns + self.offset_ns
        return moved + round((ns - self.origin_ns) * self.skew) if self.skew else moved

    def __bool__(self) -> bool:
        return bool(self.offset_ns or self.skew)


class Host:
    """One set of pids and, unless ``clock`` says that it is shared with another set, one boot's clocks.

    ``realtime_offset_ns`` is REALTIME minus BOOTTIME; None where no trace of it says. ``index`` counts from 0.
    """

    def __init__(self, index: int, name: str, boot: str, namespace: str) -> None:
        self.index = index
        self.name = name
        self.boot = boot
        self.namespace = namespace
        self.realtime_offset_ns: int | None = None
        self.monotonic_offset_ns = 0
        self.shift = Shift()

    @property
    def label(self) -> str:
        return self.name or f"host {self.index}"

    def pid(self, id: int) -> int:
        """A pid or tid as the merged trace has it. Ids that no operating system gives stay."""
        return id if not self.index or not 0 < id < 1 << HOST_SHIFT else (self.index << HOST_SHIFT) + id


class Task:
    """One input and what is to be done to it. ``to_timeline`` takes the times in the file, in ns.

    ``sequences`` are the packet sequence ids that change. ``keeps_clocks``: its snapshots are the merged trace's.
    """

    def __init__(self, survey: Survey, host: Host) -> None:
        self.survey = survey
        self.host = host
        self.to_timeline = Shift()
        self.sequences: dict[int, int] = {}
        self.keeps_clocks = False

    @property
    def copies(self) -> bool:
        """Can its packets be taken over as they are, but for the header?"""
        return not (self.sequences or self.to_timeline or self.host.index)


class Clock:
    """What the user says of a file's clock: ``--clock FILE=CLOCK[@OTHER][+OFFSET]``."""

    def __init__(self, clock: str, of: str = "", offset_ns: int = 0) -> None:
        self.clock = clock
        self.of = of
        self.offset_ns = offset_ns


class Plan:
    """Tasks in the order they are to be written; ``hosts``; ``notes``, what to tell."""

    def __init__(self) -> None:
        self.tasks: list[Task] = []
        self.hosts: list[Host] = []
        self.notes: list[str] = []
        self.refused: list[str] = []
        self.snapshots: list[ClockSnapshot] = []
        self.taken: set[int] = set()
        self.ranges: list[tuple[int, int]] = []
        self.realtime = False
        self.merged_hosts = 1  # of the one merged trace among the inputs: their ids keep the indexes they have

    @property
    def next_index(self) -> int:
        """Of the next host to be found."""
        return len(self.hosts) + self.merged_hosts - 1 if self.hosts else 0


def make(surveys: list[Survey], clocks: dict[str, Clock] | None = None) -> Plan:
    """A plan for these inputs. ``clocks`` is by path. What cannot be placed in time is refused, with the reason."""
    plan = Plan()
    said = clocks or {}
    hosts: dict[int, Host] = {}
    surveys = _one_merge_of_hosts(surveys, plan)
    for survey in sorted(surveys, key=lambda s: (not s.snapshots, not s.hostname)):  # those that say most first
        try:
            hosts[id(survey)] = _host_of(survey, plan, said.get(survey.path))
        except InputError as error:
            plan.refused.append(str(error))
    surveys = [survey for survey in surveys if id(survey) in hosts]
    reference = _reference(surveys, hosts)
    for survey in surveys:
        host = hosts[id(survey)]
        task = Task(survey, host)
        try:
            task.to_timeline = _to_timeline(task, reference, plan, said.get(survey.path))
        except InputError as error:
            plan.refused.append(str(error))
            continue
        if survey.pinned and task.to_timeline:
            plan.refused.append(
                f"{survey.path}: it would have to be moved by {task.to_timeline.offset_ns / 1e9:+.6f} s, and cannot "
                f"be, as {survey.pinned}. Only one host's traces of that kind fit in one: merge {host.label}'s apart"
            )
            continue
        plan.tasks.append(task)
    if reference is not None:
        _keep_clocks(plan, reference)
    plan.realtime = reference is None
    _spread_sequences(plan)
    return plan


def _one_merge_of_hosts(surveys: list[Survey], plan: Plan) -> list[Survey]:
    """All but merged traces of several hosts after the first: in two of them one id may be of different hosts."""
    kept = []
    for survey in surveys:
        if survey.hosts > 1 and plan.merged_hosts > 1:
            plan.refused.append(
                f"{survey.path}: it is merged of several hosts, and so is another: their processes could not be told "
                "apart. Merge what the two were made of instead"
            )
            continue
        plan.merged_hosts = max(plan.merged_hosts, survey.hosts)
        kept.append(survey)
    return kept


# --- hosts and time ---------------------------------------------------------------------------------------------------


def realtime_offset_ns(snapshots: Iterable[ClockSnapshot]) -> int:
    """REALTIME minus BOOTTIME, the median of all readings."""
    return round(statistics.median_low([s.realtime_ns - s.boottime_ns for s in snapshots]))


def step_ns(snapshots: list[ClockSnapshot]) -> int:
    """By how much the wall clock was set while the trace was taken, in ns, signed; 0 if it was not."""
    offsets = [s.realtime_ns - s.boottime_ns for s in sorted(snapshots, key=lambda s: s.boottime_ns)]
    steps = [b - a for a, b in itertools.pairwise(offsets)]
    largest = max(steps, key=abs, default=0)
    return largest if abs(largest) > STEP_NS else 0


def _host_of(survey: Survey, plan: Plan, said: Clock | None) -> Host:
    boot, namespace = _clocks_of(survey), str(survey.facts.get("pid_namespace", ""))
    offset = realtime_offset_ns(survey.snapshots) if survey.snapshots else None
    if step := step_ns(survey.snapshots):
        plan.notes.append(
            f"{survey.path}: the wall clock of {survey.hostname or 'its host'} was set by {step / 1e9:+.6f} s while "
            "it was taken, so it says little of when: --align collectives does not go by it"
        )
    if said and said.of:
        for host in plan.hosts:
            if said.of in (host.name, host.label):
                return host
        raise InputError(survey.path, 0, f"--clock names {said.of}, and no trace is of a host of that name")
    if not boot and not survey.hostname and offset is None:
        if len(plan.hosts) == 1:
            return plan.hosts[0]  # it says nothing of its host: the only one there is
    else:
        for host in plan.hosts:
            if _is_same(host, survey.hostname, boot, namespace, offset):
                return host
    host = Host(plan.next_index, survey.hostname, boot, namespace)
    if host.index >= MOST_HOSTS:
        raise InputError(
            survey.path, 0, f"it is of host number {MOST_HOSTS + 1}: more cannot be kept apart in one trace"
        )
    host.realtime_offset_ns = offset
    if survey.snapshots:
        host.monotonic_offset_ns = survey.snapshots[0].boottime_ns - survey.snapshots[0].monotonic_ns
    plan.hosts.append(host)
    return host


def _clocks_of(survey: Survey) -> str:
    """A name for the clocks it was taken by: of one boot and, where that is stated, one time namespace."""
    boot = str(survey.facts.get("boot_id", ""))
    return f"{boot} {survey.facts.get('time_namespace', '')}".rstrip() if boot else ""


def _is_same(host: Host, name: str, boot: str, namespace: str, offset: int | None) -> bool:
    if boot and host.boot:
        return boot == host.boot and namespace == host.namespace
    if name and host.name:
        return name == host.name and _close(host, offset)
    return offset is not None and host.realtime_offset_ns is not None and _close(host, offset)


def _close(host: Host, offset: int | None) -> bool:
    if offset is None or host.realtime_offset_ns is None:
        return True
    return abs(offset - host.realtime_offset_ns) <= SAME_BOOT_NS


def _reference(surveys: list[Survey], hosts: dict[int, Host]) -> Host | None:
    """The host whose BOOTTIME is the timeline: one that cannot be moved, else the first that tells its clocks."""
    candidates = [s for s in surveys if s.snapshots]
    pinned = [s for s in candidates if s.pinned]
    for survey in [*pinned, *candidates]:
        return hosts[id(survey)]
    return None


def _to_timeline(task: Task, reference: Host | None, plan: Plan, said: Clock | None) -> Shift:
    survey, host = task.survey, task.host
    clock = said.clock if said else survey.clock
    added = survey.base_ns + (said.offset_ns if said else 0)
    if not clock:
        tool = survey.tool or "its tool"
        hint = "monotonic" if survey.tool == "viztracer" else "realtime"
        raise InputError(
            survey.path,
            0,
            f"it does not state what clock its times are of ({tool}), and gputrace does not guess. If you know, say "
            f"so: --clock {survey.path}={hint} (or boottime, realtime, monotonic, with an offset: {hint}+0.5s)",
        )
    if reference is None:
        if clock != REALTIME:
            if len(plan.hosts) == 1:
                return Shift(added)
            raise InputError(survey.path, 0, f"its times are of {clock}, and no input ties that to another's clock")
        return Shift(added)
    assert reference.realtime_offset_ns is not None
    if host.realtime_offset_ns is None:
        if clock != REALTIME:
            names = " or ".join(sorted(h.label for h in plan.hosts if h.realtime_offset_ns is not None))
            raise InputError(
                survey.path,
                0,
                f"it does not state what host's {clock.upper()} its times are of. If you know, say so: "
                f"--clock {survey.path}={clock}@HOST, where HOST is {names}",
            )
        return Shift(added - reference.realtime_offset_ns)
    if clock == REALTIME:
        return Shift(added - reference.realtime_offset_ns)
    if clock == MONOTONIC:
        added += host.monotonic_offset_ns
    if host is reference or (host.boot and host.boot == reference.boot):
        return Shift(added)
    return Shift(added + host.realtime_offset_ns - reference.realtime_offset_ns)


def _keep_clocks(plan: Plan, reference: Host) -> None:
    """The merged trace has one input's snapshots: those of several wobble, and the engine takes that for steps."""
    of_reference = [task for task in plan.tasks if task.host is reference and task.survey.snapshots]
    perfetto = [task for task in of_reference if task.survey.kind == recognise.PERFETTO]
    for task in sorted(perfetto or of_reference, key=lambda t: (not t.survey.pinned, -len(t.survey.snapshots))):
        task.keeps_clocks = True
        plan.snapshots = task.survey.snapshots
        return


# --- ids --------------------------------------------------------------------------------------------------------------


def width(id: int) -> int:
    """Bytes of a sequence id as a varint."""
    return max((id.bit_length() + 6) // 7, 1)


class FreeIds:
    """Hands out sequence ids that nobody has, of a wanted width where there are any."""

    def __init__(self, taken: set[int], ranges: list[tuple[int, int]]) -> None:
        self._taken = taken
        self._ranges = ranges
        self._next = {1: 1, 2: 1 << 7, 3: 1 << 14, 4: 1 << 21, 5: 1 << 28}

    def take(self, wanted: int) -> int:
        for size in (wanted, *(s for s in (3, 4, 5) if s != wanted)):
            limit = min(1 << 7 * size, 1 << 31)  # the engine loses the clocks of larger ones
            id = self._next[size]
            while id < limit:
                inside = next((high for low, high in self._ranges if low <= id <= high), None)
                if inside is not None:
                    id = inside + 1
                elif id in self._taken:
                    id += 1
                else:
                    self._next[size] = id + 1
                    self._taken.add(id)
                    return id
            self._next[size] = limit
        raise OverflowError("no packet sequence id is left")


def _spread_sequences(plan: Plan) -> None:
    """Give new ids where two inputs use the same. Those that can be copied as they are choose first."""
    plan.taken.add(OWN_SEQUENCE)
    packets = [task for task in plan.tasks if task.survey.kind == recognise.PERFETTO]
    ranged = [task for task in packets if task.survey.numbers is not None]
    ranges = [task.survey.sequence_range() for task in ranged]
    for k, (task, (first, last)) in enumerate(zip(ranged, ranges, strict=True)):
        if any(first <= end and begin <= last for begin, end in ranges[:k] + ranges[k + 1 :]):
            task.survey.numbers = None  # to be looked at after all: few ids of a range are in use
        else:
            plan.ranges.append((first, last))
    rest = [task for task in packets if task.survey.numbers is None]
    for task in rest:
        if not task.survey.sequences and task.survey.whole:
            scan_packets(task.survey)
    every = set().union(*(task.survey.sequences for task in rest))
    free = FreeIds(plan.taken | every, plan.ranges)
    for task in rest:
        for id in sorted(task.survey.sequences):
            if id in plan.taken or any(low <= id <= high for low, high in plan.ranges):
                task.sequences[id] = free.take(width(id))
            else:
                plan.taken.add(id)
    plan.taken |= every | {new for task in rest for new in task.sequences.values()}


def free_number(plan: Plan, count: int = 1) -> int:
    """The first of ``count`` shard numbers whose sequence ids nobody has; they are taken from then on."""
    used = {id >> 12 for id in plan.taken}
    number = max([0, *used, *(high >> 12 for _, high in plan.ranges)]) + 1
    plan.ranges.append((number << 12, (number + count - 1) << 12 | 0xFFF))
    return number
