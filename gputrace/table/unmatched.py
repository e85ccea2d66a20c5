"""What to say where a part of a trace was asked for and nothing is of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gputrace.table.trace import Trace

#: So many tracks and names of a trace are told.
_TOLD = 4


def nothing_of(
    trace: Trace, tracks: Sequence[str] = (), names: Sequence[str] = (), tables: Sequence[str] = ("slices",)
) -> str:
    """A line for a trace of whose ``tables`` nothing is of the part that was asked for: the patterns that fit nothing,
    and what there is instead. Where the tables are empty, no pattern is to blame.
    """
    used = np.unique(np.concatenate([getattr(trace, each).track_id for each in tables])).tolist()
    if not used:
        return f"{trace.path}: there are no {' or '.join(tables)} in it"
    facts = [f"no track fits {each!r}" for each in tracks if not _any(trace.select(tracks=each), tables)]
    # A counter has no name but its track's, so names choose none of them.
    named = [each for each in tables if each != "counters"]
    facts += [f"no name fits {each!r}" for each in names if not _any(trace.select(names=each), named)]
    some = ", ".join(repr(str(trace.tracks[id])) for id in used[:_TOLD])
    held = f"it is {trace.duration_ns / 1e9:.6f} s long, with tracks like {some}"
    if names and (frequent := _frequent(trace)):
        held += f" and names like {', '.join(map(repr, frequent))}"
    return f"{trace.path}: nothing in it is of the part that was asked for ({'; '.join([*facts, held])})"


def _any(trace: Trace, tables: Sequence[str]) -> bool:
    return any(len(getattr(trace, each)) for each in tables)


def _frequent(trace: Trace) -> list[str]:
    slices = trace.slices
    counts = np.bincount(slices.name_id)
    return [slices.strings[id] for id in np.argsort(-counts, kind="stable")[:_TOLD].tolist() if counts[id]]
