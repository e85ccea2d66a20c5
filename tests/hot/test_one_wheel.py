"""The compiled part means the same whichever Python's headers it was built with: one wheel serves them all."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

NATIVE = Path(__file__).parents[2] / "gputrace"


@pytest.mark.parametrize(
    "source", sorted(path for end in ("c", "h", "cpp") for path in NATIVE.rglob(f"*.{end}")), ids=lambda path: path.name
)
def test_no_format_has_a_length(source: Path) -> None:
    """Headers of 3.13 leave out what makes "s#" work on 3.11 and 3.12: a call with it fails there."""
    calls = re.findall(
        r"\bPy(?:Arg_(?:Va)?Parse|_(?:Va)?BuildValue|Object_Call(?:Function|Method))\w*\([^;]*", source.read_text()
    )
    assert [call for call in calls if re.search(r'"[^"\n]*[a-z]#', call)] == []
