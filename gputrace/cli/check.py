"""`gputrace check`: is this trace what it seems to be?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from gputrace.cli.forms import as_json as json_of
from gputrace.cli.say import say
from gputrace.errors import InputError
from gputrace.remote import shown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gputrace.checking.sieve import Sifted
    from gputrace.checking.violation import Violation


@click.command(short_help="Say what is wrong with a trace.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON array: a trace and its violations each.")
@click.argument("traces", metavar="TRACE...", nargs=-1, required=True)
def command(as_json: bool, traces: tuple[str, ...]) -> int:
    """Look for what makes a timeline wrong, in a trace of gputrace or of any other tool.

    Unfinished and overlapping slices, wrong nesting, arrows back in time, clocks that jumped, what was dropped and
    what could not be read. Exit code 0 if nothing was found, 1 if anything was.

    \b
    gputrace check trace.pftrace
    gputrace check --json profile.json.gz
    gputrace check 'runs/**/*.pftrace'
    """
    from gputrace.checking.rules import check
    from gputrace.checking.sieve import sifted

    told: list[dict[str, Any]] = []
    bad = False
    for path in _each(traces):
        try:
            found = sifted(path)
        except InputError as error:
            bad = True
            say(str(error))
            told.append({"trace": shown(path), "error": str(error), "violations": []})
            continue
        trace = found.trace
        violations = check(trace)
        bad |= bool(violations)
        told.append({"trace": trace.path, "violations": [each.as_dict() for each in violations]})
        if not as_json:
            click.echo("\n".join(_lines(found, violations)))
    if as_json:
        click.echo(json_of(told))
    return int(bad)


def _each(traces: tuple[str, ...]) -> Iterator[str]:
    """The files, those too that a pattern or a folder names; one that names none is left to who reads it."""
    from gputrace.merging.inputs import find

    for path in traces:
        yield from find((path,)).files or [path]


def _lines(found: Sifted, violations: list[Violation]) -> list[str]:
    trace = found.trace
    if not violations:
        return [f"{trace.path}: nothing is wrong with it: {found.slices:,} slices on {len(trace.tracks):,} tracks"]
    lines = [f"{trace.path}:"]
    for each in violations:
        lines += [f"  {each.rule}: {each.what}", f"      {each.meaning}"]
        lines += [f"      {example}" for example in each.examples]
    return lines
