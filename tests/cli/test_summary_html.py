"""`gputrace summary --html`: which file it writes, what it says, and what it will not write over."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.cli.test_record import said
from tests.cli.test_summary import made
from tests.record.running import GPUTRACE, run
from tests.reporting.parsed import Parsed


def test_one_page_of_several_traces(tmp_path: Path) -> None:
    made(tmp_path)
    done = run([*GPUTRACE, "summary", "rank0.pftrace", "rank1.pftrace", "--html", "page.html", "--top", "3"], tmp_path)
    assert (done.returncode, done.stdout) == (0, b"")
    assert said(done.stderr) == [f"wrote {tmp_path / 'page.html'}"]
    found = Parsed((tmp_path / "page.html").read_bytes())
    assert [row[0] for row in found.tables["Traces"][1:]] == ["rank0.pftrace", "rank1.pftrace"]
    assert len(found.tables["Spans"]) == 1 + 3
    assert len(found.columns) == 20  # two ranks' steps, though they were not asked for
    assert "rank0.pftrace: 99.00 µs from 0 ns on" in found.inner["p"]  # of the first
    assert [each for each in found.fetched if each.startswith("data:image/png;base64,iVBOR")]
    assert {each.name for each in tmp_path.iterdir()} == {
        "rank0.pftrace",
        "rank1.pftrace",
        "trace.pftrace",
        "page.html",
    }


def test_without_matplotlib_it_says_so_there_and_here(tmp_path: Path) -> None:
    made(tmp_path)
    program = (
        "import sys; sys.modules['matplotlib'] = None; from gputrace.cli.main import main; "
        "sys.argv[0] = 'gputrace'; sys.exit(main())"
    )
    done = run([sys.executable, "-c", program, "summary", "trace.pftrace", "--html", "page.html"], tmp_path)
    assert done.returncode == 0
    told = "There is none: a picture needs matplotlib: pip install 'gputrace[plot]'."
    assert said(done.stderr)[0] == f"the page has no timeline: {told}"
    found = Parsed((tmp_path / "page.html").read_bytes())
    assert told in found.inner["p"]
    assert found.bars
    assert "img" not in {tag for tag, _ in found.tags}


def test_the_part_that_was_asked_for_is_drawn(tmp_path: Path) -> None:
    made(tmp_path)
    part = ["--from", "10us", "--to", "30us", "--track", "*stream 7"]
    done = run([*GPUTRACE, "summary", "trace.pftrace", *part, "--html", "page.html"], tmp_path)
    assert done.returncode == 0
    found = Parsed((tmp_path / "page.html").read_bytes())
    assert "trace.pftrace: 20.00 µs from 10.00 µs on" in found.inner["p"]
    assert [row[2] for row in found.tables["Spans"][1:]] == ["2"]


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["--html", "rank0.pftrace", "rank1.pftrace"], 2, "rank0.pftrace: name a page that ends in .html"),
        (["rank0.pftrace", "--html", "gone/page.html"], 1, "gone does not exist; make it first"),
        (["rank0.pftrace", "--html", "page.html", "--json"], 2, "--json and --html are 2 formats: choose one."),
        (["rank0.pftrace", "--html", "page.html", "--name", "nope"], 1, "nothing in it is of the part"),
        (["none.json", "--html", "page.html"], 1, "none.json does not exist"),
    ],
)
def test_what_cannot_be_written_and_what_must_not(tmp_path: Path, arguments: list[str], code: int, told: str) -> None:
    made(tmp_path)
    before = (tmp_path / "rank0.pftrace").read_bytes()
    (tmp_path / "page.html").write_text("an older one")
    done = run([*GPUTRACE, "summary", *arguments], tmp_path)
    assert (done.returncode, done.stdout) == (code, b"")
    assert told in done.stderr.decode()
    assert (tmp_path / "rank0.pftrace").read_bytes() == before
    assert (tmp_path / "page.html").read_text() == "an older one"


def test_steps_that_nobody_asked_for_are_not_missed(tmp_path: Path) -> None:
    made(tmp_path)
    page = ["--html", "page.html"]
    assert run([*GPUTRACE, "summary", "trace.pftrace", "--name", "forward", *page], tmp_path).returncode == 0
    assert run([*GPUTRACE, "summary", "trace.pftrace", "--step", "nope", *page], tmp_path).returncode == 1
