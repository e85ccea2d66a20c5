"""Tests that need the real PyTorch, which is too large for every test environment: asked for by `GPUTRACE_TORCH=1`.

CI asks, in an environment of its own. Once asked for, a torch that is missing is a failure.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

collect_ignore_glob = [] if os.environ.get("GPUTRACE_TORCH") == "1" else ["test_*.py"]


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where what is built for the installed torch goes: once a session."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("cache")
        patch.setenv("XDG_CACHE_HOME", str(folder))
        yield folder
