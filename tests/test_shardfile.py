"""The program's descriptors are the program's: nothing of ours is written to one, and none is taken."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gputrace.shardfile import KEPT_BYTES, ShardFile
from tests.engine import Engine, assert_clean, slices

ROOT = Path(__file__).parents[1]

CLOSES_ALL = """
import os, sys, time
import gputrace
from gputrace import tracer

def written():
    size = os.stat(tracer.current().folder.shard_path(tracer.current().number)).st_size
    deadline = time.monotonic() + 20
    while os.stat(tracer.current().folder.shard_path(tracer.current().number)).st_size == size:
        assert time.monotonic() < deadline
        with gputrace.span("waiting"):
            time.sleep(0.01)

with gputrace.span("before"):
    pass
written()
os.closerange(3, 1000)
own = [open(f"{sys.argv[1]}/{number}", "w+") for number in range(20)]
for file in own:
    file.write("hello\\n")
    file.flush()
with gputrace.span("after"):
    pass
written()
"""


def record(output: Path, program: str, *args: str, shell: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gputrace.cli.main", "record", "--device", "host", "-o", str(output), "--"]
    command += [sys.executable, "-c", program, *args]
    if shell:
        command = ["sh", "-c", f'exec "$@" {shell}', "sh", *command]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, cwd=ROOT)


@pytest.mark.parametrize("suffix", [".pftrace", ".json"])
def test_a_program_that_closes_every_descriptor(tmp_path: Path, suffix: str) -> None:
    output = tmp_path / f"t{suffix}"
    own = tmp_path / "own"
    own.mkdir()
    done = record(output, CLOSES_ALL, str(own))
    assert done.returncode == 0, done.stderr
    assert {path.read_text() for path in own.iterdir()} == {"hello\n"}
    engine = Engine(output)
    assert_clean(engine)
    names = [each.name for each in slices(engine)]
    assert names.count("before") == names.count("after") == 1


STDIO = """
import errno, os, sys, time
import gputrace
from gputrace import tracer

deadline = time.monotonic() + 20
with gputrace.span("x"):
    path = tracer.current().folder.shard_path(tracer.current().number)
    while not os.stat(path).st_size:
        assert time.monotonic() < deadline
        time.sleep(0.01)
for number in range(200):
    for standard in map(int, sys.argv[1]):
        try:
            os.write(standard, b"said".upper() * 3)  # to nobody, or to the null device in our files' way
        except OSError as error:
            assert error.errno == errno.EBADF
    with gputrace.span("y"):
        time.sleep(0.001)
"""


@pytest.mark.parametrize(("closed", "shell"), [("2", "2>&-"), ("01", "<&- >&-"), ("012", "<&- >&- 2>&-")])
def test_a_program_without_standard_streams(tmp_path: Path, closed: str, shell: str) -> None:
    output = tmp_path / "t.json"
    record(output, STDIO, closed, shell=shell)
    assert b"SAIDSAID" not in output.read_bytes()
    engine = Engine(output)
    assert_clean(engine)
    assert [each.name for each in slices(engine)] == ["x"] + ["y"] * 200


def test_memory_is_bounded_and_order_kept(tmp_path: Path) -> None:
    path = tmp_path / "0.shard"
    path.touch()
    file = ShardFile(str(path))
    meant = b""
    for number in range(200):
        data = bytes([number]) * 5000
        meant += data
        assert file.write(data) == 5000
        assert len(meant) - path.stat().st_size <= KEPT_BYTES + 5000
    file.close()
    file.close()
    assert path.read_bytes() == meant
    with pytest.raises(ValueError, match="closed"):
        file.write(b"x")


def test_it_makes_no_file(tmp_path: Path) -> None:
    """A folder that is gone stays gone, and a link is not followed."""
    file = ShardFile(str(tmp_path / "gone" / "0.shard"))
    file.write(b"x")
    with pytest.raises(FileNotFoundError):
        file.flush()
    (tmp_path / "elsewhere").touch()
    os.symlink(tmp_path / "elsewhere", tmp_path / "1.shard")
    file = ShardFile(str(tmp_path / "1.shard"))
    file.write(b"x")
    with pytest.raises(OSError, match="symbolic"):
        file.flush()
