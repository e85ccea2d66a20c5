"""A trace's tables to files: Parquet and Arrow by pyarrow, CSV by Python itself."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from gputrace.table import frames
from gputrace.table.frames import Texts, needed

if TYPE_CHECKING:
    from gputrace.record.replace import Write
    from gputrace.table.trace import Trace

SUFFIXES = (".parquet", ".arrow", ".csv")
_ROWS = 1 << 16


def write(trace: Trace, table: str, suffix: str, out: Write) -> None:
    """Write one of `frames.TABLES`. Raises `UsageError` where pyarrow is needed and missing, and what ``out`` does."""
    if suffix == ".csv":
        for text in _lines(frames.columns(trace, table)):
            out(text.encode())
        return
    made = frames.to_arrow(trace, table)
    file = _Sink(out)
    if suffix == ".parquet":
        needed("pyarrow.parquet", "arrow").write_table(made, file)
        return
    ipc = needed("pyarrow.ipc", "arrow")
    with ipc.new_file(file, made.schema) as writer:
        writer.write_table(made)


def _lines(columns: dict[str, Any]) -> Iterator[str]:
    """A header, then a row a line; what has no value is empty."""
    yield _rows([list(columns)])
    count = max(len(c.codes if isinstance(c, Texts) and c.codes is not None else _data(c)) for c in columns.values())
    for start in range(0, count, _ROWS):
        yield _rows(zip(*(_part(column, slice(start, start + _ROWS)) for column in columns.values()), strict=True))


def _rows(rows: Any) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def _data(column: Any) -> Any:
    return column.values if isinstance(column, Texts) else column


def _part(column: Any, which: slice) -> list[Any]:
    if not isinstance(column, Texts):
        return np.ma.asarray(column[which]).tolist()  # type: ignore[no-any-return]
    if column.codes is None:
        return column.values[which]
    return [column.values[code] for code in column.codes[which].tolist()]


class _Sink(io.RawIOBase):
    """A file for pyarrow, which asks for no more than this."""

    def __init__(self, out: Write) -> None:
        self._out = out
        self._place = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        piece = bytes(data)
        self._out(piece)
        self._place += len(piece)
        return len(piece)

    def tell(self) -> int:
        return self._place
