"""The test behind a comparison, against tables, and against what it claims of noise."""

from __future__ import annotations

from math import exp, lgamma, pi, sqrt

import numpy as np
import pytest

from gputrace.analysis.ttest import compare, corrected, within

# NIST/SEMATECH e-Handbook of Statistical Methods, 1.3.6.7.2: what 95% of the distribution is within.
QUANTILES = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 10: 2.228, 19: 2.093, 38: 2.024, 100: 1.984}


@pytest.mark.parametrize(("degrees", "t"), QUANTILES.items())
def test_against_tables(degrees: int, t: float) -> None:
    assert within(t, degrees) == pytest.approx(0.95, abs=1e-4)
    assert within(0, degrees) == 0
    assert within(1e9, degrees) == pytest.approx(1)


@pytest.mark.parametrize("degrees", range(1, 40))
def test_against_the_density(degrees: int) -> None:
    t = np.linspace(0, 3, 30_001)
    height = exp(lgamma((degrees + 1) / 2) - lgamma(degrees / 2)) / sqrt(degrees * pi)
    density = height * (1 + t * t / degrees) ** (-(degrees + 1) / 2)
    area = 2 * float(((density[1:] + density[:-1]) / 2 * np.diff(t)).sum())
    assert within(3, degrees) == pytest.approx(area, abs=1e-7)


def test_an_interval_holds_the_truth_as_often_as_it_says() -> None:
    rng = np.random.default_rng(1)
    held = found = 0
    for _ in range(2_000):
        test = compare(rng.normal(0, 1, 4), rng.normal(0.5, 1, 3))
        assert test is not None
        held += test.low <= 0.5 <= test.high
        found += test.p < 0.05
        assert (test.p < 0.05) == (test.low > 0 or test.high < 0)
    assert 1_870 <= held <= 1_930
    assert found > 0


def test_samples_of_one_and_of_no_noise() -> None:
    one, several = np.array([5.0]), np.array([1.0, 1.1, 0.9])
    assert compare(one, one) is None
    assert compare(np.array([]), several) is None
    test = compare(several, one)
    assert test is not None
    assert test.p < 0.01 < 3.5 < test.low < 4 < test.high
    same = compare(np.array([2.0, 2.0]), np.array([2.0, 2.0]))
    other = compare(np.array([2.0, 2.0]), np.array([2.5, 2.5]))
    assert same is not None
    assert other is not None
    assert (same.p, other.p) == (1.0, 0.0)


def test_correction_for_many() -> None:
    # By the definition: of the k smallest, p * n / k, and no more than of any larger one.
    p = [0.01, 0.04, 0.03, 0.5]
    assert corrected(p).tolist() == pytest.approx([0.04, 0.04 * 4 / 3, 0.04 * 4 / 3, 0.5])
    assert corrected([]).tolist() == []
    assert corrected([0.9, 1.0]).tolist() == [1.0, 1.0]
