"""A format of someone else's: found by entry point, recorded into, and not to be trusted."""

from __future__ import annotations

import os
import textwrap
from pathlib import Path

import pytest

from tests.record.running import GPUTRACE, ONE_SPAN, PYTHON, left_behind, recording, run

EXPORTER = """
from gputrace.model import Exporter

class Lines(Exporter):
    def __init__(self, file, recording, process):
        self.file = file

    @classmethod
    def header(cls, recording, snapshots, metadata):
        return b"device %s\\n" % metadata["device"].encode()

    @classmethod
    def whole(cls, shard):
        return shard.read().rfind(b"\\n") + 1

    def open_track(self, track):
        pass

    def write(self, track, edges):
        for edge in edges:
            if edge[2] is not None:
                self.file.write(str(edge[2]).encode() + b"\\n")

    def flush(self):
        pass

    def close(self):
        pass

class Failing(Lines):
    def write(self, track, edges):
        raise RuntimeError("cannot write this")
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """One with a distribution installed that adds two formats and a broken one."""
    folder = tmp_path / "installed"
    facts = folder / "their_format-1.0.dist-info"
    facts.mkdir(parents=True)
    (folder / "their_format.py").write_text(textwrap.dedent(EXPORTER))
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: their-format\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text(
        "[gputrace.exporters]\nlines = their_format:Lines\nfailing = their_format:Failing\ngone = no.such:Class\n"
    )
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": path}


def test_it_is_found_by_its_suffix(tmp_path: Path, environment: dict[str, str]) -> None:
    result = run(recording(PYTHON, "-c", ONE_SPAN, output="trace.lines"), tmp_path, env=environment)
    assert result.stdout == b"done\n"
    assert b"wrote trace.lines" in result.stderr
    assert b"ui.perfetto.dev" not in result.stderr
    assert (tmp_path / "trace.lines").read_text() == "device host\nwork\n"


def test_it_is_listed(tmp_path: Path, environment: dict[str, str]) -> None:
    result = run(recording("true", output="trace.foo"), tmp_path, env=environment)
    assert b".pftrace, .json, .failing, .gone, .lines" in result.stderr


def test_one_that_cannot_be_imported_is_refused_before_the_command_starts(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    result = run(recording("touch", "ran", output="trace.gone"), tmp_path, env=environment)
    assert result.returncode == 2
    assert b"the exporter no.such:Class cannot be loaded: ModuleNotFoundError" in result.stderr
    assert not (tmp_path / "ran").exists()


def test_one_that_fails_stops_the_tracing_and_not_the_program(tmp_path: Path, environment: dict[str, str]) -> None:
    program = f"""
{ONE_SPAN}
import time
for _ in range(9):
    time.sleep(0.05)
    with gputrace.span("more"):
        pass
"""
    result = run(recording(PYTHON, "-c", program, output="trace.failing"), tmp_path, env=environment)
    assert result.returncode == 0
    assert result.stdout == b"done\n"
    assert result.stderr.count(b"cannot write this") == 1
    assert b"Traceback" not in result.stderr
    assert left_behind(tmp_path) == []


def test_its_folder_can_be_recovered_like_any(tmp_path: Path, environment: dict[str, str]) -> None:
    program = ONE_SPAN + "\nimport os; os.mkdir('trace.lines')"
    run(recording(PYTHON, "-c", program, output="trace.lines"), tmp_path, env=environment)
    (folder,) = left_behind(tmp_path)
    result = run([*GPUTRACE, "merge", folder, "-o", "other.lines"], tmp_path, env=environment)
    assert result.returncode == 0
    assert (tmp_path / "other.lines").read_text() == "device host\nwork\n"
