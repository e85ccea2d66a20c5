"""The range of a trace that is drawn, as people give it: by the time since its start, or by a slice's name."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from gputrace.errors import UsageError

if TYPE_CHECKING:
    from gputrace.table.trace import Trace

_NUMBERED = re.compile(r"(?P<name>.+?)(?:#(?P<number>-?\d+))?")
#: So much of a slice's length is shown before and behind it.
_MARGIN = 0.02


def around(trace: Trace, text: str) -> tuple[int, int]:
    """(start_ns, end_ns) of a slice and a little around it: "NAME", or "NAME#3" for the fourth of that name.

    "NAME#-1" is the last. Raises `UsageError` if there is no such slice.
    """
    match = _NUMBERED.fullmatch(text)
    assert match is not None
    slices = trace.slices
    name, number = (text, 0) if (slices.names == text).any() else (match["name"], int(match["number"] or 0))
    found = np.flatnonzero(slices.names == name)
    if not len(found):
        some = ", ".join(sorted({str(each) for each in slices.names[slices.depth == 0][:1000]})[:8])
        raise UsageError(f"{trace.path} holds no slice named {name!r}. Some of its names: {some}.")
    if not -len(found) <= number < len(found):
        raise UsageError(f"{trace.path} holds {len(found):,} slices named {name!r}: #{number} is none of them.")
    row = int(found[number])
    start, end = int(slices.ts_ns[row]), int(slices.end_ns[row])
    margin = max(round((end - start) * _MARGIN), 1)
    return start - margin, end + margin


def between(trace: Trace, from_ns: int | None, to_ns: int | None) -> tuple[int, int]:
    """(start_ns, end_ns) on the trace's clock, of ns since its start. Raises `UsageError` if that is nothing."""
    start_ns = trace.start_ns + (from_ns or 0)
    end_ns = max(trace.end_ns, trace.start_ns + 1) if to_ns is None else trace.start_ns + to_ns
    if end_ns <= start_ns:
        raise UsageError(
            f"nothing lies between {(start_ns - trace.start_ns) / 1e9:g} s and {(end_ns - trace.start_ns) / 1e9:g} s: "
            f"{trace.path} is {trace.duration_ns / 1e9:g} s long."
        )
    return start_ns, end_ns
