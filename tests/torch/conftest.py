"""Tests that need the real PyTorch, which is too large for every test environment: asked for by `GPUTRACE_TORCH=1`.

CI asks, in an environment of its own. Once asked for, a torch that is missing is a failure.
"""

import os

collect_ignore_glob = [] if os.environ.get("GPUTRACE_TORCH") == "1" else ["test_*.py"]
