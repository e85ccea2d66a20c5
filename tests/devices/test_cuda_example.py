"""`examples/cuda_streams.py` runs, untraced, and is honest about what it checked."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.fake_driver import environment, require
from tests.fake_driver.isolated import ROOT


def test_the_example_on_a_driver_that_runs_no_kernels(tmp_path: Path) -> None:
    require()
    env = environment(counts_file=tmp_path / "counts", kernel_ns=1_000_000, copy_ns=100_000)
    env["PYTHONPATH"] = str(ROOT)
    program = ROOT / "examples" / "cuda_streams.py"
    done = subprocess.run([sys.executable, program], env=env, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first.startswith("Fake GPU 0: 8 chunks")
    assert second == "checked: the copies alone, no kernel runs on this driver"
    counts = (tmp_path / "counts").read_text().splitlines()
    assert {"call,cuLaunchKernel,8", "live,stream,0", "live,event,0", "made,stream,2"} <= {*counts}
