"""What a test does without a tool that it needs: it is skipped, but in CI, which installs them all, it fails."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest


def missing(what: str) -> NoReturn:
    """``what`` is missing, and how to get it."""
    if os.environ.get("CI") == "true":
        pytest.fail(what, pytrace=False)
    pytest.skip(what)
