"""Tables on a terminal, by rich; into a pipe as wide as they are."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from gputrace.analysis.tables import Table

#: Into a file or a pipe there is no width to keep to.
_WIDE = 400


def show(tables: Iterable[Table]) -> None:
    """Print them on stdout."""
    from rich.console import Console
    from rich.table import Table as Drawn
    from rich.text import Text

    from gputrace.analysis.tables import TEXT

    console = Console(width=None if sys.stdout.isatty() else _WIDE, highlight=False)
    for table in tables:
        drawn = Drawn(
            title=Text(table.title, "bold"), title_justify="left", box=None, header_style="bold", pad_edge=False
        )
        for head, kind in table.columns:
            if kind == TEXT:
                drawn.add_column(head, overflow="fold")
            else:
                drawn.add_column(head, justify="right", no_wrap=True)
        for row in table.cells():
            drawn.add_row(*map(Text, row))
        console.print(drawn)
        if table.more:
            console.print(f"and {table.more:,} more")
        console.print()
