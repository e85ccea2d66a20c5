"""A program written for the nvtx package shows its ranges without a change, and runs as it would without us."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.engine import Engine, assert_clean, slices
from tests.hot.twin import TWINS, environment
from tests.record.running import recording

#: All that the package offers, by every road to it.
PROGRAM = """
import threading
import nvtx
from nvtx import annotate, push_range, pop_range

@annotate(color="red", domain="data", category="io")
def load(n):
    return n if not n else load(n - 1)

@nvtx.annotate("named", payload=2)
def named():
    return "named"

def items():
    with nvtx.annotate("in a generator"):
        yield 1
        yield 2

@nvtx.annotate("bad")
def bad():
    raise ValueError("the program's own")

with nvtx.annotate("block", category=7):
    assert load(1) == 0
    assert named() == "named"
first = items()
next(first)
with annotate("while it waits"):
    pass
assert list(first) == [2]
try:
    bad()
except ValueError:
    pass
kept = nvtx.annotate("kept")
with kept, kept:
    pass

push_range("pushed", domain="a")
nvtx.push_range("inner", color="green")
nvtx.mark("mark", payload=0.5)
nvtx.pop_range()
pop_range(domain="a")
nvtx.pop_range()  # one too many

one = nvtx.start_range("one")
two = nvtx.start_range("two", domain="a")
nvtx.end_range(one)
thread = threading.Thread(target=nvtx.end_range, args=(two,))
thread.start()
thread.join()

domain = nvtx.get_domain("objects")
assert domain is nvtx.get_domain("objects")
attributes = domain.get_event_attributes(message="first", category=domain.get_category_id("phase"))
for name in ("first", "second"):
    domain.set_event_attributes(attributes, message=domain.get_registered_string(name))
    domain.push_range(attributes)
    domain.mark(message=name + " mark")
    domain.pop_range()
started = domain.start_range(attributes)
domain.end_range(started)
print(load.__name__, nvtx.push_range.__name__, isinstance(kept, nvtx.annotate), type(domain.get_timestamp()).__name__)
"""
DATA = {"color": "red", "domain": "data", "category": "io"}
FIRST = {"domain": "objects", "category": "phase"}
#: Name, args, and the slice that it lies in.
EXPECTED = [
    ("bad", {"error": "ValueError"}, None),
    ("block", {"category": 7}, None),
    ("first", FIRST, None),
    ("first mark", {"domain": "objects"}, "first"),
    ("in a generator", {}, None),
    ("inner", {"color": "green"}, "pushed"),
    ("kept", {}, "kept"),
    ("kept", {}, None),
    ("load", DATA, "block"),
    ("load", DATA, "load"),
    ("mark", {"payload": 0.5}, "inner"),
    ("named", {"payload": 2}, "block"),
    ("one", {}, None),
    ("pushed", {"domain": "a"}, None),
    ("second", FIRST, None),
    ("second", FIRST, None),  # as a range that was started
    ("second mark", {"domain": "objects"}, "second"),
    ("two", {"domain": "a"}, None),
    ("while it waits", {}, None),
]

FAULTY = """
import nvtx
from gputrace import hot
def broken(*args, **kwargs):
    raise LookupError("a fault of ours")
hot.span = hot.instant = hot.window = broken
print(nvtx.push_range("a"), nvtx.pop_range(), nvtx.mark("b"))
nvtx.end_range(nvtx.start_range("c"))
with nvtx.annotate("d"):
    pass
domain = nvtx.get_domain("e")
domain.push_range(domain.get_event_attributes("f"))
domain.end_range(domain.start_range(message="g"))
domain.pop_range()
@nvtx.annotate()
def f():
    return 1
assert f() == 1
print("unharmed")
"""


def run(path: Path, program: str, suffix: str = ".pftrace", twin: str = "pure") -> subprocess.CompletedProcess[bytes]:
    command = recording(sys.executable, "-c", program, output=path / f"t{suffix}")
    return subprocess.run(command, capture_output=True, env=environment(twin), cwd=path, timeout=60)


@pytest.mark.parametrize("suffix", [".pftrace", ".json"])
@pytest.mark.parametrize("twin", TWINS)
def test_every_range_is_there_with_what_it_was_given(tmp_path: Path, suffix: str, twin: str) -> None:
    plain = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True)
    assert plain.returncode == 0, plain.stderr
    done = run(tmp_path, PROGRAM, suffix, twin)
    assert done.returncode == 0, done.stderr
    assert done.stdout == plain.stdout
    engine = Engine(tmp_path / f"t{suffix}")
    assert_clean(engine)
    found = slices(engine)
    drawn = []
    for each in found:
        inside = [
            other.name
            for other in found
            if (other.track_id, other.depth) == (each.track_id, each.depth - 1)
            and other.ts <= each.ts
            and each.ts + each.dur <= other.ts + other.dur
        ]
        drawn.append((each.name, each.args, inside[-1] if inside else None))
    assert sorted(drawn, key=str) == sorted(EXPECTED, key=str)
    assert all(each.dur >= 0 for each in found)


def test_it_can_be_left_out(tmp_path: Path) -> None:
    command = recording(sys.executable, "-c", "import nvtx\nwith nvtx.annotate('x'): pass", output=tmp_path / "t.json")
    done = subprocess.run([*command[:4], "--no-instrument", "nvtx", *command[4:]], capture_output=True, cwd=tmp_path)
    assert done.returncode == 0
    assert b"nothing was traced" in done.stderr


def test_ranges_that_the_user_switched_off_stay_off(tmp_path: Path) -> None:
    done = run(tmp_path, "import os\nos.environ['NVTX_DISABLE'] = '1'\nimport nvtx\nwith nvtx.annotate('x'): pass")
    assert done.returncode == 0
    assert b"nothing was traced" in done.stderr


@pytest.mark.parametrize("twin", TWINS)
def test_a_fault_of_ours_ends_the_patch_and_not_the_program(tmp_path: Path, twin: str) -> None:
    done = run(tmp_path, "import gputrace\nwith gputrace.span('x'): pass\n" + FAULTY, twin=twin)
    assert done.stdout == b"None None None\nunharmed\n", done.stderr
    assert done.returncode == 0
    assert done.stderr.count(b"nvtx.ranges does not work here and was switched off") == 1


def test_what_was_taken_before_a_recording_ends_works_after_it(tmp_path: Path) -> None:
    program = """
import gputrace, nvtx
with gputrace.trace("inside.pftrace", device="host"):
    from nvtx import push_range, pop_range, start_range, end_range, get_domain
    held, domain = start_range("held"), get_domain("d")
    attributes = domain.get_event_attributes("a")
for _ in range(2):
    push_range("x"); pop_range(); end_range(held); end_range(start_range("y"))
    domain.push_range(attributes); domain.pop_range(); domain.end_range(domain.start_range(attributes))
assert nvtx.push_range is not push_range
with nvtx.annotate("z"):
    print("on")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, cwd=tmp_path, timeout=60)
    assert (done.returncode, done.stdout) == (0, b"on\n"), done.stderr
    assert [each.name for each in slices(Engine(tmp_path / "inside.pftrace"))] == ["held"]
