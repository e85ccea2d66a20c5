"""`examples/tune.py`: a candidate that fails cannot win, nor one whose window cannot be read."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[1] / "examples" / "tune.py"


def test_the_failing_candidates_do_not_win() -> None:
    done = subprocess.run([sys.executable, EXAMPLE], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    rows = {line[2:6].strip(): line for line in done.stdout.splitlines() if line[2:6].strip().isdigit()}
    assert list(rows) == ["8", "16", "32", "64", "128", "256"]
    assert "3,600,000,000.0" in rows["16"]
    assert "device lost" in rows["16"]
    assert "failed" in rows["128"]
    assert "shared memory" in rows["256"]
    (winner,) = (tile for tile, line in rows.items() if line.startswith("*"))
    assert winner in ("8", "32", "64")
    assert done.stdout.rstrip().endswith(f"use tiles of {winner}")
