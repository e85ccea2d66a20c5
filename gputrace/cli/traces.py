"""The traces that a command line names, worked on one by one or many at a time, and what is wrong with any, said."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any

import click

from gputrace.cli.say import say
from gputrace.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gputrace.fleet.each import Fleet
    from gputrace.fleet.job import Work
    from gputrace.table.trace import Trace

#: Fewer are read before anyone looks for a bar.
_FEWEST_SHOWN = 8


def fleet_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options on who reads many traces."""
    for option in (
        click.option(
            "--memory-per-worker",
            metavar="SIZE",
            help="How much memory each process may take that reads many traces, like 2GB.",
        ),
        click.option("--scheduler", metavar="ADDRESS", help="Have a Dask cluster read them: its scheduler's address."),
    ):
        function = option(function)
    return function


def fleet_of(scheduler: str | None, memory_per_worker: str | None) -> Fleet:
    """What the options come to. Raises `UsageError` for what is no size, or of no use."""
    from gputrace.fleet.each import Fleet
    from gputrace.record.sizes import size_in_bytes

    if scheduler and memory_per_worker:
        raise UsageError("--memory-per-worker is of processes here: those of --scheduler have their own limits")
    try:
        memory_bytes = size_in_bytes(memory_per_worker) if memory_per_worker is not None else 0
    except UsageError as error:
        raise UsageError(f"--memory-per-worker: {error}") from None
    return Fleet(scheduler or "", memory_bytes, say)


def each_of(
    arguments: tuple[str, ...], failures: list[str], fleet: Fleet, work: Work, first: Work | None = None
) -> Iterator[tuple[str, Any]]:
    """Each trace that files, folders and patterns name, and what ``work`` made of it, in their order; or ``first``, of
    the first. Why one cannot be read is said, and added to ``failures``.
    """
    from gputrace.merging.inputs import find

    found = find(arguments)
    for line in found.missing:
        _fail(line, failures)
    for line in found.again:  # told, and no failure: what is asked for is all there
        say(line)
    for path in found.shard_folders:
        _fail(f"{path} is a recording's folder: make a trace of it first, by gputrace merge", failures)
    with _progress(len(found.files)) as step:
        jobs = [(file, work if number or first is None else first) for number, file in enumerate(found.files)]
        for file, done in zip(found.files, fleet.each(jobs), strict=True):
            step()
            for line in done.told:
                say(line)
            if done.failure:
                _fail(done.failure, failures)
            else:
                yield file, done.result


def tell_problems(trace: Trace) -> None:
    """Say what could not be read of a trace."""
    from gputrace.fleet.job import problems_of

    for line in problems_of(trace):
        say(line)


def _fail(line: str, failures: list[str]) -> None:
    say(line)
    failures.append(line)


@contextlib.contextmanager
def _progress(total: int) -> Iterator[Callable[[], None]]:
    """A bar that counts traces, where there are many and someone is watching; called once for each."""
    if total < _FEWEST_SHOWN or sys.stderr is None or not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("gputrace: reading"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, redirect_stdout=False) as bar:
        task = bar.add_task("", total=total)
        yield lambda: bar.advance(task)
