"""How much a process keeps of what is not written yet: `--max-size`, and `max_size` of `gputrace.trace`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gputrace
from gputrace import tracer
from gputrace.errors import UsageError
from gputrace.record.sizes import LEAST_BYTES, MOST_BYTES, size_in_bytes
from gputrace.shards import ShardFolder
from gputrace.textfiles import read_values, write_values
from tests.engine import Engine, assert_clean, slices
from tests.hot.twin import environment, in_twin
from tests.record.running import GPUTRACE, PYTHON, run

OPENED = 60_000
#: Its collector gets no turn until the end: what fits is kept, and the rest counted.
BURST = f"""
import gputrace
from gputrace import collector
collector.Collector.start = lambda self: False
for n in range({OPENED}):
    with gputrace.span("x", n=n):
        pass
"""


@pytest.mark.parametrize(
    ("written", "bytes_"),
    [
        ("64MB", 64 << 20),
        ("1m", 1 << 20),
        ("1.5 GiB", 3 << 29),
        ("2048k", 2 << 20),
        ("4194304", 4 << 20),
        (1 << 21, 1 << 21),
    ],
)
def test_sizes_as_people_write_them(written: int | str, bytes_: int) -> None:
    assert size_in_bytes(written) == bytes_


@pytest.mark.parametrize("written", ["", "MB", "64 apples", "-1MB", "1e9", "1.2.3MB", "٣MB", "64MBMB", "nan", "64 M B"])
def test_what_is_no_size(written: str) -> None:
    with pytest.raises(UsageError, match="is no size: write it like 64MB"):
        size_in_bytes(written)


@pytest.mark.parametrize("written", ["0", "1023kB", "100", "1025GB", "9" * 400])
def test_what_is_out_of_bounds(written: str) -> None:
    with pytest.raises(UsageError, match="and must be from 1MB to 1024GB"):
        size_in_bytes(written)


@given(st.text() | st.integers() | st.from_regex(r"\A\d{1,9}(\.\d{1,3})? ?[kKmMgG]?i?[bB]?\Z"))
def test_any_text_is_a_size_or_a_usage_error(written: int | str) -> None:
    try:
        assert LEAST_BYTES <= size_in_bytes(written) <= MOST_BYTES
    except UsageError:
        pass


def test_a_bad_size_ends_record_before_the_command_starts(tmp_path: Path) -> None:
    done = run([*GPUTRACE, "record", "--max-size", "lots", "--", PYTHON, "-c", "print('ran')"], tmp_path)
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"--max-size, max_size): 'lots' is no size: write it like 64MB" in done.stderr
    assert os.listdir(tmp_path) == []


def test_a_number_without_a_unit_is_bytes_and_that_is_said(tmp_path: Path) -> None:
    done = run([*GPUTRACE, "record", "--max-size", "10", "--", PYTHON, "-c", "print('ran')"], tmp_path)
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"--max-size, max_size): '10' is 10 bytes (write its unit, like 64MB), and must be from" in done.stderr


def test_a_bad_size_raises_where_recording_starts(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is no size"):
        gputrace.trace(tmp_path / "t.json", "host", max_size="lots").start()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(("asked", "bytes_"), [(None, tracer.RING_BYTES), ("2MB", 2 << 20), (3 << 20, 3 << 20)])
def test_the_tracer_keeps_to_it(tmp_path: Path, asked: Any, bytes_: int) -> None:
    with gputrace.trace(tmp_path / "t.json", "host", max_size=asked):
        running = tracer.current()
        assert running is not None
        assert running.ring_bytes == bytes_


def test_children_are_told(tmp_path: Path) -> None:
    child = "from gputrace import tracer; print(tracer.current().ring_bytes)"
    program = f"import subprocess, sys; {child}; sys.stdout.flush(); subprocess.run([sys.executable, '-c', {child!r}])"
    command = [
        *GPUTRACE,
        "record",
        "--max-size",
        "5MB",
        "-o",
        "t.json",
        "--device",
        "host",
        "--",
        PYTHON,
        "-c",
        program,
    ]
    assert run([*command, "-c", program], tmp_path).stdout == b"%d\n" % (5 << 20) * 2


def test_folders_from_before_it_open(tmp_path: Path) -> None:
    from gputrace.model import Recording

    ShardFolder.create(str(tmp_path), Recording("ab" * 16, 0, 0), ".json", "m:C", "host", ring_bytes=1 << 20)
    assert ShardFolder.open(str(tmp_path)).ring_bytes == 1 << 20
    kept = tmp_path / "recording"
    values = read_values(str(kept))
    del values["ring_bytes"]
    write_values(str(kept), values)
    assert ShardFolder.open(str(tmp_path)).ring_bytes == 0


@in_twin("compiled")
@pytest.mark.parametrize("bound", ["1MB", "2MB"])
def test_spans_beyond_it_are_counted(tmp_path: Path, bound: str) -> None:
    (tmp_path / "program.py").write_text(BURST)
    command = [sys.executable, "-m", "gputrace.cli.main", "record", "--max-size", bound, "-o", "t.pftrace"]
    command += ["--device", "host", "--", sys.executable, "program.py"]
    done = run(command, tmp_path, env=environment("compiled"))
    said = done.stderr.decode()
    assert done.returncode == 0, said
    engine = Engine(tmp_path / "t.pftrace")
    assert_clean(engine)
    kept = sorted(each.args["n"] for each in slices(engine))
    assert kept == list(range(len(kept))), "a hole"
    # A span is two slots of 32 bytes and one for its arg; some pieces are for names and threads.
    fits = size_in_bytes(bound) // 96
    assert 0.75 * fits < len(kept) <= fits
    assert f"{OPENED - len(kept):,} dropped" in said
    assert f"gputrace: {OPENED - len(kept):,} spans came faster than they could be written and found no room: " in said
    assert "--max-size" in said


@in_twin("compiled")
@pytest.mark.parametrize("output", ["t.pftrace", "t.json"])
def test_those_of_a_killed_process_are_counted_too(tmp_path: Path, output: str) -> None:
    """Its last report was made before them: only its ring tells."""
    (tmp_path / "program.py").write_text(BURST + "\nimport os\nos.kill(os.getpid(), 9)\n")
    command = [sys.executable, "-m", "gputrace.cli.main", "record", "--max-size", "1MB", "-o", output]
    done = run(
        [*command, "--device", "host", "--", sys.executable, "program.py"], tmp_path, env=environment("compiled")
    )
    said = done.stderr.decode()
    assert done.returncode == -9, said
    engine = Engine(tmp_path / output)
    assert_clean(engine)
    lost = OPENED - len(slices(engine))
    assert lost > OPENED / 2
    assert f", {lost:,} dropped; 1 process ended without cleaning up" in said
    assert f"gputrace: {lost:,} spans came faster than they could be written" in said
