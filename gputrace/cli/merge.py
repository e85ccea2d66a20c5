"""`gputrace merge`: many traces to one; and the trace of a recording that could not write its own."""

from __future__ import annotations

import os
import re

import click

from gputrace.cli.destination import Destination
from gputrace.cli.outcome import progress_bar, recount, tell, tell_empty, tell_merged

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gputrace.merging.plan import Clock

_CLOCK = re.compile(r"(?P<file>.+)=(?P<clock>boottime|monotonic|realtime)(?:@(?P<of>[^+]+?))?(?P<offset>[+-][\d.]+)?s?")


@click.command(short_help="Put traces of ranks, hosts and other tools on one timeline.")
@click.option(
    "-o",
    "--output",
    required=True,
    metavar="FILE",
    help="The trace to write: .pftrace or .json, or .gz of it; or a URL.",
)
@click.option(
    "--align",
    type=click.Choice(["clock", "collectives"]),
    default="clock",
    show_default=True,
    help="Line hosts up by their wall clocks, or finer by what their ranks leave together: spans with barrier, "
    "all_reduce, all_gather, reduce_scatter or all_to_all in their names.",
)
@click.option(
    "--collective",
    "collectives",
    multiple=True,
    metavar="NAME",
    help="Align by spans of this name instead (* and ? allowed); may be repeated.",
)
@click.option(
    "--clock",
    "clocks",
    multiple=True,
    metavar="FILE=CLOCK[@HOST][+SECONDS]",
    help="What clock the times of FILE are of, where it does not say: boottime, monotonic or realtime.",
)
@click.option("--strict", is_flag=True, help="Exit with 1 if anything given is not in the trace as it should be.")
@click.argument("inputs", metavar="INPUT...", nargs=-1, required=True)
def command(
    output: str,
    align: str,
    collectives: tuple[str, ...],
    clocks: tuple[str, ...],
    strict: bool,
    inputs: tuple[str, ...],
) -> int:
    """Merge traces into one, whatever wrote them: gputrace, torch.profiler, viztracer, Perfetto.

    INPUT is a trace, a folder of traces or a pattern; Perfetto's format or Chrome's JSON, gzipped or not. Processes
    of different hosts stay apart, and each file's own clock says where it goes.

    Or INPUT is the hidden folder that a recording left behind because it was killed or could not write. Alone, it is
    removed once the new trace is there and every process of the recording has ended.

    \b
    gputrace merge rank*.pftrace -o all.pftrace
    gputrace merge node0/ node1/ profiler.json.gz -o all.pftrace --align collectives
    """
    from gputrace.record.recording import is_shard_folder

    if collectives and align != "collectives":
        raise click.UsageError("--collective says what to align by: it needs --align collectives.")
    said = dict(map(_clock, clocks))
    if len(inputs) == 1 and is_shard_folder(inputs[0]):
        if said:
            raise click.UsageError("--clock is of a file's times, and a recording's folder states its clock itself.")
        with Destination(output) as destination:
            return _recover(inputs[0], destination, strict)
    from gputrace.merging.merge import Options, merge

    with Destination(output) as destination:
        options = Options(align=align, collectives=collectives, clocks=said, goal=destination.url)
        with progress_bar(lambda: False) as progress:
            outcome = merge(inputs, destination.local, options, progress)
        there = destination.bring(outcome)
        tell_merged(outcome)
    return 1 if not outcome.path or not there or (strict and outcome.problems) else 0


def _recover(folder: str, destination: Destination, strict: bool) -> int:
    from gputrace.reading.mending import mend
    from gputrace.record.recording import recover

    old = os.path.exists(destination.local)
    with progress_bar(lambda: False) as progress:
        summary = recover(folder, destination.local, progress, recount, mend)
    if not summary.path:
        tell_empty(summary, destination.local if old else "")
        return 1
    there = destination.bring(summary)
    tell(summary, quiet=False)
    return 1 if not there or (strict and summary.damaged) else 0


def _clock(text: str) -> tuple[str, Clock]:
    from gputrace.merging.plan import Clock

    match = _CLOCK.fullmatch(text)
    try:
        offset_ns = round(float((match and match["offset"]) or 0) * 1e9)
    except ValueError:
        match = None
    if match is None:
        raise click.UsageError(f"--clock {text}: write FILE=boottime, FILE=monotonic or FILE=realtime+0.5s.")
    return match["file"], Clock(match["clock"], match["of"] or "", offset_ns)
