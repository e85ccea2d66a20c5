"""Durations gathered of many traces: bounded, exact as long as they can be, and the same however they were divided."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gputrace
from gputrace.analysis import spans
from gputrace.analysis.statistics import Grouped
from gputrace.analysis.summary import Options, Summarizer
from gputrace.model import SLICE
from tests.analysis.test_summary import rank
from tests.exporters.recordings import Script
from tests.merging.making import Host, write_trace

QUANTILES = ("median_ns", "p95_ns", "p99_ns")


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """Six, with 600 different durations of 1 ns to 20 s together, and with spans that not all of them have."""
    chance = np.random.default_rng(6)
    folder = tmp_path_factory.mktemp("traces")
    made = []
    for k in range(6):
        script = Script(0, 100, "train.py")
        thread, now = script.thread(), 0
        for n, dur_ns in enumerate(np.exp(chance.uniform(0, np.log(2e10), 100)).astype(int).tolist()):
            script.add(thread, (now, SLICE, f"span {n % (k + 2)}", None, 0, now + dur_ns))
            now += dur_ns + 1
        made.append(gputrace.read(write_trace(folder / f"{k}.pftrace", Host("node0"), script, number=k)))
    ranks = [gputrace.read(write_trace(folder / f"r{k}.pftrace", Host("node0"), rank(k), number=k)) for k in (0, 1)]
    return [*made, *ranks]


def summed(traces: list[Any]) -> Summarizer:
    summarizer = Summarizer(Options(by_step=True))
    for trace in traces:
        summarizer.add(trace)
    return summarizer


def merged(parts: list[Summarizer]) -> Summarizer:
    whole = Summarizer(Options(by_step=True))
    for part in parts:
        whole.merge(part)
    return whole


@pytest.mark.parametrize("most", [1 << 23, 700, 300, 20])
@pytest.mark.parametrize("cuts", [[1, 2, 3, 4, 5, 6, 7], [3], [2, 7], []])
def test_what_is_said_does_not_depend_on_how_it_was_divided(
    traces: list[Any], monkeypatch: pytest.MonkeyPatch, most: int, cuts: list[int]
) -> None:
    monkeypatch.setattr(spans, "MOST", most)
    one = summed(traces)
    parts = [summed(traces[a:b]) for a, b in zip([0, *cuts], [*cuts, len(traces)], strict=True)]
    many = merged([merged(parts[:2]), merged(parts[2:])])
    assert many.summary().as_dict() == one.summary().as_dict()
    assert many.approximate == one.approximate == (most < 600)


@pytest.mark.parametrize("most", [300, 20])
def test_beyond_the_bound_only_quantiles_are_approximate(
    traces: list[Any], monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    exact = summed(traces).summary()
    monkeypatch.setattr(spans, "MOST", most)
    bounded = summed(traces).summary()
    for row, true in zip(bounded.spans, exact.spans, strict=True):
        for name in QUANTILES:
            assert getattr(row, name) == pytest.approx(getattr(true, name), rel=spans.PRECISION)
            setattr(row, name, getattr(true, name))
    assert bounded.spans == exact.spans
    assert [spread.total_ns for spread in bounded.ranks] == [spread.total_ns for spread in exact.ranks]
    assert len(exact.ranks) > 1


def test_durations_that_repeat_stay_exact(traces: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    exact = summed(traces[-2:] * 20).summary().as_dict()
    monkeypatch.setattr(spans, "MOST", 50)  # of two thousand
    bounded = summed(traces[-2:] * 20)
    assert bounded.summary().as_dict() == exact
    assert not bounded.approximate


def test_memory_is_bounded(traces: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spans, "MOST", 400)
    gathered = spans.Spans()
    most = 0
    for trace in traces * 30:
        gathered.add(trace)
        most = max(most, sum(len(id) for id, _, _ in gathered._chunks))
    assert most <= 3 * 400 + 100


@given(st.lists(st.integers(0, 2**62 - 1), max_size=50))
def test_rounding_is_as_close_as_it_says_and_done_once(durations: list[int]) -> None:
    true = np.array(durations, np.int64)
    once = spans.rounded(true)
    assert np.all(np.abs(once - true) <= true * spans.PRECISION)
    assert np.array_equal(spans.rounded(once), once)
    order = np.argsort(true, kind="stable")
    assert np.all(np.diff(once[order]) >= 0)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(-5, 10**12), st.integers(1, 5)), max_size=30))
def test_values_that_are_there_several_times_count_as_often(rows: list[tuple[int, int, int]]) -> None:
    group, values, times = (np.array([row[k] for row in rows], np.int64) for k in range(3))
    weighted = Grouped(group, values, 5, times)
    written_out = Grouped(np.repeat(group, times), np.repeat(values, times), 5)
    for name in ("count", "total", "min", "max", "mean"):
        np.testing.assert_array_equal(getattr(weighted, name), getattr(written_out, name))
    for share in (0.0, 0.3, 0.5, 0.95, 1.0):
        np.testing.assert_array_equal(weighted.quantile(share), written_out.quantile(share))


def test_runs_that_are_merged_are_as_those_added_one_by_one(traces: list[Any], tmp_path: Path) -> None:
    from gputrace.analysis.comparison import Runs, changes

    one, many = Runs(), Runs()
    for trace in traces:
        one.add(trace)
        part = Runs()
        part.add(trace)
        many.merge(part)
    assert (many.count, list(many.spans)) == (one.count, list(one.spans))
    base = Runs()
    base.add(traces[0])
    assert str(changes(base, many)) == str(changes(base, one))  # which holds NaN
