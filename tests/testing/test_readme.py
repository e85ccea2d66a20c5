"""What the README says of pytest, done as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

from tests.testing.running import outcomes, read, run_pytest

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")


def test_its_test_is_recorded_and_held_to_its_baseline(tmp_path: Path) -> None:
    first, *snippets = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    [snippet] = [each for each in snippets if "gpu_time" in each]
    (tmp_path / "test_forward.py").write_text(first + snippet)
    [record] = re.findall(r"^pytest (--gputrace .*)$", README, re.MULTILINE)
    [update] = re.findall(r"^pytest (--gputrace-update-baselines)\b", README, re.MULTILINE)
    options = ["--gputrace-device", "simulated"]
    # 0.3 ms of a machine that is busy otherwise may be too uncertain, and is then not written: both are as it says.
    done = run_pytest(tmp_path, update, *options)
    written = (tmp_path / "gputrace_baselines.json").exists()
    assert written == (done.returncode == 0)
    assert written or b"too uncertain" in done.stdout
    done = run_pytest(tmp_path, *record.split(), *options)
    found = read(tmp_path / "trace.pftrace")
    [outcome] = outcomes(found).values()
    assert outcome == ("failed" if done.returncode else "passed")
    assert any(each.track[0].startswith("pytest gw") for each in found)
