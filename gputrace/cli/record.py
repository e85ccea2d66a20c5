"""`gputrace record`: run a command and trace every Python process in it."""

from __future__ import annotations

import os
import signal

import click

from gputrace.cli.outcome import progress_bar, recount, tell, tell_empty
from gputrace.cli.recordoptions import Wanted, record_options
from gputrace.cli.say import say
from gputrace.cli.settings import PREFIX, explained
from gputrace.errors import GputraceError, OutputError, UsageError
from gputrace.record import environment, launch
from gputrace.record.recording import Session, discard_recording, finish_recording, start_recording

_SNAPSHOT_EVERY_S = 10.0


@click.command(
    short_help="Run a command and trace it.",
    context_settings={"allow_interspersed_args": False, "auto_envvar_prefix": PREFIX},
)
@record_options
@click.argument("arguments", nargs=-1, required=True, type=click.UNPROCESSED, metavar="[--] COMMAND...")
@click.pass_context
def command(
    context: click.Context,
    /,
    output: str,
    device: str,
    unmasked: bool,
    max_size: str | None,
    quiet: bool,
    arguments: tuple[str, ...],
    **_: object,
) -> int:
    """Run COMMAND and write what its spans did, on the CPU and on the GPU, to one trace.

    The format follows FILE's suffix: .pftrace (Perfetto) or .json (Chrome), and .gz behind either; gputrace doctor
    lists the formats that others have installed. The exit code is the command's own. Options of gputrace come before
    the command; they may also stand in [tool.gputrace] of pyproject.toml, as max-size = "64MB", and in variables, as
    GPUTRACE_MAX_SIZE=64MB.
    """
    wanted = Wanted(context)
    try:
        session = start_recording(
            output,
            device,
            arguments,
            unmasked=unmasked,
            max_size=max_size,
            instruments=wanted.instruments,
            options=wanted.options,
        )
    except (UsageError, OutputError) as error:
        raise explained(context, error) from None
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
