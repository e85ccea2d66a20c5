"""Real Chromium, for what a browser alone can say."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from typing import Any

from tests.missing import missing


@contextlib.contextmanager
def launched(*flags: str) -> Iterator[Any]:
    """A browser of playwright's; skips where there is none, and fails in CI."""
    executable = shutil.which("chromium") or shutil.which("google-chrome")
    if executable is None:
        missing("Chromium is not here: apt install chromium")
    from playwright.sync_api import sync_playwright

    always = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    with sync_playwright() as running:
        browser = running.chromium.launch(executable_path=executable, args=[*always, *flags])
        yield browser
        browser.close()
