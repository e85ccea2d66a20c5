"""A scheduler is seen as soon as it is imported, whatever else comes and goes in `sys.modules`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.engine import Engine, assert_clean, slices
from tests.hot.twin import ROOT, TWINS, environment

PROGRAM = """
import sys, types
import gputrace
assert "_asyncio" not in sys.modules
dummies = [f"dummy{n}" for n in range(1000)]
sys.modules.update((name, types.ModuleType(name)) for name in dummies)
with gputrace.trace(sys.argv[1], device="host"):
    before = len(sys.modules)
    with gputrace.span("plain"):
        pass
    import asyncio
    while len(sys.modules) > before:
        del sys.modules[dummies.pop()]

    async def work(name):
        manager = gputrace.span(name)
        def enter():
            manager.__enter__()  # from a plain function, as a library's would
        enter()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        manager.__exit__(None, None, None)

    async def main():
        await asyncio.gather(work("one"), work("two"))

    asyncio.run(main())
"""


@pytest.mark.parametrize("twin", TWINS)
def test_as_many_modules_as_before(tmp_path: Path, twin: str) -> None:
    output = tmp_path / "t.pftrace"
    subprocess.run(
        [sys.executable, "-c", PROGRAM, str(output)], check=True, cwd=ROOT, env=environment(twin), timeout=60
    )
    engine = Engine(output)
    assert_clean(engine)
    drawn = {s.name: s for s in slices(engine)}
    assert "tasks" in drawn["one"].track
    assert "tasks" in drawn["two"].track
    assert drawn["one"].depth == drawn["two"].depth == 0
    assert "tasks" not in drawn["plain"].track
