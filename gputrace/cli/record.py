"""`gputrace record`: run a command and trace every Python process in it."""

from __future__ import annotations

import contextlib
import os
import signal

import click

from gputrace.cli.destination import Destination
from gputrace.cli.dumps import Dumps
from gputrace.cli.outcome import progress_bar, recount, tell, tell_empty
from gputrace.cli.recordoptions import Wanted, record_options
from gputrace.cli.say import say
from gputrace.cli.settings import PREFIX, explained
from gputrace.errors import GputraceError, OutputError, UsageError
from gputrace.instrument.registry import BUILT
from gputrace.record import environment, launch
from gputrace.record.recording import Session, discard_recording, finish_recording, start_recording

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_SNAPSHOT_EVERY_S = 10.0
#: What ends a transfer of the trace. What the command does is over by then.
_GIVE_UP = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


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
    signals = launch.Signals()
    with contextlib.ExitStack() as stack:
        try:
            destination = stack.enter_context(Destination(output))
            session = start_recording(
                destination.url or destination.local,
                device,
                arguments,
                unmasked=unmasked,
                max_size=max_size,
                instruments=wanted.instruments,
                options=wanted.options,
                folder=destination.folder,
                before_folder=lambda: stack.enter_context(signals),
            )
        except (UsageError, OutputError) as error:
            raise explained(context, error) from None
        destination.rename(session.goal, session.output)
        if session.renamed and not quiet:
            say(session.renamed)
        if device == "auto" and not quiet:
            say(_chosen(session))
        if not quiet and (first := _to_build(wanted.instruments)):
            say(first)
        exit_code = _run(session, list(arguments), signals, destination, quiet)
    return launch.end_as(exit_code)


def _run(session: Session, arguments: list[str], signals: launch.Signals, destination: Destination, quiet: bool) -> int:
    """The command's exit code, or minus the number of the signal that killed it."""
    try:
        variables = environment.for_command(environment.as_started(), session.folder.path)
        running = launch.start(arguments, variables, signals)
        environment.tell_outer(destination.shown)
    except BaseException:
        discard_recording(session)
        raise
    if "last_ns" in session.folder.options:
        dumps = Dumps(session, quiet, _SNAPSHOT_EVERY_S)
        exit_code = running.wait(dumps.look, dumps.EVERY_S, {signal.SIGUSR2: dumps.ask})
        dumps.write()
    else:
        exit_code = running.wait(session.take_snapshot, _SNAPSHOT_EVERY_S)
    try:
        _finish(session, signals, destination, quiet)
    except GputraceError as error:
        say(str(error))
    except KeyboardInterrupt:
        say(f"interrupted before the trace was written. {session.how_to_recover()}")
    return exit_code


def _chosen(session: Session) -> str:
    """One line on the device that was found; a short one where there is none, for it comes with every recording."""
    if session.device != "host":
        return session.device_reason
    reason = session.device_reason.partition(": ")[2].partition(": ")[0].partition(" (")[0]
    return f"host spans only: {reason} (gputrace doctor says more; --device host silences this)"


def _to_build(instruments: Sequence[str]) -> str:
    """A line where the program may wait for a compiler; "" where it does not, as far as can be told."""
    asked = [name for name in BUILT if name in instruments]
    if not asked:
        return ""
    from gputrace.instrument.torch.observer import was_ever_built

    if was_ever_built():
        return ""
    return (
        f"{' and '.join(asked)}: what tells of them is built first, once for the installed torch, in some ten seconds"
    )


def _finish(session: Session, signals: launch.Signals, destination: Destination, quiet: bool) -> None:
    old = os.path.exists(session.output)
    with progress_bar(lambda: signals.take(signal.SIGINT)) as progress:
        summary = finish_recording(session, progress, recount)
    others: list[str] = []
    with contextlib.suppress(KeyboardInterrupt):  # the trace is kept, and that was said
        if destination.bring(summary, lambda: _told_to_end(signals)):
            others = destination.bring_others(lambda: _told_to_end(signals))
    if summary.path:
        tell(summary, quiet)
    else:
        tell_empty(summary, session.output if old else "")
    if others and not quiet:
        say(f"wrote {', '.join(others)}")


def _told_to_end(signals: launch.Signals) -> bool:
    """Has any such signal arrived? All are forgotten."""
    arrived = [signals.take(number) for number in _GIVE_UP]
    return any(arrived)
