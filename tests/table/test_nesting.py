"""Whole slices on a track: in what each lies, and on which lane where it overlaps another."""

from __future__ import annotations

import random

import numpy as np
import pytest

from gputrace.table import nesting
from gputrace.table.nesting import NEVER, lay_out


def laid_out(slices: list[tuple[int, int, int]]) -> list[tuple[int, int, int, int, int, int]]:
    """(track, begin, end, depth, parent, lane) of (track, begin, end), in their order."""
    slices = sorted(slices, key=lambda s: (s[0], s[1], -s[2]))
    track, begin, end = (np.array([s[k] for s in slices], np.int64) for k in range(3))
    found = lay_out(track.astype(np.int32), begin, end)
    return list(zip(*(column.tolist() for column in (track, begin, end, *found)), strict=True))


def nested(chance: random.Random, begin: int, end: int, depth: int) -> list[tuple[int, int]]:
    """Slices inside a time, one in another; some touch, some begin together, some have no length."""
    found: list[tuple[int, int]] = []
    now = begin
    while now < end and len(found) < 40:
        stop = min(now + chance.choice((0, 1, 5, 30)), end)
        found.append((now, stop))
        if depth and stop > now:
            found += nested(chance, now, stop, depth - 1)
        now = max(stop, now + chance.choice((0, 1, 7)))
        if stop == now == found[-1][0]:
            now += 1
    return found


@pytest.fixture(params=[1, 64])
def rounds(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """After few of them, the rest is found one by one."""
    monkeypatch.setattr(nesting, "_ROUNDS", request.param)


@pytest.mark.usefixtures("rounds")
@pytest.mark.parametrize("seed", range(20))
def test_each_lies_in_the_innermost_around_it(seed: int) -> None:
    chance = random.Random(seed)
    slices = [(on, *each) for on in range(3) for each in nested(chance, 0, 200, 4)]
    slices.append((1, 150, NEVER))
    slices = [(on, b, NEVER if on == 1 and b < 150 < e else e) for on, b, e in slices]
    rows = laid_out(slices)
    for k, (on, begin, _, depth, parent, lane) in enumerate(rows):
        around = [j for j in range(k) if rows[j][0] == on and rows[j][2] > begin]
        assert (depth, parent, lane) == (len(around), around[-1] if around else -1, 0)


@pytest.mark.usefixtures("rounds")
@pytest.mark.parametrize("seed", range(20))
def test_none_overlaps_another_of_its_lane(seed: int) -> None:
    chance = random.Random(seed)
    begins = [chance.randrange(300) for _ in range(120)]
    rows = laid_out([(chance.randrange(2), begin, begin + chance.randrange(60)) for begin in begins])
    assert any(row[5] for row in rows)
    for k, (on, begin, end, depth, parent, lane) in enumerate(rows):
        around = [j for j in range(k) if (rows[j][0], rows[j][5]) == (on, lane) and rows[j][2] > begin]
        assert all(rows[j][2] >= end for j in around)
        assert (depth, parent) == (len(around), around[-1] if around else -1)
        if lane:  # it had no room on those before
            assert any(rows[j][2] > begin and rows[j][2] < end for j in range(k) if (rows[j][0], rows[j][5]) == (on, 0))


@pytest.mark.usefixtures("rounds")
def test_a_very_deep_pile_that_ends_at_once() -> None:
    pile = [(0, k, 10_000 - k) for k in range(3_000)]
    rows = laid_out([*pile, (0, 6_999, 7_000), (0, 10_000, 10_001)])
    assert [row[3] for row in rows] == [*range(3_000), 3_000, 0]
    assert [row[4] for row in rows] == [*range(-1, 2_999), 2_999, -1]


def test_nothing() -> None:
    assert laid_out([]) == []
