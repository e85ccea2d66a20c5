"""`examples/cuda_streams.py` runs, untraced, and is honest about what it checked."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.fake_driver import environment, require
from tests.fake_driver.isolated import ROOT

EXAMPLE = ROOT / "examples" / "cuda_streams.py"


def test_the_example_on_a_driver_that_runs_no_kernels(tmp_path: Path) -> None:
    require()
    env = environment(counts_file=tmp_path / "counts", kernel_ns=1_000_000, copy_ns=100_000)
    env["PYTHONPATH"] = str(ROOT)
    done = subprocess.run([sys.executable, EXAMPLE], env=env, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first.startswith("Fake GPU 0: 8 chunks")
    assert second == "checked: the copies alone, no kernel runs on this driver"
    counts = (tmp_path / "counts").read_text().splitlines()
    assert {"call,cuLaunchKernel,8", "live,stream,0", "live,event,0", "made,stream,2"} <= {*counts}


def test_the_example_without_a_gpu_says_so_in_one_line() -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}  # nor with a driver is there one then
    done = subprocess.run([sys.executable, EXAMPLE], env=env, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("needs an NVIDIA GPU and its driver: ")
