"""A comparison as a table for people: what changed, the most time lost first."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gputrace.analysis.comparison import FASTER, GONE, NEW, SAME, SLOWER, UNTESTED
from gputrace.analysis.tables import CHANGE, NS, TEXT, Table

if TYPE_CHECKING:
    from gputrace.analysis.comparison import Change

_COLUMNS = (
    ("span", TEXT),
    ("on", TEXT),
    ("verdict", TEXT),
    ("base", NS),
    ("new", NS),
    ("change", CHANGE),
    ("likely", TEXT),
    ("lost a run", NS),
    ("times a run", TEXT),
)


def table(changes: Sequence[Change], top: int) -> Table:
    """Those that changed. ``top`` rows at most: where there are more, those that lost or gained the most."""
    changed = [each for each in changes if each.verdict not in (SAME, UNTESTED)]
    kept = sorted(changed, key=lambda each: -abs(each.lost_ns))[:top]
    rows: list[Sequence[Any]] = [
        (
            each.name,
            each.side,
            each.verdict,
            each.base_ns,
            each.new_ns,
            each.change,
            "" if math.isnan(each.low) else f"{each.low:+.1%} to {each.high:+.1%}",
            each.lost_ns,
            _times(each.base_count) if each.base_count == each.new_count else _counts(each),
        )
        for each in sorted(kept, key=lambda each: -each.lost_ns)
    ]
    return Table("Changes", _COLUMNS, rows, len(changed) - len(kept), ("times a run", "likely", "base", "on"))


def verdicts(changes: Sequence[Change]) -> str:
    """How many of each, in a line."""
    counts = Counter(each.verdict for each in changes)
    parts = [f"{counts[verdict]:,} {verdict}" for verdict in (SLOWER, FASTER, NEW, GONE)]
    parts.append(f"{counts[SAME]:,} the same within noise")
    if counts[UNTESTED]:
        parts.append(f"{counts[UNTESTED]:,} that ran too seldom to tell")
    return "Spans: " + ", ".join(parts) + "."


def _counts(each: Change) -> str:
    return f"{_times(each.base_count)} → {_times(each.new_count)}"


def _times(count: float) -> str:
    return f"{count:,.0f}" if count == round(count) else f"{count:,.1f}"
