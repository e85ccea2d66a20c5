"""`gputrace summary`: what traces say, in figures."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import click

from gputrace.cli.forms import as_json, form_of
from gputrace.cli.say import say
from gputrace.cli.timeoption import Time, check_range
from gputrace.cli.traces import each_of, fleet_of, fleet_options
from gputrace.errors import OutputError, UsageError

if TYPE_CHECKING:
    from gputrace.analysis.summary import Options, Summarizer, Summary
    from gputrace.cli.destination import Destination
    from gputrace.reporting.page import Picture
    from gputrace.table.trace import Trace

#: So many names are told of those that could be a step's.
_TOLD = 4


@click.command(short_help="Sum traces up: spans, steps, GPUs, gaps, ranks.")
@click.option("--name", "names", multiple=True, metavar="NAME", help="Only spans of this name (* and ? allowed).")
@click.option("--track", "tracks", multiple=True, metavar="TRACK", help="Only tracks of this name or path (* and ?).")
@click.option("--from", "start_ns", type=Time(), metavar="TIME", help="Only what has not ended by then: 1.5s, 200ms.")
@click.option("--to", "end_ns", type=Time(), metavar="TIME", help="Only what begins before that.")
@click.option("--by", type=click.Choice(["step"]), help="Tell of each step, too.")
@click.option("--step", "steps", multiple=True, metavar="NAME", help="The same, of steps that are called so.")
@click.option(
    "--wait", "waits", multiple=True, metavar="NAME", help="Spans that wait for a device, besides known calls."
)
@click.option("--top", type=click.IntRange(1), default=20, show_default=True, help="At most so many rows of a table.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON, times in ns.")
@click.option("--csv", "as_csv", is_flag=True, help="Print all spans (by step: all steps) as CSV, times in ns.")
@click.option("--markdown", "as_markdown", is_flag=True, help="Print the tables as Markdown.")
@click.option("--github", is_flag=True, help="In GitHub Actions: write the job's page, and annotate what is missing.")
@click.option("--html", metavar="FILE.html", help="Write one page with tables and charts, and nothing to stdout.")
@fleet_options
@click.argument("inputs", metavar="TRACE...", nargs=-1, required=True)
def command(
    names: tuple[str, ...],
    tracks: tuple[str, ...],
    start_ns: int | None,
    end_ns: int | None,
    by: str | None,
    steps: tuple[str, ...],
    waits: tuple[str, ...],
    top: int,
    as_json: bool,
    as_csv: bool,
    as_markdown: bool,
    github: bool,
    html: str | None,
    scheduler: str | None,
    memory_per_worker: str | None,
    inputs: tuple[str, ...],
) -> int:
    """Sum traces up, whatever wrote them: gputrace, torch.profiler, viztracer, Perfetto.

    TRACE is a trace, a folder of traces or a pattern; Perfetto's format or Chrome's JSON, gzipped or not. Of several,
    spans of one name and track are summed up together; many are read on all CPUs. TIME counts from each trace's start.
    NAME and TRACK choose what is told, and change no figure: a GPU's are of all its windows in that time.
    The exit code is 1 if one of them cannot be read, or nothing is of the part that was asked for.

    \b
    gputrace summary trace.pftrace
    gputrace summary rank*.pftrace --by step --top 10
    gputrace summary trace.pftrace --html summary.html
    gputrace summary trace.pftrace --track '*GPU 0*' --from 100ms --to 200ms --json
    """
    from gputrace.analysis.host import WAITS
    from gputrace.analysis.spans import PRECISION
    from gputrace.analysis.steps import NAMES
    from gputrace.analysis.summary import Options, Summarizer
    from gputrace.table.read import read

    form = form_of(json=as_json, csv=as_csv, markdown=as_markdown, github=github, html=html is not None)
    output = None if html is None else _checked(html)
    job_page = _job_page() if github else ""
    check_range(start_ns, end_ns)
    by_step = by == "step" or bool(steps)
    options = Options(
        names=names or None,
        tracks=tracks or None,
        start_ns=start_ns,
        end_ns=end_ns,
        by_step=by_step or output is not None,
        waits=(*WAITS, *waits),
        steps=steps or NAMES,
    )
    summarizer = Summarizer(options)
    failures: list[str] = []
    empty: list[str] = []
    timeline: Picture | None = None
    work = partial(_sum_up, options, tracks, names)
    with fleet_of(scheduler, memory_per_worker) as fleet:
        for file, part in each_of(inputs, failures, fleet, work, partial(work, draw=output is not None)):
            summarizer.merge(part.summarizer)
            if part.nothing:
                empty.append(part.nothing)
            elif output is not None and timeline is None:
                timeline = part.timeline or _timeline(read(file), options)
    summary = summarizer.summary()
    if summarizer.approximate:
        say(f"there are too many durations to keep each: medians, p95 and p99 are to within {PRECISION:.2%}")
    if github:
        _annotate(summary, failures if summary.spans else [*failures, *empty])
    if not summary.spans:
        for line in empty:
            say(line)
        if not summary.traces or names or tracks or start_ns is not None or end_ns is not None:
            return 1
    there = True
    if output is not None:
        there = _write_page(output, summary, top, timeline)
    elif github:
        _write_job_page(job_page, summary, top)
    else:
        _print(summary, form, top, by_step)
    if by_step and not summary.steps:
        say(_no_steps(summary, steps))
        return 1
    return 1 if failures or not there else 0


class _Part(NamedTuple):
    """What one trace adds: its figures; what there is to say where it holds nothing; and a picture, if asked for."""

    summarizer: Summarizer
    nothing: str
    timeline: Picture | None


def _sum_up(
    options: Options, tracks: tuple[str, ...], names: tuple[str, ...], trace: Trace, draw: bool = False
) -> _Part:
    from gputrace.analysis.summary import Summarizer
    from gputrace.table.unmatched import nothing_of

    summarizer = Summarizer(options)
    if not summarizer.add(trace):
        return _Part(summarizer, nothing_of(trace, tracks, names), None)
    return _Part(summarizer, "", _timeline(trace, options) if draw else None)


def _no_steps(summary: Summary, steps: tuple[str, ...]) -> str:
    names = list(dict.fromkeys(repr(row.name) for row in summary.spans if row.side == "host"))
    some = f": some are {', '.join(names[:_TOLD])}" if names else ""
    if not steps:
        return (
            "no host span is called step, nor did the program step an optimizer of PyTorch or call gputrace.step() "
            f"twice: call it at each step's end, or say by --step NAME which spans are steps{some}"
        )
    return f"no host span is named {' or '.join(map(repr, steps))}{some}"


def _print(summary: Summary, form: str | None, top: int, by_step: bool) -> None:
    if form == "json":
        click.echo(as_json(summary.as_dict()))
        return
    from gputrace.analysis.summarytables import tables
    from gputrace.analysis.tables import as_csv, markdown

    if form == "csv":
        rows = summary.as_dict()["steps" if by_step else "spans"]
        click.echo(as_csv(rows), nl=False)
    elif form == "markdown":
        click.echo(markdown(tables(summary, top)), nl=False)
    else:
        from gputrace.cli.tables import show

        show(tables(summary, top))


# --- a job of GitHub Actions ------------------------------------------------------------------------------------------


def _job_page() -> str:
    from gputrace.reporting.github import page_of

    return page_of(os.environ)


def _annotate(summary: Summary, failures: list[str]) -> None:
    from gputrace.reporting.github import annotate

    for line in annotate(summary, failures):
        click.echo(line)


def _write_job_page(path: str, summary: Summary, top: int) -> None:
    from gputrace.reporting.github import write_page

    if told := write_page(path, summary, top):
        say(told)


# --- a page of HTML ---------------------------------------------------------------------------------------------------


def _checked(html: str) -> Destination:
    """Where the page goes. Raises `UsageError` and `OutputError` where none can be."""
    from gputrace.cli.destination import Destination
    from gputrace.record.recording import checked_output

    if not html.lower().endswith((".html", ".htm")):  # "--html a.pftrace b.pftrace" would write over a trace
        raise UsageError(f"{html}: name a page that ends in .html")
    destination = Destination(html)
    if not destination.url:
        destination.local = checked_output(destination.local)
    return destination


def _timeline(trace: Trace, options: Options) -> Picture:
    from gputrace.reporting.overview import overview

    part = trace.select(tracks=options.tracks, names=options.names)
    return overview(trace, part, options.start_ns, options.end_ns)


def _write_page(output: Destination, summary: Summary, top: int, timeline: Picture | None) -> bool:
    """Is it where it was asked for?"""
    from gputrace.analysis.summarytables import tables
    from gputrace.cli.destination import File
    from gputrace.record.replace import replacing
    from gputrace.reporting.page import Picture, page

    timeline = timeline or Picture("There is none: no slice is to be drawn.")
    if not timeline.png:
        say(f"the page has no timeline: {timeline.text}")
    with output:
        try:
            with replacing(output.local, f"{os.urandom(6).hex()}.page") as write:
                write(page(summary, list(tables(summary, top)), timeline))
        except OSError as error:
            raise OutputError(f"cannot write {output.local}: {error.strerror or error}") from error
        if not output.bring(File(output.local)):
            return False
    say(f"wrote {output.shown}")
    return True
