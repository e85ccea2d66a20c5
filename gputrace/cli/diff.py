"""`gputrace diff`: what got slower or faster between two sets of traces, and whether that fails a CI job."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING

import click

from gputrace.cli.forms import as_json, form_of
from gputrace.cli.say import say
from gputrace.cli.traces import each_of, fleet_of, fleet_options
from gputrace.errors import UsageError

if TYPE_CHECKING:
    from gputrace.analysis.comparison import Change, Runs
    from gputrace.fleet.each import Fleet
    from gputrace.table.trace import Trace

# As diff itself has it: 1 is for what was looked for and found.
_OVER = 1
_TROUBLE = 2

#: Stands for "--" among the arguments, where click would drop it. No file is named so.
_BETWEEN = "\0"
_PERCENT = re.compile(r"(\d+(?:\.\d*)?|\.\d+)%?")


class _Percent(click.ParamType):  # type: ignore[type-arg,unused-ignore]  # generic since click 8.4
    name = "PERCENT"

    def convert(self, value: str | float, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        match = _PERCENT.fullmatch(value.strip())
        if match is None:
            self.fail(f"{value!r} is no percentage: write it as 5%.", param, ctx)
        return float(match[1]) / 100


class _Named(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    name = "NAME:PERCENT"

    def convert(
        self, value: str | tuple[str, float], param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, float]:
        if isinstance(value, tuple):
            return value
        name, colon, percent = value.rpartition(":")
        if not colon or not name:
            self.fail(f"{value!r} names no span and limit: write NAME:10%.", param, ctx)
        return name, _Percent().convert(percent, param, ctx)


class _TwoSides(click.Command):
    """ "--" stands between the sides, and options may follow it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, [_BETWEEN if arg == "--" else arg for arg in args])


@click.command(cls=_TwoSides, short_help="Say which spans got slower or faster between traces, and fail CI on it.")
@click.option("--fail-above", type=_Percent(), help="Exit with 1 if any span is slower by more than this.")
@click.option("--fail-on", type=_Named(), multiple=True, help="The same for spans of this name (* and ? allowed).")
@click.option("--name", "names", multiple=True, metavar="NAME", help="Only spans of this name (* and ? allowed).")
@click.option("--track", "tracks", multiple=True, metavar="TRACK", help="Only tracks of this name or path (* and ?).")
@click.option("--top", type=click.IntRange(1), default=20, show_default=True, help="At most so many rows of the table.")
@click.option("--json", "as_json", is_flag=True, help="Print all spans as JSON, times in ns.")
@click.option("--markdown", "as_markdown", is_flag=True, help="Print the table as Markdown, for a pull request.")
@fleet_options
@click.argument("inputs", metavar="BASE... -- NEW...", nargs=-1, required=True)
def command(
    fail_above: float | None,
    fail_on: tuple[tuple[str, float], ...],
    names: tuple[str, ...],
    tracks: tuple[str, ...],
    top: int,
    as_json: bool,
    as_markdown: bool,
    scheduler: str | None,
    memory_per_worker: str | None,
    inputs: tuple[str, ...],
) -> int:
    """Compare traces of two versions of a program: its spans' medians, and whether they differ by more than noise.

    BASE and NEW are traces, folders or patterns; "--" may be left out between one and one. Give several runs of each:
    only they tell what differs from run to run anyway. Exits with 1 if a limit is passed, with 2 if a trace cannot be
    read, or nothing of a side is of the part that was asked for.

    \b
    gputrace diff base.pftrace new.pftrace
    gputrace diff base*.pftrace -- new*.pftrace --fail-above 5% --fail-on 'forward:10%' --markdown
    """
    from gputrace.analysis.comparison import changes
    from gputrace.analysis.gate import over_limits

    form = form_of(json=as_json, markdown=as_markdown)
    failures: list[str] = []
    sides = _sides(inputs)
    with fleet_of(scheduler, memory_per_worker) as fleet:
        base, new = (_runs(side, names, tracks, failures, fleet) for side in sides)
    if failures:
        return _TROUBLE
    if base.count == new.count == 1:
        say("one run a side: what differs from run to run anyway may be called a change; give several")
    found = changes(base, new)
    _print(found, form, top)
    over, untested = over_limits(found, fail_above, fail_on)
    for line in (*untested, *over):
        say(line)
    return _OVER if over else 0


def _sides(inputs: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    if inputs.count(_BETWEEN) == 1:
        at = inputs.index(_BETWEEN)
        base, new = inputs[:at], inputs[at + 1 :]
        if base and new:
            return base, new
    elif len(inputs) == 2 and _BETWEEN not in inputs:
        return inputs[:1], inputs[1:]
    raise UsageError("say which traces are which: gputrace diff BASE... -- NEW...")


def _runs(
    inputs: tuple[str, ...], names: tuple[str, ...], tracks: tuple[str, ...], failures: list[str], fleet: Fleet
) -> Runs:
    from gputrace.analysis.comparison import Runs

    runs = Runs()
    empty: list[str] = []
    for _, (run, nothing) in each_of(inputs, failures, fleet, partial(_run, names, tracks)):
        runs.merge(run)
        empty += [nothing] if nothing else []
    if not runs.spans:  # a comparison with nothing would call all that the other side has new or gone
        for line in empty:
            say(line)
        failures += empty
    return runs


def _run(names: tuple[str, ...], tracks: tuple[str, ...], trace: Trace) -> tuple[Runs, str]:
    """One trace's figures, and what there is to say where it has none."""
    from gputrace.analysis.comparison import Runs
    from gputrace.table.unmatched import nothing_of

    run = Runs()
    part = trace.select(names=names or None, tracks=tracks or None) if names or tracks else trace
    if run.add(part):
        return run, ""
    unended = f"{trace.path}: of what is to be compared no span ended"
    return run, unended if len(part.slices) else nothing_of(trace, tracks, names)


def _print(found: list[Change], form: str | None, top: int) -> None:
    if form == "json":
        click.echo(as_json(found))
        return
    from gputrace.analysis.changetable import table, verdicts
    from gputrace.analysis.tables import markdown

    click.echo(verdicts(found) + "\n")
    changed = table(found, top)
    if not changed.rows:
        return
    if form == "markdown":
        click.echo(markdown([changed]), nl=False)
    else:
        from gputrace.cli.tables import show

        show([changed])
