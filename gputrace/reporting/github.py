"""A summary on the page of a job of GitHub Actions, and as annotations of it.

What the service takes is known from its manual ("Workflow commands") and its runner: a step's page has at most 1 MiB,
and more is dropped whole; of a step at most 10 warnings and 10 errors are kept.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from gputrace.analysis.summarytables import tables
from gputrace.analysis.tables import markdown, printable
from gputrace.errors import OutputError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from gputrace.analysis.summary import Summary, TraceRow

_PAGE = "GITHUB_STEP_SUMMARY"
_MOST_BYTES = 1024 * 1024
_MOST_ANNOTATIONS = 10


def page_of(environ: Mapping[str, str]) -> str:
    """The file that becomes the page. Raises `UsageError` outside of a job."""
    path = environ.get(_PAGE)
    if not path:
        raise UsageError(
            f"--github writes into the file that ${_PAGE} names, and it is not set: run it in a step of GitHub "
            "Actions; elsewhere --markdown prints the same"
        )
    return path


def write_page(path: str, summary: Summary, top: int) -> str:
    """Add the summary's tables to what the step has written there. Returns "", or in a line what there was no room for.

    Raises `OutputError`.
    """
    try:
        with open(path, "ab") as file:
            room = _MOST_BYTES - os.fstat(file.fileno()).st_size
            text, told = _fitting(summary, top, room)
            file.write(text)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}") from error
    return told


def _fitting(summary: Summary, top: int, room: int) -> tuple[bytes, str]:
    """As many rows of each table as there is room for, and what is told where they are fewer than ``top``."""
    rows, told = top, ""
    while rows:
        text = markdown(tables(summary, rows)) + (f"\n{told}\n" if told else "")
        made = text.encode("utf-8", "replace")
        if len(made) <= room:
            return made, told
        rows //= 2
        told = (
            f"A job's page takes {_MOST_BYTES:,} bytes, so tables have {rows:,} {'row' if rows == 1 else 'rows'} "
            "at most; gputrace summary --json has all."
        )
    told = f"The summary does not fit into a job's page of {_MOST_BYTES:,} bytes; gputrace summary --json has it."
    made = f"{told}\n".encode()
    return made if len(made) <= room else b"", told


def annotate(summary: Summary, failures: Sequence[str]) -> Iterator[str]:
    """Workflow commands, a line each: an error for what could not be read, a warning for each trace that lacks some."""
    yield from _kept("error", list(failures))
    yield from _kept("warning", [line for row in summary.traces if (line := _lacks(row))])


def _kept(kind: str, lines: list[str]) -> Iterator[str]:
    """So many that the service keeps all; the last counts the rest."""
    if len(lines) > _MOST_ANNOTATIONS:
        more = len(lines) - _MOST_ANNOTATIONS + 1
        lines = [*lines[: _MOST_ANNOTATIONS - 1], f"and {more:,} more traces: the job's page and its log have all"]
    return (command(kind, line, title="gputrace") for line in lines)


def _lacks(row: TraceRow) -> str:
    facts = [
        f"{count:,} {one if count == 1 else several}"
        for count, one, several in (
            (row.failed_windows, "GPU window failed", "GPU windows failed"),
            (row.unfinished, "slice never ended", "slices never ended"),
            (row.dropped, "slice was dropped", "slices were dropped"),
            (row.problems, "place could not be read", "places could not be read"),
        )
        if count
    ]
    return f"{printable(row.path)}: {', '.join(facts)}" if facts else ""


def command(kind: str, message: str, **properties: str) -> str:
    """A workflow command, escaped as the runner takes it apart: a name could otherwise end it and begin another."""
    given = ",".join(f"{key}={_escaped(value, ':,')}" for key, value in properties.items())
    return f"::{kind} {given}::{_escaped(message)}"


def _escaped(text: str, more: str = "") -> str:
    return "".join(f"%{ord(c):02X}" if c in f"%\r\n{more}" else c for c in text)
