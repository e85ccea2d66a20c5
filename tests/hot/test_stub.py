"""`_hot.pyi` says what the compiled part really is: mypy compares them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.hot.twin import in_twin

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@in_twin("compiled")
def test_the_stub_is_as_the_module() -> None:
    # It compares what C says of itself: names, kinds, and the signatures of what has one.
    command = [sys.executable, "-m", "mypy.stubtest", "--concise", "--mypy-config-file", "pyproject.toml"]
    done = subprocess.run([*command, "gputrace.hot._hot"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
