"""A third party's format: a package of its own, found by entry point, written through the model alone."""

from __future__ import annotations

from importlib.metadata import entry_points
from pathlib import Path

import pytest

from gputrace.model import BEGIN, END, Exporter
from gputrace.record import formats
from tests.exporters.recordings import RECORDING, Script, join

#: Put on sys.path, this folder is an installed distribution: a module and its metadata with the entry point.
FOLDER = Path(__file__).with_name("third_party")


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(FOLDER)


@pytest.mark.usefixtures("installed")
def test_it_is_found_and_writes_a_trace() -> None:
    [point] = entry_points(group="gputrace.exporters", name="lines")
    lines: type[Exporter] = point.load()
    script = Script()
    script.add(script.thread(), (1, BEGIN, "x"), (2, END))
    shard = script.shard(lines)
    assert join(lines, [shard, shard + b"4242 1 3 1 'to"]).decode().splitlines() == [
        f"# gputrace {RECORDING.id}",
        *["4242 1 is thread 'MainThread'", "4242 1 1 1 'x'", "4242 1 2 2 None"] * 2,
        "# end",
    ]


@pytest.mark.usefixtures("installed")
def test_an_output_named_by_its_suffix_gets_it() -> None:
    found = formats.of_output("trace.lines.gz")
    assert (found.suffix, found.exporter, found.gzip) == (".lines", "gputrace_lines:Lines", True)
    assert formats.load(found.exporter).__name__ == "Lines"
