"""What devices did: busy and idle time, the longest gaps and why they may be, and how long launches took to start.

A device is busy while any window on it is: a window of gputrace is a stretch between two events, and what is inside is
taken for work. It knows no clock: a window drawn before its launch has a negative delay.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from gputrace.analysis.places import GPU
from gputrace.analysis.statistics import Grouped, union
from gputrace.table.trace import overlapping

if TYPE_CHECKING:
    from gputrace.analysis.host import Doing, Host
    from gputrace.analysis.places import Place
    from gputrace.table.columns import Flags, Ids, Ints
    from gputrace.table.trace import Trace

#: What PyTorch draws among its kernels to say which range of the host they are of: nothing runs in them.
_NOT_WORK = ("gpu_user_annotation",)
#: Args of a window that has no true duration: an error, or how it ended instead.
_FAILED = ("error", "ended")


@dataclass
class Use:
    """Of a device, or of one of its streams (``stream`` is "" for the device): busy within ``begin_ns`` to ``end_ns``,
    which are the device's first begin and last end, or the time that was asked for.

    ``windows`` counts those that ended; of them ``failed`` have no true duration. ``unfinished`` never ended, and are
    in no figure.
    """

    device: str
    stream: str
    rank: int
    begin_ns: int
    end_ns: int
    busy_ns: int
    windows: int
    unfinished: int
    failed: int

    @property
    def idle_ns(self) -> int:
        return self.end_ns - self.begin_ns - self.busy_ns


@dataclass
class Gap:
    """A device idle: after and before which window, and what the host did meanwhile, the longest first.

    ``launch_ns`` is when the next window was launched, counted from the gap's begin; None where no arrow tells. Most of
    a gap before it is the host's doing, most after it the device's or another stream's.
    """

    device: str
    rank: int
    begin_ns: int
    end_ns: int
    after: str
    before: str
    launch_ns: int | None
    host: list[Doing] = field(default_factory=list)

    @property
    def duration_ns(self) -> int:
        return self.end_ns - self.begin_ns


@dataclass
class Delay:
    """From a launch's begin on the host to its window's on a stream, in ns; ``negative`` counts those drawn before."""

    device: str
    stream: str
    rank: int
    count: int
    negative: int
    min_ns: int
    median_ns: float
    p95_ns: float
    p99_ns: float
    max_ns: int


class Devices:
    """The windows of a trace. ``within`` is the time that was asked for, ``asked`` says of which places figures are
    told: those of a device are of all its streams, whichever are asked for.
    """

    def __init__(
        self, trace: Trace, of_track: Ids, places: list[Place], within: tuple[int | None, int | None], asked: Flags
    ) -> None:
        self._trace = trace
        self._places = places
        self._within = within
        self._asked = asked
        slices = trace.slices
        self._place = of_track[slices.track_id]
        on_gpu = np.array([place.side == GPU for place in places], np.bool_)
        windows = on_gpu[self._place] if len(places) else np.zeros(len(slices), np.bool_)
        no_work = [id for id, text in enumerate(slices.strings.texts.tolist()) if text in _NOT_WORK]
        #: Those of any time.
        self._all: Flags = windows & ~np.isin(slices.category_id, no_work)
        self._windows: Flags = self._all & overlapping(slices.ts_ns, slices.end_ns, *within)
        self._ended = self._windows & ~slices.unfinished
        self._failed = self._find_failed()
        #: By device: the numbers of its places, which are streams.
        self._streams: dict[tuple[str, int], list[int]] = {}
        for number in np.unique(self._place[self._windows]).tolist():
            place = places[number]
            self._streams.setdefault((place.device, place.pid), []).append(number)
        self._streams = {device: each for device, each in self._streams.items() if asked[each].any()}

    def _find_failed(self) -> Flags:
        failed = np.zeros(len(self._windows), np.bool_)
        numbers = np.where(self._windows, np.arange(len(self._windows)), -1)
        for row, args in self._trace.slices.args.renumbered(numbers).items():
            if any(key in args for key in _FAILED):
                failed[row] = True
        return failed

    def use(self) -> list[Use]:
        """Each device, and behind it its streams."""
        found = []
        for numbers in self._streams.values():
            of_device = np.isin(self._place, numbers)
            begin_ns, end_ns = self._range(of_device)
            found.append(self._use(of_device, numbers[0], "", begin_ns, end_ns))
            if self._places[numbers[0]].label != self._places[numbers[0]].device:
                for number in (each for each in numbers if self._asked[each]):
                    place = self._places[number]
                    stream = place.label.removeprefix(place.device).removeprefix("/")
                    found.append(self._use(self._place == number, number, stream, begin_ns, end_ns))
        return found

    def _range(self, of_device: Flags) -> tuple[int, int]:
        rows = np.flatnonzero(of_device & self._ended)
        begin_ns, end_ns = self._within
        slices = self._trace.slices
        first = int(slices.ts_ns[rows].min()) if len(rows) else 0
        last = int(slices.end_ns[rows].max()) if len(rows) else 0
        return (first if begin_ns is None else begin_ns, last if end_ns is None else min(end_ns, self._trace.end_ns))

    def _covered(self, rows: Flags, begin_ns: int, end_ns: int) -> tuple[Ints, Ints]:
        at = np.flatnonzero(rows & self._ended)
        slices = self._trace.slices
        begins, ends = np.maximum(slices.ts_ns[at], begin_ns), np.minimum(slices.end_ns[at], end_ns)
        return union(begins[begins <= ends], ends[begins <= ends])

    def _use(self, rows: Flags, number: int, stream: str, begin_ns: int, end_ns: int) -> Use:
        begins, ends = self._covered(rows, begin_ns, end_ns)
        place = self._places[number]
        return Use(
            place.device,
            stream,
            place.rank,
            begin_ns,
            end_ns,
            int((ends - begins).sum()),
            int(np.count_nonzero(rows & self._ended)),
            int(np.count_nonzero(rows & self._windows & ~self._ended)),
            int(np.count_nonzero(rows & self._failed)),
        )

    def gaps(self, host: Host, most: int) -> list[Gap]:
        """The longest of each device, the longest first."""
        found = []
        launch_of = self._launches()
        slices = self._trace.slices
        for numbers in self._streams.values():
            of_device = np.isin(self._place, numbers)
            begins, ends = self._covered(of_device, *self._range(of_device))
            lengths = begins[1:] - ends[:-1]
            rows = np.flatnonzero(of_device & self._ended)
            place = self._places[numbers[0]]
            for k in np.argsort(-lengths, kind="stable")[:most].tolist():
                begin_ns, end_ns = int(ends[k]), int(begins[k + 1])
                before = int(rows[np.searchsorted(slices.ts_ns[rows], end_ns)])
                after = int(rows[np.flatnonzero(slices.end_ns[rows] == begin_ns)[0]])
                launch = launch_of.get(before)
                gap = Gap(place.device, place.rank, begin_ns, end_ns, "", "", None)
                gap.after, gap.before = (slices.strings[int(slices.name_id[row])] for row in (after, before))
                gap.launch_ns = None if launch is None else int(slices.ts_ns[launch]) - begin_ns
                gap.host = host.doing(begin_ns, end_ns, place.pid)
                found.append(gap)
        return sorted(found, key=lambda gap: -gap.duration_ns)

    def _launches(self) -> dict[int, int]:
        """The host's slice that each window's arrow comes from."""
        source, target = self.arrows()
        return dict(zip(target.tolist(), source.tolist(), strict=True))

    def arrows(self) -> tuple[Ints, Ints]:
        """(host slice, window) rows that an arrow leads from and to, at any time."""
        flows = self._trace.flows
        leads_over = self._all[flows.target] & ~self._all[flows.source]
        return flows.source[leads_over], flows.target[leads_over]

    def delays(self) -> list[Delay]:
        """By stream, in the order of the trace."""
        source, target = self.arrows()
        told = self._windows[target] & self._asked[self._place[target]]
        source, target = source[told], target[told]
        ts_ns = self._trace.slices.ts_ns
        delay = ts_ns[target] - ts_ns[source]
        place = self._place[target]
        by_stream = Grouped(place, delay, len(self._places))
        negative = np.bincount(place[delay < 0], minlength=len(self._places))
        median, p95, p99 = (by_stream.quantile(share) for share in (0.5, 0.95, 0.99))
        return [
            Delay(
                self._places[k].device,
                self._places[k].label.removeprefix(self._places[k].device).removeprefix("/"),
                self._places[k].rank,
                int(by_stream.count[k]),
                int(negative[k]),
                int(by_stream.min[k]),
                float(median[k]),
                float(p95[k]),
                float(p99[k]),
                int(by_stream.max[k]),
            )
            for k in np.flatnonzero(by_stream.count).tolist()
        ]
