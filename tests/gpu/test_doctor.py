"""`gputrace doctor` on a machine with a GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.gpu.device import GPU

ROOT = Path(__file__).parents[2]
DOCTOR = [sys.executable, "-m", "gputrace.cli.main", "doctor", "--seconds", "1"]


def test_the_doctor_finds_the_gpu_and_its_clock(gpu: GPU) -> None:
    done = subprocess.run([*DOCTOR, "--json"], cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["auto"]["device"] == "cuda"
    first = found["backends"]["cuda"]["devices"][0]
    assert first["name"] == gpu.name
    assert "problem" not in first
    assert 0 < first["anchor_bracket_ns"] < 1_000_000
    assert abs(first["skew_ppm"]) < 1000
    assert 0 < first["skew_error_ppm"] < 1000


def test_the_doctor_speaks(gpu: GPU) -> None:
    done = subprocess.run(DOCTOR, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert gpu.name in done.stdout
    assert "anchor bracket" in done.stdout
