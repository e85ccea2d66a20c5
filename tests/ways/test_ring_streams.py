"""A program without standard streams, whose threads write to them just as the ring that outlives a crash is opened."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engine import Engine, assert_clean, slices
from tests.hot.twin import TWINS, environment
from tests.record.running import recording, run

pytestmark = pytest.mark.skipif("compiled" not in TWINS, reason="the pure twin has no ring")

#: Asked for as soon as the ring is open: what a thread of the program does then.
WRITES = """
#define _GNU_SOURCE
#include <sys/vfs.h>
#include <sys/syscall.h>
#include <unistd.h>
int fstatfs(int file, struct statfs *out) {
    for (int stream = 0; stream < 3; stream++) (void)!write(stream, "program", 7);
    return (int)syscall(SYS_fstatfs, file, out);
}
int fstatfs64(int file, struct statfs64 *out) { return fstatfs(file, (struct statfs *)out); }
"""
#: Its collector gets no turn, so all spans stay in the ring, which grows.
PROGRAM = """
import os
import gputrace
from gputrace import collector
collector.Collector.start = lambda self: False
os.closerange(0, 3)
for n in range(9000):
    with gputrace.span("x", n=n):
        pass
os.kill(os.getpid(), 9)
"""


def test_nothing_of_the_program_gets_into_the_ring(tmp_path: Path) -> None:
    (tmp_path / "writes.c").write_text(WRITES)
    compiler = shlex.split(os.environ.get("CC", "cc"))
    subprocess.run([*compiler, "-shared", "-fPIC", "-o", "writes.so", "writes.c"], cwd=tmp_path, check=True)
    command = recording("env", f"LD_PRELOAD={tmp_path}/writes.so", sys.executable, "-c", PROGRAM)
    done = run(command, tmp_path, env=environment("compiled"))
    assert done.returncode == -9, done.stderr
    engine = Engine(tmp_path / "trace.pftrace")
    assert_clean(engine)
    assert [each.args["n"] for each in slices(engine)] == list(range(9000))
