"""`--capture-range nvtx:NAME`: what is inside ranges of that name is recorded, by every road to them, and no more."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.engine import Engine, assert_clean, slices
from tests.hot.twin import TWINS, environment
from tests.record.running import recording, run

PROGRAM = """
import threading
import gputrace, nvtx

def mark(name):
    with gputrace.span(name):
        pass

mark("before")
with nvtx.annotate("part", color="red"):
    mark("in a block")
    with nvtx.annotate("part"):
        mark("deeper")
    mark("behind the deeper one")
mark("between")

@nvtx.annotate("part")
def work():
    mark("in a function")
    return 1

@nvtx.annotate()
def part():
    mark("in a function of that name")

work(), part()
mark("between")
try:
    with nvtx.annotate("part"):
        raise LookupError
except LookupError:
    mark("after an error")

nvtx.push_range("other")
nvtx.push_range("part")
mark("pushed")
nvtx.pop_range()
mark("popped")
nvtx.pop_range()
nvtx.pop_range()

domain = nvtx.get_domain("d")
domain.push_range(domain.get_event_attributes("part"))
mark("pushed in a domain")
domain.pop_range()
mark("popped")

# Opened on two threads at once, closed on a third.
opened = [nvtx.start_range("part")]
thread = threading.Thread(target=lambda: [opened.append(nvtx.start_range("part")), mark("on a thread")])
thread.start(), thread.join()
nvtx.end_range(opened[0])
nvtx.end_range(opened[0])
mark("one is still open")
thread = threading.Thread(target=nvtx.end_range, args=(opened[1],))
thread.start(), thread.join()
mark("none is open")
with nvtx.annotate("part"):
    mark("again")
"""
EXPECTED = [
    *("part", "in a block", "part", "deeper", "behind the deeper one"),
    *("part", "in a function", "part", "in a function of that name", "part"),
    *("part", "pushed", "part", "pushed in a domain"),
    *("part", "part", "on a thread", "one is still open", "part", "again"),
]


@pytest.mark.parametrize("twin", TWINS)
def test_what_is_inside_ranges_of_that_name(tmp_path: Path, twin: str) -> None:
    command = recording(sys.executable, "-c", PROGRAM, output="t.pftrace")
    done = run([*command[:4], "--capture-range", "nvtx:part", *command[4:]], tmp_path, env=environment(twin))
    assert done.returncode == 0, done.stderr
    engine = Engine(tmp_path / "t.pftrace")
    assert_clean(engine)
    assert sorted(each.name for each in slices(engine)) == sorted(EXPECTED)


def test_a_program_that_never_comes_to_one_is_told(tmp_path: Path) -> None:
    command = recording(sys.executable, "-c", PROGRAM, output="t.pftrace")
    done = run([*command[:4], "--capture-range", "nvtx:elsewhere", *command[4:]], tmp_path)
    assert done.returncode == 0
    assert "a process came to no range that --capture-range nvtx:elsewhere asks for" in done.stderr.decode()


@pytest.mark.parametrize(
    ("asked", "left_out", "refused"),
    [
        (
            "nvtx:part",
            "nvtx torch",
            "--capture-range nvtx:part is seen by nvtx.ranges and torch.ranges, which you left out",
        ),
        ("cuda-profiler", "torch.cuda", "--capture-range cuda-profiler is seen by torch.cuda, which you left out"),
    ],
)
def test_what_sees_them_must_not_be_left_out(tmp_path: Path, asked: str, left_out: str, refused: str) -> None:
    command = recording(sys.executable, "-c", PROGRAM, output="t.pftrace")
    options = ["--capture-range", asked, "--no-instrument", left_out]
    done = run([*command[:4], *options, *command[4:]], tmp_path)
    assert done.returncode == 2
    assert refused in done.stderr.decode()
