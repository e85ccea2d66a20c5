"""`gputrace plot`: a piece of a timeline as a picture."""

from __future__ import annotations

import click

from gputrace.cli.destination import Destination, File
from gputrace.cli.say import say
from gputrace.cli.timeoption import Time
from gputrace.cli.traces import tell_problems


@click.command(short_help="Draw a piece of a timeline, for a report.")
@click.option("-o", "--output", required=True, metavar="FILE", help="The picture: .svg, .png or .pdf.")
@click.option(
    "--start", "start_ns", type=Time(), metavar="TIME", help="Where to begin, since the trace's start: 1.5s, 200ms."
)
@click.option("--end", "end_ns", type=Time(), metavar="TIME", help="Where to end, since the trace's start.")
@click.option("--slice", "name", metavar="NAME[#N]", help="Draw around this slice; #0 is the first, #-1 the last.")
@click.option("--track", "tracks", multiple=True, metavar="GLOB", help="Only tracks so named (* and ? allowed).")
@click.option("--depth", default=8, show_default=True, type=click.IntRange(min=1), help="Rows a track has at most.")
@click.option("--width", default=12.0, show_default=True, type=click.FloatRange(2, 200), help="In inches.")
@click.option("--title", default="", help="What to write above it.")
@click.argument("trace", metavar="TRACE")
def command(
    output: str,
    start_ns: int | None,
    end_ns: int | None,
    name: str | None,
    tracks: tuple[str, ...],
    depth: int,
    width: float,
    title: str,
    trace: str,
) -> int:
    """Draw a chosen range of a trace, of gputrace or of any other tool, as bars on rows.

    A slice that never ended has a red edge, and reaches to the trace's end.

    \b
    gputrace plot trace.pftrace -o timeline.svg --slice step#2
    gputrace plot trace.pftrace -o timeline.png --start 200ms --end 250ms --track '*/compute'
    """
    from gputrace.plotting.choice import around, between
    from gputrace.plotting.timeline import draw
    from gputrace.table.read import read
    from gputrace.table.unmatched import nothing_of

    if name is not None and (start_ns is not None or end_ns is not None):
        raise click.UsageError("--slice gives the range, and so do --start and --end: use one of the two.")
    destination = Destination(output)
    whole = read(trace)
    tell_problems(whole)
    begin_ns, until_ns = between(whole, start_ns, end_ns) if name is None else around(whole, name)
    chosen = whole.select(tracks=tracks) if tracks else whole
    with destination:
        local = destination.local
        count = draw(chosen, local, begin_ns, until_ns, most_deep=depth, width_inches=width, title=title)
        if not count:
            say(f"{nothing_of(whole, tracks)}: {destination.shown} is not written")
            return 1
        if not destination.bring(File(local)):
            return 1
    say(f"drew {count:,} slices to {destination.shown}")
    return 0
