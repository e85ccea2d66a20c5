"""The tests for a real device run on the fake one, so that they are known to run before a device is at hand."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.fake_driver import require
from tests.gpu.device import fake_is_wanted

RUN = Path(__file__).parent / "run.py"


@pytest.mark.slow
def test_the_suite_runs_on_the_fake_driver() -> None:
    require()
    if fake_is_wanted():
        pytest.skip("running on it already")
    done = subprocess.run([sys.executable, RUN, "--fake", "--no-figures"], capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "SKIPPED" not in done.stdout, done.stdout
    assert " passed" in done.stdout, done.stdout
