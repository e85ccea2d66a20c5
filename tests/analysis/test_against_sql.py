"""Every figure of a summary, against SQL on the real engine: traces of ours in both formats, and of viztracer."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

import gputrace
from gputrace.analysis.summary import Options, Summarizer, Summary
from tests.analysis import sql
from tests.engine import Engine
from tests.record.running import PYTHON, recording, run


class Seen(NamedTuple):
    engine: Engine
    summary: Summary
    trace: gputrace.table.trace.Trace

    @property
    def base_ns(self) -> int:
        """What Chrome's format counts from, and the engine does not know of."""
        first = self.engine.query("select min(ts) first from slice")[0]["first"]
        return int(self.trace.slices.ts_ns[0]) - int(first)


def seen(path: Path) -> Seen:
    trace = gputrace.read(path)
    summarizer = Summarizer(Options(by_step=True, gaps=1000))
    summarizer.add(trace)
    return Seen(Engine(path), summarizer.summary(), trace)


@pytest.fixture(scope="module", params=[".pftrace", ".json"])
def ours(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Seen:
    folder = tmp_path_factory.mktemp("ours")
    path = folder / f"trace{request.param}"
    done = run(recording(PYTHON, "-c", sql.PROGRAM, output=path, device="simulated"), folder)
    assert done.returncode == 0, done.stderr
    return seen(path)


@pytest.fixture(scope="module")
def called(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    return seen(sql.viztracer(tmp_path_factory.mktemp("called")))


def span_figures(summary: Summary) -> list[tuple[object, ...]]:
    return sorted(
        (
            row.name,
            row.side == "gpu",
            row.count,
            row.unfinished,
            row.total_ns,
            row.self_ns,
            row.min_ns,
            row.max_ns,
            *(round(value, 3) for value in (row.mean_ns, row.median_ns, row.p95_ns, row.p99_ns)),
        )
        for row in summary.spans
        if row.total_ns
    )


def test_spans(ours: Seen) -> None:
    found = span_figures(ours.summary)
    assert found == sql.spans(ours.engine)
    assert {"step", "forward", "layer 2", "fetch", "failing"} <= {row[0] for row in found}


def test_spans_of_another_tool(called: Seen) -> None:
    found = span_figures(called.summary)
    assert found == sql.spans(called.engine)
    assert sum(row[2] for row in found if "fib" in str(row[0])) > 100


def test_shares_of_a_row_are_all_of_it(ours: Seen, called: Seen) -> None:
    for each in (ours, called):
        for track in {row.track for row in each.summary.spans}:
            assert sum(row.share for row in each.summary.spans if row.track == track) == pytest.approx(1)


@pytest.mark.parametrize(("by", "of_device"), [("gpu", True), ("label", False)])
def test_devices_and_streams(ours: Seen, by: str, of_device: bool) -> None:
    uses = [use for use in ours.summary.devices if bool(use.stream) != of_device]
    expected = sql.uses(ours.engine, by)
    assert sorted((use.busy_ns, use.windows, use.unfinished) for use in uses) == [
        (busy, n, unfinished) for busy, _, n, unfinished in expected
    ]
    [(_, lasts, _, _)] = sql.uses(ours.engine, "gpu")
    assert {use.busy_ns + use.idle_ns for use in uses} == {lasts}


def test_failed_windows(ours: Seen) -> None:
    # What was abandoned is on the host alone.
    assert {use.stream: use.failed for use in ours.summary.devices} == {"": 1, "main": 1, "copy": 0}


def test_gaps(ours: Seen) -> None:
    found = sorted(
        ((gap.begin_ns - ours.base_ns, gap.duration_ns) for gap in ours.summary.gaps), key=lambda g: (-g[1], g[0])
    )
    assert found == sql.gaps(ours.engine)
    assert found


def test_what_the_host_did_in_each_gap(ours: Seen) -> None:
    told = 0
    for gap in ours.summary.gaps:
        expected = sql.doing(ours.engine, gap.begin_ns - ours.base_ns, gap.end_ns - ours.base_ns)
        assert [each.ns for each in gap.host] == [ns for _, ns in expected[:3]]
        assert {(each.name, each.ns) for each in gap.host} <= set(expected)
        told += len(gap.host)
    assert told


def test_launches(ours: Seen) -> None:
    found = sorted((d.count, d.min_ns, d.max_ns, d.negative) for d in ours.summary.delays)
    assert found == sql.delays(ours.engine)
    assert len(found) == 2


def test_waits(ours: Seen) -> None:
    found = sorted((wait.count, wait.total_ns) for wait in ours.summary.waits)
    assert found == sql.waited(ours.engine, "*ynchronize*")
    assert [count for count, _ in found] == [1, 6]


def test_steps(ours: Seen) -> None:
    found = sorted(
        (step.begin_ns - ours.base_ns, step.duration_ns, step.windows, step.gpu_busy_ns) for step in ours.summary.steps
    )
    assert found == sql.steps(ours.engine)
    assert len(found) == 30
    assert [step.args["number"] for step in ours.summary.steps[:24]] == list(range(24))
    assert sum(step.wait_ns for step in ours.summary.steps) == sum(wait.total_ns for wait in ours.summary.waits)
