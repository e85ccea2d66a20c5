"""An extension that was built from other sources than these is told, and the pure twin does the work."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

from gputrace.hot import compiled
from tests.hot.twin import in_twin

ROOT = Path(__file__).parents[2]
#: What `_hot.pyi` is, by the number in compiled.py and hot.h: a new number for a new text.
STUB = {6: "1e6aff17e1bd9b5b"}

PROGRAM = """
import sys
{}
import gputrace
from gputrace import hot
with gputrace.span("a"):
    pass
print(hot.TWIN, hot.WHY)
"""
OLDER = "import gputrace.hot._hot as old; old.INTERFACE = {}"
WITHOUT = "import gputrace.hot._hot as old; del old.INTERFACE"


def test_a_new_interface_has_a_new_number() -> None:
    digest = hashlib.sha256((ROOT / "gputrace/hot/_hot.pyi").read_bytes()).hexdigest()[:16]
    assert {compiled.INTERFACE: digest} == STUB, "count INTERFACE up, in compiled.py and hot.h, and note it here"


@in_twin("compiled")
@pytest.mark.parametrize("change", [OLDER.format(0), OLDER.format(1000), WITHOUT])
def test_another_extension_is_not_used(change: str) -> None:
    # The package is imported on the way to its extension, so the choice is made anew.
    again = (
        "\nfor name in [name for name in sys.modules if name.startswith('gputrace') and name != 'gputrace.hot._hot']:"
    )
    again += "\n    del sys.modules[name]"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(change + again)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("pure the compiled part does not work here"), done.stdout + done.stderr
    assert "install gputrace anew" in done.stdout
