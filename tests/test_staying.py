"""A program that takes gputrace out of `sys.modules` and imports it anew is recorded on, into the same shard."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine import Engine, assert_clean, slices
from tests.hot.twin import TWINS, environment
from tests.record.running import PYTHON, recording, run

PROGRAM = """
import sys
import gputrace
from gputrace.devices.simulated import default_gpu

{begin}
first = default_gpu().stream("main")
with gputrace.span("before", first):
    pass
with gputrace.span("around"):
    for name in [name for name in sys.modules if {purged}]:
        del sys.modules[name]
    import gputrace as anew
    from gputrace import span, trace
    from gputrace.devices.simulated import default_gpu
    assert anew.__spec__.loader.path.endswith("__init__.py"), anew.__spec__
    with anew.span("inside", default_gpu().stream("main")):
        pass
    with gputrace.span("by the old one"), span("by the new one"):
        pass
{end}
"""
PURGED = {"all": "name.startswith('gputrace')", "the core": "name.startswith('gputrace.hot')"}
NAMES = ["before", "before", "around", "inside", "inside", "by the old one", "by the new one"]


def shown(path: Path) -> None:
    engine = Engine(path)
    assert_clean(engine)
    found = slices(engine)
    assert sorted(s.name or "" for s in found) == sorted(NAMES)
    depths = {s.name: s.depth for s in found if "main" not in " ".join(s.track)}
    assert depths == {"before": 0, "around": 0, "inside": 1, "by the old one": 1, "by the new one": 2}
    assert {s.dur >= 0 for s in found} == {True}


@pytest.mark.parametrize("twin", TWINS)
@pytest.mark.parametrize("purged", PURGED)
def test_purged_under_record(tmp_path: Path, purged: str, twin: str) -> None:
    (tmp_path / "my.py").write_text(PROGRAM.format(begin="", end="", purged=PURGED[purged]))
    done = run(recording(PYTHON, "my.py", output="t.pftrace", device="simulated"), tmp_path, env=environment(twin))
    assert done.returncode == 0, done.stderr
    (line,) = done.stderr.decode().splitlines()
    assert " 7 slices, 2 GPU windows, 0 dropped" in line
    shown(tmp_path / "t.pftrace")


@pytest.mark.parametrize("twin", TWINS)
def test_purged_within_a_recording_of_its_own(tmp_path: Path, twin: str) -> None:
    begin = "recording = gputrace.trace('t.pftrace', device='simulated').start()"
    program = PROGRAM.format(begin=begin, end="recording.stop()", purged=PURGED["all"])
    done = run([PYTHON, "-c", program], tmp_path, env=environment(twin))
    assert (done.returncode, done.stderr) == (0, b"")
    shown(tmp_path / "t.pftrace")


def test_what_nobody_records_is_imported_anew(tmp_path: Path) -> None:
    program = f"""
import sys, gputrace
finders = list(sys.meta_path)
with gputrace.trace("t.json", device="host"):
    pass
assert sys.meta_path == finders
for name in [name for name in sys.modules if {PURGED["all"]}]:
    del sys.modules[name]
import gputrace as anew
assert anew is not gputrace and anew.tracer is not gputrace.tracer
"""
    done = run([PYTHON, "-c", program], tmp_path, env=environment(TWINS[-1]))
    assert (done.returncode, done.stderr) == (0, b"")
