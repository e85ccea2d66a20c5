"""The figures of one or several Pythons and of both twins in one set of tables, and the README that they go into."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.benchmarks.figures import COMPILED, PURE, ROOT, Row, shown, shown_budget

README = ROOT / "README.md"
BEGIN, END = "<!-- figures:begin -->", "<!-- figures:end -->"


@dataclass
class Figure:
    """A row, the group that it stands in, and what it was measured on. ``twin`` is "" where the row is no twin's."""

    heading: str
    row: Row
    python: str
    twin: str

    @property
    def column(self) -> str:
        return f"{self.twin} {self.python}".strip()


@dataclass
class Report:
    """``machines`` says, by Python, what figures were taken on; ``pure_only`` which Pythons had no other twin."""

    figures: list[Figure]
    machines: dict[str, str]
    pure_only: list[str]

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> Report:
        found: dict[str, Any] = json.loads(path.read_text())
        figures = [Figure(**{**figure, "row": Row(**figure["row"])}) for figure in found["figures"]]
        return cls(figures, found["machines"], found["pure_only"])

    @classmethod
    def merged(cls, reports: Iterable[Report]) -> Report:
        """All of them; of a figure that is in several, the last."""
        figures: dict[tuple[str, str, str], Figure] = {}
        machines: dict[str, str] = {}
        pure_only: dict[str, bool] = {}
        for report in reports:
            figures.update({(f.heading, f.row.what, f.column): f for f in report.figures})
            machines.update(report.machines)
            pure_only.update({python: python in report.pure_only for python in report.machines})
        return cls(list(figures.values()), machines, [python for python, only in pure_only.items() if only])

    @property
    def over(self) -> list[Figure]:
        return [figure for figure in self.figures if figure.row.verdict == "over"]

    def markdown(self) -> str:
        headings = dict.fromkeys(figure.heading for figure in self.figures)
        parts = [_table(heading, [f for f in self.figures if f.heading == heading]) for heading in headings]
        parts.append("\n".join(f"{machine}." for machine in self.machines.values()))
        if self.pure_only:
            parts.append(f"The compiled twin was not built for Python {' and '.join(self.pure_only)}.")
        return "\n\n".join(parts)


def _table(heading: str, figures: list[Figure]) -> str:
    """A line a row, a column for each twin on each Python, then what was asked of it and whether that is met."""
    by_row: dict[str, list[Figure]] = {}
    for figure in figures:
        by_row.setdefault(figure.row.what, []).append(figure)
    order = ("", COMPILED, PURE)
    columns = sorted({f.column: (order.index(f.twin), _version(f.python)) for f in figures}.items(), key=lambda c: c[1])
    names = [name for name, _ in columns]
    asked = any(figure.row.budget is not None for figure in figures)
    header = [heading, *names, *(("budget", "verdict") if asked else ())]
    lines = [_line(header), _line(["---", *["---:"] * len(names), *(("---:", "---") if asked else ())])]
    for what, found in by_row.items():
        first = found[0].row
        cells = {figure.column: shown(figure.row) for figure in found}
        line = [f"{what} ({first.note})" if first.note else what, *(cells.get(name, "") for name in names)]
        lines.append(_line([*line, _budgets(found), _verdict(found)] if asked else line))
    return "\n".join(lines)


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _version(python: str) -> tuple[int, ...]:
    return tuple(int(part) for part in python.split("."))


def _budgets(found: list[Figure]) -> str:
    """One budget, or each twin's that has one."""
    budgets: dict[str, str] = {}
    for figure in found:  # on one Python it may not be judged
        budgets[figure.twin] = shown_budget(figure.row) or budgets.get(figure.twin, "")
    if len(set(budgets.values())) == 1:
        return next(iter(budgets.values()))
    return ", ".join(f"{twin} {budget}" for twin, budget in budgets.items() if budget)


def _verdict(found: list[Figure]) -> str:
    judged = [figure for figure in found if figure.row.verdict]
    over = [figure.column for figure in judged if figure.row.verdict == "over"]
    if len(over) == len(judged):
        return "over" if over else ""
    return f"over: {', '.join(over)}" if over else "met"


def write_readme(text: str) -> None:
    """Raises `SystemExit` where the README has not both marks."""
    readme = README.read_text()
    before, begin, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{README} has no {BEGIN} ... {END}")
    README.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}")
