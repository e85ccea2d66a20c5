"""Args that are written all at once come back one by one, whatever is in them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from gputrace.table.args import Args, as_json, as_pieces, from_json

PLAIN: list[dict[str, Any]] = [{"a": 1}, {"b": "text", "c": [1.5, True]}, {"d": {"e": []}}]
HARD: dict[str, dict[str, Any]] = {
    "a seam in a text": {"s": "},{"},
    "a seam between two inside": {"list": [{"x": 1}, {"y": 2}]},
    "empty ones inside": {"list": [{}, {}]},
    "nothing": {"none": None},
    "a word like nothing's": {"s": "null"},
    "no number": {"nan": math.nan, "inf": math.inf},
    "a number of over 64 bits": {"big": 1 << 70},
    "a lone surrogate": {"s": "\ud800"},
}


def one_by_one(several: list[dict[str, Any]]) -> list[dict[str, Any]]:
    size, data = as_pieces(several)
    assert int(size.sum()) == len(data)
    rows = np.arange(len(several))
    args = Args(rows, np.cumsum(size) - size, size, np.zeros_like(rows), data, from_json)
    return [args[row] for row in rows.tolist()]


@pytest.mark.parametrize("what", HARD)
def test_whatever_is_in_them(what: str) -> None:
    several = [*PLAIN, HARD[what], *PLAIN]
    assert repr(one_by_one(several)) == repr([from_json(as_json(each), 0) for each in several])
    assert one_by_one(several)[:3] == PLAIN


def test_one_alone_and_all_together() -> None:
    for several in ([PLAIN[0]], PLAIN, [*PLAIN, *HARD.values()]):
        assert repr(one_by_one(several)) == repr([from_json(as_json(each), 0) for each in several])
