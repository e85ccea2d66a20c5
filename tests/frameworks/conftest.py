"""Tests that need the real Triton, Numba, CuPy and JAX, too large for every test environment: `GPUTRACE_FRAMEWORKS=1`.

CI asks, in an environment of its own. Once asked for, one that is missing is a failure.
"""

import os

collect_ignore_glob = [] if os.environ.get("GPUTRACE_FRAMEWORKS") == "1" else ["test_*.py"]
