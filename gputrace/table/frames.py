"""A trace's tables as data frames: of Arrow, pandas and Polars, whichever is installed.

Names of tracks, processes and slices are dictionaries (categories) there, so that a million slices do not hold a
million texts.
"""

from __future__ import annotations

import importlib
import json
from typing import TYPE_CHECKING, Any

import numpy as np

from gputrace.errors import UsageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gputrace.table.args import Args
    from gputrace.table.columns import Instants, Slices
    from gputrace.table.trace import Trace

TABLES = ("slices", "instants", "counters", "flows", "tracks")


class Texts:
    """A column of texts: ``values[codes]``; of args, which mostly differ, ``codes`` is None. None is no value."""

    __slots__ = ("codes", "values")

    def __init__(self, values: list[Any], codes: NDArray[np.int32] | None = None) -> None:
        self.values = values
        self.codes = codes

    def distinct(self) -> tuple[NDArray[np.int32], list[str]]:
        """Codes and values, no two of which are alike."""
        assert self.codes is not None
        numbers: dict[str, int] = {}
        ids = [numbers.setdefault(value, len(numbers)) for value in self.values]
        return np.array(ids, np.int32)[self.codes] if ids else self.codes, list(numbers)


Column = Any  # NDArray, or Texts


def columns(trace: Trace, table: str = "slices") -> dict[str, Column]:
    """The columns of one of `TABLES`, by name: arrays, or `Texts`. Raises `UsageError` for another."""
    if table == "slices":
        slices = trace.slices
        return {
            "ts_ns": slices.ts_ns,
            "dur_ns": np.ma.masked_array(slices.dur_ns, slices.unfinished),
            **_named(slices),
            "depth": slices.depth,
            "parent": np.ma.masked_array(slices.parent, slices.parent < 0),
            "lane": slices.lane,
            **_placed(trace, slices.track_id),
            "args": _args(slices.args, len(slices)),
        }
    if table == "instants":
        instants = trace.instants
        placed = _placed(trace, instants.track_id)
        return {"ts_ns": instants.ts_ns, **_named(instants), **placed, "args": _args(instants.args, len(instants))}
    if table == "counters":
        counters = trace.counters
        units = Texts([track.unit for track in trace.tracks], counters.track_id)
        placed = _placed(trace, counters.track_id)
        return {"ts_ns": counters.ts_ns, "value": counters.value, "unit": units, **placed}
    if table == "flows":
        return {"source": trace.flows.source, "target": trace.flows.target}
    if table == "tracks":
        placed = _placed(trace, np.arange(len(trace.tracks), dtype=np.int32))
        return {**placed, "name": Texts([track.name for track in trace.tracks])}
    raise UsageError(f"there is no table {table!r}: take one of {', '.join(TABLES)}")


def _named(table: Slices | Instants) -> dict[str, Column]:
    texts = table.strings.texts.tolist()
    return {"name": Texts(texts, table.name_id), "category": Texts(texts, table.category_id)}


def _placed(trace: Trace, track_id: NDArray[np.int32]) -> dict[str, Column]:
    tracks = trace.tracks
    ranks = np.array([track.rank for track in tracks], np.int32)[track_id]
    return {
        "track_id": track_id,
        "track": Texts([str(track) for track in tracks], track_id),
        "kind": Texts([track.kind for track in tracks], track_id),
        "process": Texts([track.process for track in tracks], track_id),
        "pid": np.array([_whole(track.pid) for track in tracks], np.int64)[track_id],
        "tid": np.array([_whole(track.tid) for track in tracks], np.int64)[track_id],
        "rank": np.ma.masked_array(ranks, ranks < 0),
        "host": Texts([track.host for track in tracks], track_id),
    }


def _whole(id: int) -> int:
    """An id as 64 bits: other tools make up wider ones."""
    return (id + (1 << 63)) % (1 << 64) - (1 << 63)


def _args(args: Args, count: int) -> Texts:
    texts: list[Any] = [None] * count
    for row, found in args.items():
        texts[row] = json.dumps(found, ensure_ascii=False)
    return Texts(texts)


def to_arrow(trace: Trace, table: str = "slices") -> Any:
    """A ``pyarrow.Table``."""
    arrow = needed("pyarrow", "arrow")

    def made(column: Column) -> Any:
        if not isinstance(column, Texts):
            return arrow.array(np.ma.getdata(column), mask=np.ma.getmaskarray(column))
        if column.codes is None:
            return arrow.array(column.values, arrow.string())
        codes, values = column.distinct()
        return arrow.DictionaryArray.from_arrays(arrow.array(codes), arrow.array(values, arrow.string()))

    return arrow.table({name: made(column) for name, column in columns(trace, table).items()})


def to_pandas(trace: Trace, table: str = "slices") -> Any:
    """A ``pandas.DataFrame``. Columns that may lack values are of pandas' nullable types."""
    pandas = needed("pandas", "pandas")

    def made(column: Column) -> Any:
        if isinstance(column, Texts):
            if column.codes is None:
                return pandas.array(column.values, dtype="object")
            return pandas.Categorical.from_codes(*column.distinct())
        if isinstance(column, np.ma.MaskedArray):
            return pandas.arrays.IntegerArray(np.array(column.data), np.ma.getmaskarray(column).copy())
        return column

    return pandas.DataFrame({name: made(column) for name, column in columns(trace, table).items()})


def to_polars(trace: Trace, table: str = "slices") -> Any:
    """A ``polars.DataFrame``."""
    polars = needed("polars", "polars")

    def made(column: Column) -> Any:
        if isinstance(column, Texts):
            texts = polars.Series(column.values, dtype=polars.String)
            if column.codes is None:
                return texts
            return texts.gather(polars.Series(column.codes)).cast(polars.Categorical)
        if isinstance(column, np.ma.MaskedArray):
            gone = polars.Series(np.ma.getmaskarray(column))
            return polars.Series(np.array(column.data)).set(gone, None)
        return polars.Series(column)

    return polars.DataFrame({name: made(column) for name, column in columns(trace, table).items()})


def needed(module: str, extra: str) -> Any:
    """A package that not everybody has. Raises `UsageError` that says how to get it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UsageError(f"this takes {module}, which is not installed: pip install 'gputrace[{extra}]'") from error
