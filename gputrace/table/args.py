"""The args of slices and instants: kept as they lay in the file, and decoded when they are asked for."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gputrace.table.columns import Ints

    #: Makes args of the bytes of a piece, and of the number of the table that its keys are in.
    Decode = Callable[[bytes, int], dict[str, Any]]


_SEAM = b"},{"


class Args:
    """Args by row: ``args[row]`` is a dict, empty for a row that has none.

    ``rows`` are those that have some, in order; a slice may have two pieces, as its end may bring some of its own.
    """

    def __init__(self, rows: Ints, at: Ints, size: Ints, table: Ints, data: bytes | bytearray, decode: Decode) -> None:
        self.rows = rows
        self._at = at
        self._size = size
        self._table = table
        self._data = data
        self._decode = decode

    @classmethod
    def none(cls) -> Args:
        empty = np.empty(0, np.int64)
        return cls(empty, empty, empty, empty, b"", from_json)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, row: int) -> dict[str, Any]:
        first, last = np.searchsorted(self.rows, (row, row + 1)).tolist()
        found: dict[str, Any] = {}
        for k in range(first, last):
            found |= self._piece(k)
        return found

    def _piece(self, k: int) -> dict[str, Any]:
        at = int(self._at[k])
        return self._decode(bytes(self._data[at : at + int(self._size[k])]), int(self._table[k]))

    def items(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """(row, args) of each row that has some."""
        row, found = -1, dict[str, Any]()
        for k, each in enumerate(self.rows.tolist()):
            if each != row:
                if row >= 0:
                    yield row, found
                row, found = each, {}
            found |= self._piece(k)
        if row >= 0:
            yield row, found

    def values(self, key: str) -> Iterator[tuple[int, Any]]:
        """(row, value) of each row that has an arg of this name."""
        for row, found in self.items():
            if key in found:
                yield row, found[key]

    def renumbered(self, numbers: NDArray[np.int64]) -> Args:
        """For a table of which ``numbers[row]`` is each row's new number, -1 if it is gone."""
        rows = numbers[self.rows] if len(self.rows) else self.rows
        order = np.argsort(rows, kind="stable")
        order = order[rows[order] >= 0]
        return Args(rows[order], self._at[order], self._size[order], self._table[order], self._data, self._decode)


def from_json(data: bytes, _: int) -> dict[str, Any]:
    """The args of a piece that is a JSON object; such as `as_json` made."""
    try:
        found = orjson.loads(data)
    except orjson.JSONDecodeError:
        found = json.loads(data)
    return found if isinstance(found, dict) else {}


def as_json(args: dict[str, Any]) -> bytes:
    """A piece of args. orjson writes null for NaN and the infinities, and knows no int of over 64 bits."""
    try:
        data = orjson.dumps(args)
    except TypeError:
        return json.dumps(args).encode()
    return json.dumps(args).encode() if b"null" in data else data


def as_pieces(several: list[dict[str, Any]]) -> tuple[Ints, bytes]:
    """The pieces of several args, none of them empty, one behind another; and the size of each."""
    try:
        data = orjson.dumps(several)
    except TypeError:
        data = b"null"
    # Where nothing inside them looks like a seam between two, all were written in one go.
    parts = data[1:-1].split(_SEAM)
    if b"null" in data or len(parts) != len(several):
        pieces = list(map(as_json, several))
        return np.array(list(map(len, pieces)), np.int64), b"".join(pieces)
    size = np.fromiter(map(len, parts), np.int64, len(parts)) + 2  # a brace at either end
    size[0] -= 1
    size[-1] -= 1
    return size, b"}{".join(parts)
