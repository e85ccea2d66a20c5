"""Calls shorter than asked leave no slice, and all else is as if they had not been: any tree, in both twins, in ns."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gputrace
from gputrace import instrument, tracer
from tests.engine import Engine, assert_clean, slices
from tests.hot import callees
from tests.hot.called import KINDS, Acts, Model, Shown
from tests.hot.programs import ORIGIN_NS, Step, run
from tests.hot.test_twins import same, steps
from tests.hot.twin import BUILT, TWINS, in_twin

#: Of most trees some calls are just too short, and some just long enough.
MICROSECONDS = st.sampled_from([0, 0, 0, 1, 2, 5, 8, 10, 40])
BARE = {"instant", "counter", "cycle"}
TREES = st.recursive(
    st.builds(lambda kind, us: (kind, us, (), 0), st.sampled_from(KINDS), MICROSECONDS),
    lambda inner: st.builds(
        lambda kind, before, trees, after: (kind, before, tuple(trees), after),
        st.sampled_from([kind for kind in KINDS if kind not in BARE]),
        MICROSECONDS,
        st.lists(inner, max_size=4),
        MICROSECONDS,
    ),
    max_leaves=20,
)


def shown(twin: str, program: list[Step]) -> tuple[list[Shown], dict[str, Any]]:
    """What is drawn, from the first slice's begin on, and what was counted."""
    outcome = run(twin, program)
    assert outcome.error == ""
    engine = Engine(outcome.shard)
    assert_clean(engine)
    drawn = [each for each in slices(engine) if each.name != "instant"]
    drawn.sort(key=lambda each: (each.ts, each.depth))
    return [Shown(each.name.rpartition(".")[2], each.ts, each.dur, each.depth) for each in drawn], outcome.report


def since_first(found: list[Shown]) -> list[Shown]:
    return [each._replace(ts_ns=each.ts_ns - found[0].ts_ns) for each in found]


@pytest.mark.parametrize("twin", TWINS)
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(tree=TREES)
def test_any_tree_shows_what_is_long_enough_or_holds_a_record(twin: str, tree: Any) -> None:
    model = Model(ORIGIN_NS)
    model.walk(tree)
    drawn, report = shown(twin, [("calls", 0, 0, 0, tree)])
    assert since_first(drawn) == since_first(model.shown)
    assert report["short_calls"] == model.left_out
    assert (report["unfinished"], report["out_of_order"], report["clamped"], report["dropped"]) == (0, 0, 0, 0)


@pytest.mark.skipif(not BUILT, reason="there is one twin here")
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    steps,
    st.lists(st.tuples(st.just("calls"), st.integers(0, 2), st.just(0), st.just(0), TREES), max_size=4),
    st.data(),
)
def test_both_twins_write_the_same_of_calls_in_any_program(program: Any, calls: Any, data: Any) -> None:
    for step in calls:
        program.insert(data.draw(st.integers(0, len(program))), step)
    same(program, ".pftrace")


class Waits(Acts):
    """Begins nothing more until a slice is drawn."""

    def pass_us(self, us: int) -> None: ...

    def walk(self, tree: Any) -> None:
        until = time.monotonic() + 30
        while not tracer.current().report()["slices"]:
            assert time.monotonic() < until, "the call is not drawn, however long it lasts"
            time.sleep(0.01)


def is_drawn_while_it_runs(tmp_path: Path) -> None:
    """As a process that is killed in it shows: the collector looks at the clock, not at the call's end."""
    with gputrace.trace(tmp_path / "a.pftrace", "host", instrument=False) as recording:
        options = {"python_include": callees.__name__, "python_min_ns": 1_000_000}
        instrument.start(["python.calls"], lambda text: pytest.fail(text), options)
        callees.call(("call", 0, ((),), 0), Waits())
    assert recording.summary.slices == 1


@in_twin("pure")
def test_a_long_call_is_drawn_while_it_runs_in_pure(tmp_path: Path) -> None:
    is_drawn_while_it_runs(tmp_path)


@in_twin("compiled")
def test_a_long_call_is_drawn_while_it_runs_compiled(tmp_path: Path) -> None:
    is_drawn_while_it_runs(tmp_path)
