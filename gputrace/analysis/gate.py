"""Limits on how much slower spans may get: what a CI job fails on."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from gputrace.analysis.comparison import GONE, NEW, SLOWER, UNTESTED

if TYPE_CHECKING:
    from gputrace.analysis.comparison import Change


def over_limits(
    changes: Iterable[Change], above: float | None, named: Sequence[tuple[str, float]]
) -> tuple[list[str], list[str]]:
    """(what is over its limit, what could not be held to one), a line each.

    ``above`` is the limit of every span, as a share; ``named`` are patterns of names with limits of their own, the last
    that fits counting. Only a change that is more than noise is over a limit. A pattern that fits no span of both sides
    is over: a gate that looks at nothing passes everything.
    """
    over: list[str] = []
    untested: list[str] = []
    fits = dict.fromkeys((pattern for pattern, _ in named), False)
    for each in changes:
        if each.verdict in (NEW, GONE):
            continue
        limit = above
        for pattern, own in named:
            if fnmatch.fnmatchcase(each.name, pattern):
                limit = own
                fits[pattern] = True
        if limit is None or not each.change > limit:
            continue
        where = f"{each.name} ({each.side}) is {each.change:.1%} slower, and {limit:.1%} is allowed"
        if each.verdict == SLOWER:
            over.append(where)
        elif each.verdict == UNTESTED:
            untested.append(f"{where}, but ran too seldom to tell that from noise: give several runs a side")
    over += [f"no span named {pattern} is on both sides" for pattern, fit in fits.items() if not fit]
    return over, untested
