"""One kind of fault in one trace, as a rule found it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gputrace.table.trace import Trace

#: So many of the places where a fault shows are named.
MOST_EXAMPLES = 3


@dataclass(frozen=True)
class Violation:
    """``count`` faults of one kind. ``what`` says it in a line; ``meaning`` what a reader of the trace must know.

    ``first_ns`` is the time of the first, on the trace's clock, -1 where it has none. ``examples`` name some places.
    """

    rule: str
    count: int
    what: str
    meaning: str
    first_ns: int = -1
    examples: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "examples": list(self.examples)}


def since_start(trace: Trace, ts_ns: int) -> str:
    """A time as people find it in a viewer: seconds since the trace begins."""
    return f"{(ts_ns - trace.start_ns) / 1e9:.9f} s"


def slice_examples(trace: Trace, rows: Any) -> tuple[str, ...]:
    """Some slices by name, track and time since the trace's start."""
    slices = trace.slices
    return tuple(
        f"{slices.names[row] or '(no name)'} on {trace.tracks[slices.track_id[row]]} at "
        + since_start(trace, int(slices.ts_ns[row]))
        for row in rows[:MOST_EXAMPLES].tolist()
    )
