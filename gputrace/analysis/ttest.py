"""Student's t-test, and Benjamini and Hochberg's correction for many of them.

It needs few samples: with three runs a side, Mann and Whitney's test can never call a difference real at 5%. numpy has
neither, and scipy is not needed for it: degrees of freedom are whole here, and the distribution is a finite sum then.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from math import atan2, cos, pi, sin, sqrt
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gputrace.table.columns import Floats

_CERTAIN = 0.95


@dataclass(frozen=True)
class Tested:
    """``difference`` of means, second less first; ``low`` to ``high`` holds it with 95%; ``p`` is how often chance
    alone makes one as large.
    """

    difference: float
    low: float
    high: float
    p: float


def compare(first: Floats, second: Floats, alike: float = 0.0) -> Tested | None:
    """Student's test, one variance for both. A sample may be of one, not both: None if there is nothing to go by.

    ``alike`` is how alike neighbours within a sample are, see `likeness`: they tell less than as many apart.
    """
    if not len(first) or not len(second) or len(first) + len(second) < 3:
        return None
    tell = (1 - alike) / (1 + alike)
    degrees = max(round(tell * (len(first) + len(second))) - 2, 1)
    difference = float(second.mean() - first.mean())
    squares = float(((first - first.mean()) ** 2).sum() + ((second - second.mean()) ** 2).sum())
    variance = squares / (len(first) + len(second) - 2)
    error = sqrt(variance * (1 / len(first) + 1 / len(second)) / tell)
    if error <= 1e-12:  # no noise at all: rounding apart, they are the same or they are not
        return Tested(difference, difference, difference, 1.0 if abs(difference) < 1e-9 else 0.0)
    reach = _quantile(degrees) * error
    return Tested(difference, difference - reach, difference + reach, 1 - within(abs(difference) / error, degrees))


def likeness(first: Floats, second: Floats) -> float:
    """How alike neighbours in samples are: the correlation of each with the next one, from 0 (not at all) to 0.9."""
    apart = [sample - sample.mean() for sample in (first, second)]
    squares = sum(float((each**2).sum()) for each in apart)
    length = (len(first) + len(second)) / 2
    if not squares or length <= 4:  # too few to say
        return 0.0
    found = sum(float((each[1:] * each[:-1]).sum()) for each in apart) / squares
    # In a short sample it comes out too low (Kendall, Biometrika 41, 1954), by (1 + 3 r) / n.
    return min(max((found + 1 / length) / (1 - 3 / length), 0.0), 0.9)


def within(t: float, degrees: int) -> float:
    """The share of Student's distribution between -t and t (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
    angle = atan2(t, sqrt(degrees))
    square = cos(angle) ** 2
    odd = degrees % 2
    term = cos(angle) if odd else 1.0
    total = term if degrees > 1 else 0.0
    for n in range(1 + odd, degrees - 2, 2):
        # Terms grow by 1/2, 3/4, ... for even degrees, by 2/3, 4/5, ... for odd ones.
        term *= square * n / (n + 1)
        total += term
    share = (2 / pi) * (angle + sin(angle) * total) if odd else sin(angle) * total
    return min(max(share, 0.0), 1.0)


@functools.cache
def _quantile(degrees: int) -> float:
    """The t that 95% of the distribution are within."""
    low, high = 0.0, 13.0  # of one degree it is 12.7
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if within(middle, degrees) < _CERTAIN else (low, middle)
    return high


def corrected(p: Sequence[float]) -> Floats:
    """Of many tests at once: the share of false alarms among those that are called real from this ``p`` down."""
    values = np.asarray(p, np.float64)
    order = np.argsort(-values)
    scaled = values[order] * len(values) / np.arange(len(values), 0, -1)
    found = np.empty(len(values))
    found[order] = np.minimum(np.minimum.accumulate(scaled), 1.0)
    return found
