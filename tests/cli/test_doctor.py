"""`gputrace doctor`, with or without a driver."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from gputrace import hot
from tests.fake_driver import environment
from tests.record.running import GPUTRACE, run

NO_DRIVER = not os.path.exists("/dev/nvidiactl")


def test_for_people(tmp_path: Path) -> None:
    result = run([*GPUTRACE, "doctor", "--seconds", "0.5"], tmp_path)
    assert result.returncode == 0
    assert result.stderr == b""
    shown = result.stdout.decode()
    for text in ("Python", ".pftrace (gputrace.exporters.perfetto:Perfetto)", "anchor bracket", "ppm", "cuda: "):
        assert text in shown


def test_for_programs(tmp_path: Path) -> None:
    found = json.loads(run([*GPUTRACE, "doctor", "--json", "--seconds", "0.5"], tmp_path).stdout)
    (simulated,) = found["backends"]["simulated"]["devices"]
    assert simulated["anchor_bracket_ns"] > 0
    assert abs(simulated["skew_ppm"]) < 1000
    assert simulated["watched_s"] >= 0.5


def test_it_says_which_twin_is_in_use_and_why(tmp_path: Path) -> None:
    found = json.loads(run([*GPUTRACE, "doctor", "--json", "--seconds", "0.1"], tmp_path).stdout)
    assert found["twin"] == {"name": hot.TWIN, "reason": hot.WHY}
    pure = {**os.environ, "GPUTRACE_PURE": "1"}
    shown = run([*GPUTRACE, "doctor", "--seconds", "0.1"], tmp_path, env=pure).stdout.decode()
    assert "twin          pure: GPUTRACE_PURE is set\n" in shown


@pytest.mark.skipif(not NO_DRIVER, reason="has a driver")
def test_without_a_driver_it_says_so(tmp_path: Path) -> None:
    found = json.loads(run([*GPUTRACE, "doctor", "--json", "--seconds", "0.1"], tmp_path).stdout)
    assert found["auto"]["device"] == "host"
    assert "driver" in found["backends"]["cuda"]["problem"]
    assert found["backends"]["cuda"]["devices"] == []


def test_each_gpu_is_watched_in_a_context_of_the_doctors_own(tmp_path: Path) -> None:
    driver = environment(devices=2, skew_ppm=50)
    found = json.loads(run([*GPUTRACE, "doctor", "--json", "--seconds", "0.5"], tmp_path, env=driver).stdout)
    assert found["auto"]["device"] == "cuda"
    gpus = found["backends"]["cuda"]["devices"]
    assert [gpu["ordinal"] for gpu in gpus] == [0, 1]
    for gpu in gpus:
        assert abs(gpu["skew_ppm"] - 50) <= gpu["skew_error_ppm"]


def test_a_gpu_whose_clock_cannot_be_read_leaves_the_other_findings(tmp_path: Path) -> None:
    driver = {**environment(), "FAKE_CUDA_FAIL": "cuEventRecord:1:719:1000000"}
    result = run([*GPUTRACE, "doctor", "--seconds", "0.1"], tmp_path, env=driver)
    assert result.returncode == 0
    assert b"its clock cannot be read" in result.stdout
    assert b"simulated" in result.stdout
