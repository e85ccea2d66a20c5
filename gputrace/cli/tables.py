"""Tables on a terminal, by rich: as wide as it, or into a pipe as wide as they are."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, NamedTuple

from gputrace.analysis.tables import TEXT

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gputrace.analysis.tables import Table

#: Texts keep so many cells of their width where there is room for them and for some figures, or else so many.
_TEXT_WIDTHS = (24, 16, 10)
#: Between two columns.
_APART = 2


class Fitted(NamedTuple):
    """Which columns of a table are shown, and how wide each. They take more than was asked for where the least does."""

    shown: list[int]
    widths: list[int]

    @property
    def width(self) -> int:
        return sum(self.widths) + _APART * (len(self.widths) - 1)


def show(tables: Iterable[Table]) -> None:
    """Print them on stdout."""
    from rich.console import Console
    from rich.table import Table as Drawn
    from rich.text import Text

    wide = Console(highlight=False).width if sys.stdout.isatty() else None
    for table in tables:
        rows = list(table.cells())
        fitted = fit(table, rows, wide)
        title = Text(table.title, "bold")
        drawn = Drawn(box=None, header_style="bold", pad_edge=False)
        for number, cells in zip(fitted.shown, fitted.widths, strict=True):
            head, kind = table.columns[number]
            drawn.add_column(head, width=cells, overflow="fold", justify="left" if kind == TEXT else "right")
        for row in rows:
            drawn.add_row(*(Text(row[number]) for number in fitted.shown))
        console = Console(width=max(fitted.width, wide or 80, title.cell_len), highlight=False)
        with console.capture() as out:
            if table.title:
                console.print(title)
            console.print(drawn)
            if table.more:
                console.print(f"and {table.more:,} more")
            if hidden := [head for n, (head, _) in enumerate(table.columns) if n not in fitted.shown]:
                console.print(f"no room here for: {', '.join(dict.fromkeys(hidden))}")
        print("\n".join(line.rstrip() for line in out.get().splitlines()) + "\n")


def fit(table: Table, rows: list[list[str]], width: int | None) -> Fitted:
    """What of a table's columns is shown in so many cells, or anyhow: first texts fold and heads wrap, then columns of
    nothing but 0 go, then those that the table says it can spare.
    """
    from rich.cells import cell_len

    heads = [head for head, _ in table.columns]
    whole = [max(map(cell_len, [head, *(row[n] for row in rows)])) for n, head in enumerate(heads)]
    everything = Fitted(list(range(len(heads))), whole)
    if width is None or everything.width <= width:
        return everything
    idle = [n for n, (_, kind) in enumerate(table.columns) if kind != TEXT and all(row[n] in ("0", "") for row in rows)]
    spared = [n for head in table.spare for n, each in enumerate(heads) if each == head and n not in idle]
    going = [*idle, *spared]
    for most in _TEXT_WIDTHS:
        least = [
            min(whole[n], max(most, *map(cell_len, heads[n].split())))
            if kind == TEXT
            else max(map(cell_len, [*heads[n].split(), *(row[n] for row in rows)]))
            for n, (_, kind) in enumerate(table.columns)
        ]
        for gone in range(len(going) + 1):
            shown = [n for n in range(len(heads)) if n not in going[:gone]]
            narrowest = Fitted(shown, [least[n] for n in shown])
            if narrowest.width <= width:
                return _widened(narrowest, whole, width)
    return narrowest


def _widened(fitted: Fitted, whole: list[int], width: int) -> Fitted:
    """With what is left shared out among those that are not whole yet, a cell at a time."""
    widths = list(fitted.widths)
    left = width - fitted.width
    while left:
        short = [k for k, n in enumerate(fitted.shown) if widths[k] < whole[n]][:left]
        if not short:
            break
        for k in short:
            widths[k] += 1
        left -= len(short)
    return Fitted(fitted.shown, widths)
