"""A trace processor beside this process: it answers as the one inside does, and whatever it does wrong is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from gputrace.errors import EngineError, InputError, QueryError
from gputrace.sql.native import NativeMachine
from gputrace.sql.wire import PIECE_BYTES, Engine, Result
from tests.exporters.test_engine import trace
from tests.sql.shell import make_program, make_shell


def test_it_answers(tmp_path: Path) -> None:
    # More than a pipe holds, so that neither side may wait for the other to read.
    data = trace("x" * PIECE_BYTES)
    with Engine(NativeMachine(str(make_shell(tmp_path))), [data[:10], data[10:]]) as engine:
        assert engine.query("select length(name), dur from slice") == Result(
            ["length(name)", "dur"], [(PIECE_BYTES, 1)]
        )
        with pytest.raises(QueryError, match="no such table: nowhere"):
            engine.query("select * from nowhere")
        assert engine.query("select 1 as a where 0") == Result(["a"], [])
        many = engine.query(
            "with recursive n(i) as (select 0 union all select i + 1 from n where i < 99999) select i from n"
        )
        assert many.rows == [(i,) for i in range(100_000)]


def test_it_ends_with_its_reader(tmp_path: Path) -> None:
    machine = NativeMachine(str(make_shell(tmp_path)))
    Engine(machine, [trace("a")]).close()
    assert machine._process.returncode == 0


def test_no_trace(tmp_path: Path) -> None:
    machine = NativeMachine(str(make_shell(tmp_path)))
    with pytest.raises(InputError, match=r"x\.txt: .*Unknown trace type"):
        Engine(machine, [b"nothing that it knows"], "x.txt")
    machine.close()


@pytest.mark.parametrize(
    ("program", "told"),
    [
        ("#!/bin/sh\necho first >&2; echo unknown option >&2; exit 3", "exit status 3: unknown option"),
        ("#!/bin/sh\nread x; kill -SEGV $$", "signal 11"),
        ("#!/bin/sh\nprintf '\\012\\377\\001half'", "exit status 0"),
        ("#!/nowhere/at/all", "cannot be started: No such file"),
    ],
)
def test_one_that_is_none(tmp_path: Path, program: str, told: str) -> None:
    path = make_program(tmp_path / "tp", program + "\n")
    with pytest.raises(EngineError, match=told):
        Engine(NativeMachine(str(path)), [b"{}"])


def test_one_that_says_nothing(tmp_path: Path) -> None:
    machine = NativeMachine(str(make_program(tmp_path / "tp", "#!/bin/sh\nexec sleep 1000\n")), start_timeout_s=0.2)
    with pytest.raises(EngineError, match=r"did not answer within 0\.2 s"):
        Engine(machine, [b"{}"])
    machine.close()
