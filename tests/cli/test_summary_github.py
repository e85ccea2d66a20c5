"""`gputrace summary --github`: the job's page, annotations on stdout, and what it says where there is no job."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.cli.test_record import said
from tests.cli.test_summary import made, summary
from tests.record.running import GPUTRACE, run


def in_a_job(folder: Path, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    environment = {**os.environ, "GITHUB_STEP_SUMMARY": str(folder / "page.md")}
    return run([*GPUTRACE, "summary", "--github", *arguments], folder, env=environment)


def test_the_job_s_page_and_its_annotations(tmp_path: Path) -> None:
    made(tmp_path)
    whole = (tmp_path / "rank0.pftrace").read_bytes()
    (tmp_path / "torn.pftrace").write_bytes(whole[:-90])
    done = in_a_job(tmp_path, "trace.pftrace", "torn.pftrace", "gone.json", "--by", "step", "--top", "3")
    assert done.returncode == 1
    error, warning = done.stdout.decode().splitlines()
    assert error == "::error title=gputrace::gone.json does not exist"
    assert warning.startswith("::warning title=gputrace::torn.pftrace: ")
    assert warning.endswith("1 place could not be read")
    page = (tmp_path / "page.md").read_text()
    assert "| forward | train.py/MainThread | 10 | 10.00 µs |" in page
    assert "### Slowest steps" in page
    assert in_a_job(tmp_path, "trace.pftrace").stdout == b""
    assert (tmp_path / "page.md").read_text() == page + summary(tmp_path, "trace.pftrace", "--markdown")


def test_what_holds_nothing_is_annotated_too(tmp_path: Path) -> None:
    made(tmp_path)
    done = in_a_job(tmp_path, "trace.pftrace", "--name", "nope")
    [line] = done.stdout.decode().splitlines()
    assert done.returncode == 1
    assert line.startswith("::error title=gputrace::trace.pftrace: nothing in it is of the part that was asked for")
    assert not (tmp_path / "page.md").exists()


def test_outside_of_a_job(tmp_path: Path) -> None:
    made(tmp_path)
    environment = {k: v for k, v in os.environ.items() if k != "GITHUB_STEP_SUMMARY"}
    done = run([*GPUTRACE, "summary", "--github", "trace.pftrace"], tmp_path, env=environment)
    [line] = said(done.stderr)
    assert (done.returncode, done.stdout) == (2, b"")
    assert "run it in a step of GitHub Actions; elsewhere --markdown prints the same" in line
    both = in_a_job(tmp_path, "trace.pftrace", "--json")
    assert both.returncode == 2
    assert b"--json and --github are 2 formats" in both.stderr
