"""`gputrace`: finds the subcommand and turns errors into one line and an exit code.

A subcommand's module is imported when it is asked for, so that `record` does not pay for the others.
"""

from __future__ import annotations

import functools
import importlib
import io
import sys
from typing import TYPE_CHECKING

import click

from gputrace.cli import settings
from gputrace.cli.say import say
from gputrace.errors import GputraceError, UsageError

if TYPE_CHECKING:
    from typing import Any

_COMMANDS = ("record", "merge", "summary", "diff", "check", "convert", "plot", "open", "query", "doctor")

# The doctor runs whatever stands in pyproject.toml, and says so.
_CONFIGURED = _COMMANDS[:-1]

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

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            import difflib

            if meant := difflib.get_close_matches(args[0], _COMMANDS, 1):
                raise click.UsageError(f"{error.message} Did you mean {meant[0]}?", ctx) from None
            raise


def _print_version(ctx: click.Context, _: click.Parameter, asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        click.echo(f"gputrace {version('gputrace')}")
        ctx.exit()


def _defaults(name: str) -> dict[str, Any]:
    """What pyproject.toml has for a subcommand."""
    command = importlib.import_module(f"gputrace.cli.{name}").command
    assert isinstance(command, click.Command)
    return settings.project().options(name, command, _COMMANDS)


@click.group(cls=_Commands, no_args_is_help=False, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the version and exit.",
)
@click.pass_context
def _gputrace(ctx: click.Context) -> None:
    """Shows what the GPU did on the host's own timeline, beside what the CPU did, and stops neither."""
    ctx.default_map = {name: settings.Defaults(functools.partial(_defaults, name)) for name in _CONFIGURED}


def _from(error: click.ClickException) -> str:
    """Where a value that was refused comes from, if it is not on the command line."""
    context, option = getattr(error, "ctx", None), getattr(error, "param", None)
    if context is None or not isinstance(option, click.Option) or settings.rank(context, option.name or "") == 3:
        return ""
    place = settings.where(context, option)
    return f" It is from {place}." if settings.rank(context, option.name or "") else ""


def main() -> int:
    """The console script. Returns the exit code; prints no traceback for what a user can put right."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")  # paths may be no UTF-8, and a terminal no Unicode
    try:
        result = _gputrace.main(prog_name="gputrace", standalone_mode=False)
    except click.ClickException as error:
        context = error.ctx if isinstance(error, click.UsageError) else None
        say(f"{error.format_message()}{_from(error)} See {context.command_path if context else 'gputrace'} --help.")
        return error.exit_code
    except GputraceError as error:
        say(str(error))
        return getattr(error, "exit_code", _USAGE if isinstance(error, UsageError) else _FAILED)
    except (click.Abort, KeyboardInterrupt):
        return _INTERRUPTED
    return result if isinstance(result, int) else 0


if __name__ == "__main__":
    sys.exit(main())
