"""Counters of a process that was killed: a row each, with what was written and what was taken from its ring."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gputrace import hot
from tests.engine import Engine, assert_clean, counters

PROGRAM = """
import glob, os, time
import gputrace

def give(first, last):
    for n in range(first, last):
        gputrace.counter("loss", n)
        gputrace.counter("queued", n, "bytes")

give(0, 10)
shards = os.environ["GPUTRACE_RECORD"] + "/*.shard"
deadline = time.monotonic() + 30
while not any(b"queued" in open(path, "rb").read() for path in glob.glob(shards)):
    assert time.monotonic() < deadline
    time.sleep(0.01)
give(10, 20)
os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("suffix", [".pftrace", ".json"])
def test_a_row_each(tmp_path: Path, suffix: str) -> None:
    output = f"t{suffix}"
    command = [sys.executable, "-m", "gputrace.cli.main", "record", "--device", "host", "-o", output, "--"]
    root = str(Path(__file__).parents[2])
    done = subprocess.run(
        [*command, sys.executable, "-c", PROGRAM],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": root},
        capture_output=True,
        timeout=60,
    )
    assert done.returncode == -9, done.stderr
    engine = Engine(tmp_path / output)
    assert_clean(engine)
    rows = engine.query("select id from counter_track")
    assert len(rows) == 2
    for samples in counters(engine).values():
        values = [value for _, value in samples]
        assert values == list(range(20 if hot.TWIN == "compiled" else len(values)))
        assert len(values) >= 10
