"""What a job of GitHub Actions is given: a page within its bound, and annotations as its runner reads them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputrace.analysis.summary import Summary, TraceRow
from gputrace.analysis.summarytables import tables
from gputrace.analysis.tables import markdown
from gputrace.errors import OutputError, UsageError
from gputrace.model import BEGIN, SLICE
from gputrace.reporting.github import annotate, command, page_of, write_page
from tests.analysis.test_summary import rank, summed
from tests.exporters.recordings import Script
from tests.merging.making import Host, write_trace

MOST_BYTES = 1 << 20


def row(path: str, unfinished: int = 0, problems: int = 0, dropped: int | None = 0, failed: int | None = 0) -> TraceRow:
    return TraceRow(path, "gputrace", 1_000, 10, unfinished, problems, dropped, failed)


def as_the_runner(line: str) -> tuple[str, dict[str, str], str]:
    """A workflow command as the runner parses it (its ActionCommand.cs, version 2 of the syntax)."""
    match = re.fullmatch(r"::([a-z]+)(?: (.*?))?::(.*)", line)
    assert match is not None
    pairs = (pair.split("=", 1) for pair in (match[2] or "").split(",") if pair)
    plain = [("%0D", "\r"), ("%0A", "\n")]

    def unescaped(text: str, codes: list[tuple[str, str]]) -> str:
        for code, character in [*codes, ("%25", "%")]:
            text = text.replace(code, character)
        return text

    properties = {key: unescaped(value, [*plain, ("%3A", ":"), ("%2C", ",")]) for key, value in pairs}
    return match[1], properties, unescaped(match[3], plain)


@given(st.text(), st.text(min_size=1))
def test_a_command_is_one_line_and_reads_back(message: str, title: str) -> None:
    line = command("warning", message, title=title)
    assert not {"\n", "\r"} & {*line}
    assert as_the_runner(line) == ("warning", {"title": title}, message)


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("50% done\r\n::error::owned", "50%25 done%0D%0A::error::owned"),
        ("a:b,c", "a:b,c"),  # only properties end at these
        ("%0A", "%250A"),
    ],
)
def test_what_would_end_a_command_is_escaped(text: str, escaped: str) -> None:
    assert command("warning", text) == f"::warning ::{escaped}"


def test_a_property_ends_at_more() -> None:
    assert command("error", "x", title="a:b,c%") == "::error title=a%3Ab%2Cc%25::x"


def test_a_warning_for_each_trace_that_lacks_something() -> None:
    summary = Summary(
        [
            row("whole.pftrace"),
            row("bad\n::error::x.pftrace", unfinished=1, failed=2, dropped=1_300, problems=1),
            row("other.json", unfinished=2, dropped=None, failed=None),
        ]
    )
    found = [as_the_runner(line) for line in annotate(summary, ["gone.json does not exist"])]
    assert found == [
        ("error", {"title": "gputrace"}, "gone.json does not exist"),
        (
            "warning",
            {"title": "gputrace"},
            r"bad\n::error::x.pftrace: 2 GPU windows failed, 1 slice never ended, 1,300 slices were dropped, "
            "1 place could not be read",
        ),
        ("warning", {"title": "gputrace"}, "other.json: 2 slices never ended"),
    ]


def test_no_more_than_the_service_keeps() -> None:
    summary = Summary([row(f"{k}.pftrace", unfinished=1) for k in range(25)])
    found = list(annotate(summary, [f"{k}.json does not exist" for k in range(11)]))
    assert [line.startswith("::error") for line in found] == [True] * 10 + [False] * 10
    assert found[9].endswith("::and 2 more traces: the job's page and its log have all")
    assert found[19].endswith("::and 16 more traces: the job's page and its log have all")
    assert len(list(annotate(Summary(summary.traces[:10]), []))) == 10
    assert "more traces" not in list(annotate(Summary(summary.traces[:10]), []))[9]


def test_the_page_has_the_tables(tmp_path: Path) -> None:
    summary = summed(write_trace(tmp_path / "t.pftrace", Host("n"), rank(0)))
    page = tmp_path / "page.md"
    page.write_text("# Before\n")
    assert write_page(str(page), summary, 20) == ""
    assert page.read_text() == "# Before\n" + markdown(tables(summary, 20))


def many(folder: Path, letters: int) -> Summary:
    script = Script()
    thread = script.thread()
    script.add(thread, *((k * 100, SLICE, f"{k:04}" + "x" * letters, None, 0, k * 100 + 50 + k) for k in range(40)))
    return summed(write_trace(folder / "t.pftrace", Host("n"), script))


def test_a_page_keeps_within_the_bound(tmp_path: Path) -> None:
    summary = many(tmp_path, 110_000)
    page = tmp_path / "page.md"
    told = write_page(str(page), summary, 40)
    text = page.read_text()
    assert told == (
        "A job's page takes 1,048,576 bytes, so tables have 5 rows at most; gputrace summary --json has all."
    )
    assert told in text
    assert len(text.encode()) <= MOST_BYTES
    assert [len(each) for each in re.findall(r"\d{4}(x+)", text)] == [110_000] * 5
    assert "and 35 more" in text
    # What the step has written before counts, too.
    again = write_page(str(page), summary, 40)
    assert "so tables have 2 rows at most" in again
    assert page.stat().st_size <= MOST_BYTES
    page.write_bytes(b"x" * (MOST_BYTES - 2_000))
    assert write_page(str(page), summary, 40).startswith("The summary does not fit into a job's page of ")
    assert MOST_BYTES - 2_000 < page.stat().st_size <= MOST_BYTES
    page.write_bytes(b"x" * (MOST_BYTES - 20))
    assert write_page(str(page), summary, 40)
    assert page.stat().st_size == MOST_BYTES - 20


def test_where_there_is_no_job(tmp_path: Path) -> None:
    for environ in ({}, {"GITHUB_STEP_SUMMARY": ""}):
        with pytest.raises(
            UsageError, match=r"run it in a step of GitHub Actions; elsewhere --markdown prints the same"
        ):
            page_of(environ)
    with pytest.raises(OutputError, match="cannot write"):
        write_page(str(tmp_path / "gone" / "page.md"), Summary(), 20)


def test_an_unfinished_window_of_a_real_trace(tmp_path: Path) -> None:
    script = rank(0)
    script.add(script.tracks[2], (200_000, BEGIN, "hangs"))
    summary = summed(write_trace(tmp_path / "t.pftrace", Host("n"), script))
    [line] = annotate(summary, [])
    assert line == f"::warning title=gputrace::{tmp_path}/t.pftrace: 1 slice never ended"
