"""`gputrace convert`: a trace to another format, or a part of it."""

from __future__ import annotations

import click

from gputrace.cli.destination import Destination
from gputrace.cli.outcome import progress_bar, tell_converted
from gputrace.cli.timeoption import Time, check_range


@click.command(short_help="Write a trace, or a part of it, in another format.")
@click.option("--from", "start_ns", type=Time(), metavar="TIME", help="Only what has not ended by then.")
@click.option("--to", "end_ns", type=Time(), metavar="TIME", help="Only what begins before that.")
@click.option("--track", "tracks", multiple=True, metavar="NAME", help="Only tracks of this name or path.")
@click.option("--name", "names", multiple=True, metavar="NAME", help="Only slices and instants of this name.")
@click.option(
    "--table",
    type=click.Choice(["slices", "instants", "counters", "flows", "tracks"]),
    default="slices",
    show_default=True,
    help="What is a row, where OUTPUT is a table.",
)
@click.option("--strict", is_flag=True, help="Exit with 1 if anything of the trace is not in OUTPUT as it was.")
@click.argument("trace", metavar="INPUT")
@click.argument("output", metavar="OUTPUT")
def command(
    trace: str,
    output: str,
    start_ns: int | None,
    end_ns: int | None,
    tracks: tuple[str, ...],
    names: tuple[str, ...],
    table: str,
    strict: bool,
) -> int:
    """Write a trace of any tool in another format: Perfetto's, Chrome's JSON, or as a table.

    OUTPUT's name says which: .pftrace or .json, each also with .gz behind it; .parquet or .arrow (which take pyarrow:
    pip install 'gputrace[arrow]') or .csv. Slices of a JSON trace that overlap, which viewers bend or drop, come out
    whole, beside one another. Times stay as they are, to the nanosecond; what a format cannot hold is told.

    TIME counts from the trace's start: 1.5s, 200ms, 30us. With no unit it is seconds. In NAME, * and ? stand for any
    text and any letter. Where nothing is of the part that was asked for, OUTPUT is not written and the exit code is 1.

    \b
    gputrace convert kineto.json fixed.pftrace
    gputrace convert trace.pftrace part.json.gz --from 1.5s --to 2s --track '*/GPU*'
    gputrace convert trace.pftrace slices.csv
    """
    from gputrace.converting.convert import Part, convert

    check_range(start_ns, end_ns)
    part = Part(tracks=tracks, names=names, start_ns=start_ns, end_ns=end_ns)
    with Destination(output) as destination:
        with progress_bar(lambda: False) as progress:
            outcome = convert(trace, destination.local, part, table=table, progress=progress)
        there = destination.bring(outcome)
        tell_converted(outcome)
    return 1 if not outcome.path or not there or (strict and outcome.problems) else 0
