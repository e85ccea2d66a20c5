"""`gputrace record`: run a command and trace every Python process in it."""

from __future__ import annotations

import os
import signal

import click

from gputrace.cli.outcome import progress_bar, recount, tell, tell_empty
from gputrace.cli.say import say
from gputrace.errors import GputraceError
from gputrace.instrument.registry import choose
from gputrace.record import environment, launch
from gputrace.record.recording import Session, discard_recording, finish_recording, start_recording
from gputrace.record.region import calls_options, counters_options, region_options

_SNAPSHOT_EVERY_S = 10.0


@click.command(short_help="Run a command and trace it.", context_settings={"allow_interspersed_args": False})
@click.option(
    "-o",
    "--output",
    default="trace.pftrace",
    show_default=True,
    metavar="FILE",
    help="Where the trace goes; %r, %h and %p in it stand for rank, host and pid.",
)
@click.option(
    "--device",
    default="auto",
    show_default=True,
    metavar="auto|cuda|simulated|host",
    help="What GPU windows are measured on; host: on none.",
)
@click.option("--unmasked", is_flag=True, help="Keep what looks like a secret in command lines.")
@click.option(
    "--max-size",
    metavar="SIZE",
    help="How much each process keeps of host spans not written yet, like 64MB; 32MB if not given.",
)
@click.option(
    "--instrument",
    "add",
    multiple=True,
    metavar="NAME",
    help="Show this of a framework, too; the README has the names.",
)
@click.option(
    "--no-instrument",
    "leave_out",
    multiple=True,
    metavar="NAME",
    help="Leave this of a framework alone, like torch.modules, or all of it: torch.",
)
@click.option("--python", is_flag=True, help="Show calls of the program's own Python functions.")
@click.option(
    "--python-include",
    multiple=True,
    metavar="GLOB",
    help="Of these modules only, like 'torch.nn' or '*'. If not given: all but the standard library's and packages'.",
)
@click.option("--python-exclude", multiple=True, metavar="GLOB", help="Of these modules not.")
@click.option("--python-depth", type=click.IntRange(min=1), metavar="N", help="At most so many shown calls deep.")
@click.option("--delay", metavar="TIME", help="Record from so long after the start on, like 10s.")
@click.option("--duration", metavar="TIME", help="Record for so long, like 30s; the program goes on.")
@click.option(
    "--steps",
    metavar="A:B",
    help="Record from step A up to step B; gputrace.step() ends a step, or else PyTorch's optimizer.",
)
@click.option(
    "--counters",
    default="100ms",
    show_default=True,
    metavar="TIME|off",
    help="How often to read memory, CPU and GPU counters.",
)
@click.option("-q", "--quiet", is_flag=True, help="Say only what went wrong.")
@click.argument("arguments", nargs=-1, required=True, type=click.UNPROCESSED, metavar="[--] COMMAND...")
def command(
    output: str,
    device: str,
    unmasked: bool,
    max_size: str | None,
    add: tuple[str, ...],
    leave_out: tuple[str, ...],
    python: bool,
    python_include: tuple[str, ...],
    python_exclude: tuple[str, ...],
    python_depth: int | None,
    delay: str | None,
    duration: str | None,
    steps: str | None,
    counters: str,
    quiet: bool,
    arguments: tuple[str, ...],
) -> int:
    """Run COMMAND and write what its spans did, on the CPU and on the GPU, to one trace.

    The format follows FILE's suffix: .pftrace (Perfetto) or .json (Chrome), and .gz behind either; gputrace doctor
    lists the formats that others have installed. The exit code is the command's own. Options of gputrace come before
    the command.
    """
    called = calls_options(python, python_include, python_exclude, python_depth)
    instruments = choose([*add, *(["python.calls"] if python else [])], leave_out)
    session = start_recording(
        output,
        device,
        arguments,
        unmasked=unmasked,
        max_size=max_size,
        instruments=instruments,
        options=region_options(delay, duration, steps) | counters_options(counters) | called,
    )
    if session.renamed and not quiet:
        say(session.renamed)
    if device == "auto" and not quiet:
        say(_chosen(session))
    with launch.Signals() as signals:
        try:
            variables = environment.for_command(environment.as_started(), session.folder.path)
            running = launch.start(list(arguments), variables, signals)
            environment.tell_outer(session.output)
        except BaseException:
            discard_recording(session)
            raise
        exit_code = running.wait(session.take_snapshot, _SNAPSHOT_EVERY_S)
        try:
            _finish(session, signals, quiet)
        except GputraceError as error:
            say(str(error))
        except KeyboardInterrupt:
            say(f"interrupted before the trace was written. {session.how_to_recover()}")
    return launch.end_as(exit_code)


def _chosen(session: Session) -> str:
    """One line on the device that was found; a short one where there is none, for it comes with every recording."""
    if session.device != "host":
        return session.device_reason
    reason = session.device_reason.partition(": ")[2].partition(": ")[0].partition(" (")[0]
    return f"host spans only: {reason} (gputrace doctor says more; --device host silences this)"


def _finish(session: Session, signals: launch.Signals, quiet: bool) -> None:
    old = os.path.exists(session.output)
    with progress_bar(lambda: signals.take(signal.SIGINT)) as progress:
        summary = finish_recording(session, progress, recount)
    if summary.path:
        tell(summary, quiet)
    else:
        tell_empty(summary, session.output if old else "")
