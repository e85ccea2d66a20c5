"""Which picture of a trace stands on the page: as deep as it nests where that is seen at a glance, else less so."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gputrace.analysis.tables import duration, printable
from gputrace.errors import UsageError
from gputrace.plotting.choice import between
from gputrace.plotting.rows import rows
from gputrace.plotting.timeline import png
from gputrace.reporting.page import Picture

if TYPE_CHECKING:
    from gputrace.table.trace import Trace

#: More rows than this are no overview any more.
_MOST_ROWS = 80
_DEPTHS = (8, 4, 2, 1)


def overview(trace: Trace, part: Trace, from_ns: int | None, to_ns: int | None) -> Picture:
    """``part`` of ``trace``, between two times since its start; or the reason that there is no picture."""
    try:
        start_ns, end_ns = between(trace, from_ns, to_ns)
        depth = _depth(part)
        if not depth:
            raise UsageError(f"more than {_MOST_ROWS} rows would have to be drawn; choose some by --track.")
        drawn = png(part, start_ns, end_ns, most_deep=depth)
    except UsageError as error:
        return Picture(f"There is none: {error}")
    levels = f", {depth} {'level' if depth == 1 else 'levels'} deep at most"
    text = (
        f"{printable(trace.path)}: {duration(end_ns - start_ns)} from {duration(start_ns - trace.start_ns)} on{levels}."
    )
    return Picture(text, drawn)


def _depth(part: Trace) -> int:
    """The deepest of those that make few enough rows; 0 if none does."""
    blocks = {part.tracks[id].row for id in np.unique(part.slices.track_id).tolist()}
    if len(blocks) > _MOST_ROWS:
        return 0
    return next((depth for depth in _DEPTHS if len(rows(part, depth)) <= _MOST_ROWS), 0)
