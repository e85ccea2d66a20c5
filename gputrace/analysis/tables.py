"""Tables of figures, and how they are written: Markdown, CSV, and cells for a terminal. It knows no trace."""

from __future__ import annotations

import csv
import io
import json
import math
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

# Kinds of column.
TEXT, COUNT, NS, SHARE, CHANGE = "text", "count", "ns", "share", "change"

#: Markdown gives these a meaning, or a table's row would end there.
_SPECIAL = str.maketrans({c: f"\\{c}" for c in "\\|`*_<>[]&~$"})


@dataclass
class Table:
    """``columns`` are (head, kind) pairs; a cell of None is empty. ``more`` counts rows that were left out.

    ``spare`` are heads of columns that a narrow terminal does without, the first to go first.
    """

    title: str
    columns: Sequence[tuple[str, str]]
    rows: list[Sequence[Any]] = field(default_factory=list)
    more: int = 0
    spare: Sequence[str] = ()

    def cells(self) -> Iterable[list[str]]:
        """Each row as a person reads it."""
        kinds = [kind for _, kind in self.columns]
        return ([shown(value, kind) for value, kind in zip(row, kinds, strict=True)] for row in self.rows)


def shown(value: Any, kind: str) -> str:
    """A value as a person reads it."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return ""
    if kind == NS:
        return duration(value)
    if kind == COUNT:
        return f"{value:,}"
    if kind == SHARE:
        return f"{value:.1%}"
    if kind == CHANGE:
        return f"{value:+.1%}"
    return printable(str(value))


def printable(text: str) -> str:
    """With what a terminal would obey, and what would break the table, written out: names may come from anywhere."""
    return "".join(_escaped(c) if unicodedata.category(c) in ("Cc", "Cf", "Zl", "Zp", "Cs") else c for c in text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def duration(ns: float) -> str:
    """Of a number of ns, four digits and a unit."""
    size = abs(ns)
    for unit, scale in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if size >= scale * 0.99995:
            digits = max(0, 3 - int(math.log10(max(size / scale, 1))))
            return f"{ns / scale:,.{digits}f} {unit}"
    return f"{ns:.0f} ns"


def markdown(tables: Iterable[Table]) -> str:
    """As GitHub, GitLab and most others show it."""
    out: list[str] = []
    for table in tables:
        out += [f"### {table.title}", ""]
        out.append("| " + " | ".join(head for head, _ in table.columns) + " |")
        out.append("| " + " | ".join("---" if kind == TEXT else "---:" for _, kind in table.columns) + " |")
        out += ["| " + " | ".join(cell.translate(_SPECIAL) for cell in row) + " |" for row in table.cells()]
        if table.more:
            out += ["", f"and {table.more:,} more"]
        out.append("")
    return "\n".join(out)


def as_csv(rows: Iterable[dict[str, Any]]) -> str:
    """Rows of like keys, the first line being those. A value of None or NaN is empty, one that holds others is JSON."""
    out = io.StringIO()
    writer: Any = None
    for row in rows:
        if writer is None:
            writer = csv.DictWriter(out, row.keys(), lineterminator="\n")
            writer.writeheader()
        writer.writerow({key: _csv_cell(value) for key, value in row.items()})
    return out.getvalue()


def _csv_cell(value: Any) -> Any:
    if isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False, default=str)
    return "" if isinstance(value, float) and math.isnan(value) else value
