"""pytest has nothing to warn of because of gputrace, so a run under ``-W error`` ends as it does without."""

from __future__ import annotations

import os
import re
import shutil
from importlib.metadata import distribution
from pathlib import Path

import pytest

import gputrace
from tests.record.running import PYTHON, recording, run
from tests.testing.running import PLAIN, outcomes, read

PACKAGE = Path(gputrace.__file__).parent
SUITE = """
def test_ok(): pass
def test_bad(): assert 0
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that gputrace is installed in, file by file. pytest does not look into every editable install."""
    folder = tmp_path_factory.mktemp("site")
    ignored = shutil.ignore_patterns("__pycache__", "native", "*.c")
    shutil.copytree(PACKAGE, folder / "gputrace", ignore=ignored)
    if not (PACKAGE / "exporters").exists():
        shutil.copytree(PACKAGE.parent / "exporters", folder / "gputrace" / "exporters", ignore=ignored)
    facts = folder / "gputrace-0.1.0.dist-info"
    facts.mkdir()
    for name in ("METADATA", "entry_points.txt"):
        (facts / name).write_text(distribution("gputrace").read_text(name) or "")
    (facts / "RECORD").write_text("".join(f"{path.relative_to(folder)},,\n" for path in folder.rglob("*.py")))
    return folder


def said(output: bytes) -> list[str]:
    """pytest's lines, but for the times, the list of plugins, and which worker had which test, and when."""
    lines = re.sub(r" in [\d.]+s|\[gw\d\] |^plugins: .*\n", "", output.decode(), flags=re.MULTILINE)
    return ["".join(sorted(line)) if line.endswith("[100%]") else line for line in lines.splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "warnings"), [("-n0", "default"), ("-n0", "error"), ("-n2", "error")])
def test_a_run_says_and_ends_as_it_does_without_gputrace(
    installed: Path, tmp_path: Path, workers: str, warnings: str
) -> None:
    (tmp_path / "test_it.py").write_text(SUITE)
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    command = [PYTHON, "-m", "pytest", *PLAIN, "-W", warnings, workers, "--dist=loadfile"]
    plain = run([*command, "-p", "no:gputrace"], tmp_path, env=environment)
    assert plain.returncode == 1
    assert b"1 failed, 1 passed in" in plain.stdout
    for how, line in {
        "idle": command,
        "--gputrace": [*command, "--gputrace", "trace.pftrace", "--gputrace-device", "host"],
        "record": recording(*command),
    }.items():
        done = run(line, tmp_path, env=environment)
        assert (done.returncode, said(done.stdout)) == (1, said(plain.stdout)), (how, done.stderr)
        if how != "idle":
            found = outcomes(read(tmp_path / "trace.pftrace"))
            assert found == {"test_it.py::test_ok": "passed", "test_it.py::test_bad": "failed"}, how
            (tmp_path / "trace.pftrace").unlink()


@pytest.mark.parametrize("optimise", ["-O", "-OO"])
def test_no_warning_where_docstrings_are_stripped(installed: Path, tmp_path: Path, optimise: str) -> None:
    (tmp_path / "test_it.py").write_text("def test_ok(): pass")
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    done = run(recording(PYTHON, optimise, "-m", "pytest", *PLAIN), tmp_path, env=environment)
    assert done.returncode == 0
    assert b"1 passed, 1 warning in" in done.stdout  # pytest's own, that assertions are ignored
    assert b"cannot be rewritten" not in done.stdout
