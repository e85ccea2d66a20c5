"""Everything that wants a real GPU, in under three minutes: the tests, then the figures, then what came of them.

python tests/gpu/run.py            # skips all of it where there is no GPU
python tests/gpu/run.py --fake     # on the fake driver: shows that the tests run, see device.py
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

#: The fake GPU is given a clock that drifts, as real ones do.
FAKE_CLOCK = {"skew_ppm": 20, "wander_ppm": 5, "wander_period_s": 7}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--fake", action="store_true", help="on the fake driver")
    parser.add_argument("--no-figures", action="store_true", help="the tests alone")
    options = parser.parse_args()
    environment = dict(os.environ)
    if options.fake:
        from tests.fake_driver import environment as with_fake
        from tests.gpu.device import FAKE_VARIABLE

        environment = {**with_fake(environment, **FAKE_CLOCK), FAKE_VARIABLE: "1"}
    started = time.monotonic()
    tests = [sys.executable, "-m", "pytest", "-m", "gpu", "-rs", "-p", "no:cacheprovider", "tests/gpu"]
    code = subprocess.run([*tests, "--durations=5"], cwd=ROOT, env=environment).returncode
    outcome = ["tests passed or were skipped" if code == 0 else f"tests FAILED: pytest's exit code is {code}"]
    if not options.no_figures:
        figures = subprocess.run([sys.executable, "-m", "tests.gpu.figures"], cwd=ROOT, env=environment).returncode
        outcome.append("figures FAILED" if figures else "figures done")
        code = code or figures
    print(f"\n{'; '.join(outcome)}; {time.monotonic() - started:.0f} s")
    return code


if __name__ == "__main__":
    sys.exit(main())
