"""`gputrace`: finds the subcommand and turns errors into one line and an exit code.

A subcommand's module is imported when it is asked for, so that `record` does not pay for the others.
"""

from __future__ import annotations

import importlib
import sys

import click

from gputrace.cli.say import say
from gputrace.errors import GputraceError, UsageError

_COMMANDS = ("record", "merge", "summary", "diff", "check", "convert", "plot", "open", "query", "doctor")

# Exit codes of gputrace's own failures. A recorded command's exit code is passed on whatever it is.
_FAILED = 1
_USAGE = 2
_INTERRUPTED = 130


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command = importlib.import_module(f"gputrace.cli.{cmd_name}").command
        assert isinstance(command, click.Command)
        return command


def _print_version(ctx: click.Context, _: click.Parameter, asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        click.echo(f"gputrace {version('gputrace')}")
        ctx.exit()


@click.group(cls=_Commands, no_args_is_help=False, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the version and exit.",
)
def _gputrace() -> None:
    """Shows what the GPU did on the host's own timeline, beside what the CPU did, and stops neither."""


def main() -> int:
    """The console script. Returns the exit code; prints no traceback for what a user can put right."""
    try:
        result = _gputrace.main(prog_name="gputrace", standalone_mode=False)
    except click.ClickException as error:
        context = error.ctx if isinstance(error, click.UsageError) else None
        say(f"{error.format_message()} See {context.command_path if context else 'gputrace'} --help.")
        return error.exit_code
    except GputraceError as error:
        say(str(error))
        return getattr(error, "exit_code", _USAGE if isinstance(error, UsageError) else _FAILED)
    except (click.Abort, KeyboardInterrupt):
        return _INTERRUPTED
    return result if isinstance(result, int) else 0


if __name__ == "__main__":
    sys.exit(main())
