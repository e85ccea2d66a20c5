"""A trace read whole: its tables, what it says of itself, and what of it could not be read."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from gputrace.table import frames
from gputrace.table.columns import Clocks, Counters, Flows, Instants, Problem, Slices

if TYPE_CHECKING:
    from gputrace.table.columns import Flags, Ints
    from gputrace.table.tracks import Track

    #: One pattern or several: ``*``, ``?`` and ``[...]``, as in file names; case counts.
    Patterns = str | Iterable[str]


@dataclass
class Trace:
    """What `gputrace.read` returns.

    ``format`` is "perfetto" or "chrome", ``tool`` what wrote it ("gputrace", "torch.profiler", "viztracer", or "" where
    that is not known). ``clock`` is what its times are of: "boottime", or "" for a tool's own. ``metadata`` are facts
    by name, ``problems`` what could not be read.
    """

    path: str
    format: str
    tool: str
    clock: str
    slices: Slices
    instants: Instants
    counters: Counters
    flows: Flows
    tracks: list[Track]
    clocks: Clocks
    metadata: dict[str, Any] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def __repr__(self) -> str:
        return (
            f"<Trace {self.path!r}: {len(self.slices):,} slices, {len(self.instants):,} instants, "
            f"{len(self.counters):,} samples, {len(self.flows):,} arrows on {len(self.tracks):,} tracks>"
        )

    @cached_property
    def start_ns(self) -> int:
        """The first time that it holds; 0 if it holds none."""
        first = [int(table.ts_ns[0]) for table in (self.slices, self.instants, self.counters) if len(table)]
        return min(first, default=0)

    @cached_property
    def end_ns(self) -> int:
        """The last."""
        last = [int(table.ts_ns[-1]) for table in (self.instants, self.counters) if len(table)]
        return max(*last, int(self.slices.end_ns.max(initial=0)), self.start_ns)

    @property
    def duration_ns(self) -> int:
        return self.end_ns - self.start_ns

    def to_arrow(self, table: str = "slices") -> Any:
        """One of its tables ("slices", "instants", "counters", "flows", "tracks") as a ``pyarrow.Table``, each row with
        its names and where it lies; args as JSON text. Raises `UsageError` where pyarrow is not installed.
        """
        return frames.to_arrow(self, table)

    def to_pandas(self, table: str = "slices") -> Any:
        """The same as a ``pandas.DataFrame``."""
        return frames.to_pandas(self, table)

    def to_polars(self, table: str = "slices") -> Any:
        """The same as a ``polars.DataFrame``."""
        return frames.to_polars(self, table)

    def select(
        self,
        *,
        tracks: Patterns | Callable[[Track], bool] | None = None,
        names: Patterns | None = None,
        start_ns: int | None = None,
        end_ns: int | None = None,
    ) -> Trace:
        """A trace of a part of it. Tracks keep their ids.

        ``tracks``: of tracks whose name, or whose path joined by "/", matches; or for which a function is true.
        ``names``: slices and instants of such names. ``start_ns`` and ``end_ns``: what overlaps that time, which begins
        at the one and ends before the other. A slice whose parent is left out has the next one around it for a parent,
        and keeps its depth. Arrows stay where both ends do.
        """
        slices, instants, counters = self.slices, self.instants, self.counters
        keep = np.ones(len(slices), np.bool_)
        moments, samples = np.ones(len(instants), np.bool_), np.ones(len(counters), np.bool_)
        if tracks is not None:
            wanted = tracks_like(self.tracks, tracks)
            keep &= wanted[slices.track_id]
            moments &= wanted[instants.track_id]
            samples &= wanted[counters.track_id]
        if names is not None:
            like = matcher(names)
            named = np.array([like(text) for text in slices.strings.texts], np.bool_)
            keep &= named[slices.name_id] if len(named) else False
            moments &= named[instants.name_id] if len(named) else False
        keep &= overlapping(slices.ts_ns, slices.end_ns, start_ns, end_ns)
        if start_ns is not None:
            moments &= instants.ts_ns >= start_ns
            samples &= counters.ts_ns >= start_ns
        if end_ns is not None:
            moments &= instants.ts_ns < end_ns
            samples &= counters.ts_ns < end_ns
        return self._of(keep, moments, samples)

    def _of(self, keep: Flags, moments: Flags, samples: Flags) -> Trace:
        slices, instants, counters, flows = self.slices, self.instants, self.counters, self.flows
        rows = np.flatnonzero(keep)
        number = np.full(len(slices), -1, np.int64)
        number[rows] = np.arange(len(rows))
        parent = slices.parent[rows]
        while True:  # up to one that stays
            gone = np.flatnonzero(parent >= 0)
            gone = gone[~keep[parent[gone]]]
            if not len(gone):
                break
            parent[gone] = slices.parent[parent[gone]]
        instant_rows = np.flatnonzero(moments)
        instant_number = np.full(len(instants), -1, np.int64)
        instant_number[instant_rows] = np.arange(len(instant_rows))
        joined = keep[flows.source] & keep[flows.target] if len(flows) else np.zeros(0, np.bool_)
        return Trace(
            self.path,
            self.format,
            self.tool,
            self.clock,
            Slices(
                slices.ts_ns[rows],
                slices.dur_ns[rows],
                slices.name_id[rows],
                slices.category_id[rows],
                slices.track_id[rows],
                slices.depth[rows],
                np.where(parent >= 0, number[parent], -1) if len(parent) else parent,
                slices.lane[rows],
                slices.strings,
                slices.args.renumbered(number),
            ),
            Instants(
                instants.ts_ns[instant_rows],
                instants.name_id[instant_rows],
                instants.category_id[instant_rows],
                instants.track_id[instant_rows],
                instants.strings,
                instants.args.renumbered(instant_number),
            ),
            Counters(counters.ts_ns[samples], counters.track_id[samples], counters.value[samples]),
            Flows(number[flows.source[joined]], number[flows.target[joined]]),
            self.tracks,
            self.clocks,
            self.metadata,
            self.problems,
        )


def overlapping(begins: Ints, ends: Ints, start_ns: int | None, end_ns: int | None) -> Flags:
    """Which slices lie in a time, or partly so. One without a length is where it begins; one with some ends before what
    begins at its end.
    """
    keep = np.ones(len(begins), np.bool_)
    if start_ns is not None:
        keep &= (ends > start_ns) | (begins >= start_ns)
    if end_ns is not None:
        keep &= begins < end_ns
    return keep


def tracks_like(tracks: list[Track], like: Patterns | Callable[[Track], bool]) -> Flags:
    """Which tracks have a name, or a path joined by "/", that matches; or which a function is true of."""
    if callable(like):
        chosen = like
    else:
        matches = matcher(like)

        def chosen(track: Track) -> bool:
            return matches(track.name) or matches(str(track))

    return np.array([bool(chosen(track)) for track in tracks], np.bool_)


def matcher(patterns: Patterns) -> Callable[[str], bool]:
    """Whether a text matches any of them."""
    several = [patterns] if isinstance(patterns, str) else list(patterns)
    return lambda text: any(fnmatch.fnmatchcase(text, pattern) for pattern in several)
