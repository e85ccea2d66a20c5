"""Options that stand in pyproject.toml or the environment, and where each that is in force comes from.

The command line goes before GPUTRACE_* variables, those before ``[tool.gputrace]``, that before defaults. It knows
click's commands and their options, and nothing of what an option means. No traced program comes here.
"""

from __future__ import annotations

import functools
import os
import re
import stat
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from gputrace.errors import OutputError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

PREFIX = "GPUTRACE"
_FILE = "pyproject.toml"
#: The command whose options stand in ``[tool.gputrace]`` itself, and in variables without its name.
MAIN_COMMAND = "record"
#: Variables that are no option of a command.
_OTHERS = ("INSTRUMENT", "NO_INSTRUMENT", "PURE", "RECORD")
#: A variable this much like one of ours is a slip; another is somebody's own.
_ALIKE = 0.75

#: Users whose files are as good as one's own: root.
TRUSTED = (0,)

_RANKS = {ParameterSource.DEFAULT_MAP: 1, ParameterSource.ENVIRONMENT: 2, ParameterSource.COMMANDLINE: 3}


class Project:
    """The nearest pyproject.toml that holds ``[tool.gputrace]``, from a folder upwards: ``path`` and ``table``; "" and
    empty where there is none. Raises `UsageError` for a file on the way that cannot be read as TOML.
    """

    def __init__(self, folder: str) -> None:
        self.path = ""
        self.table: dict[str, Any] = {}
        while True:
            path = os.path.join(folder, _FILE)
            table = _table(path)
            if table is not None:
                self.path, self.table = path, table
                return
            parent = os.path.dirname(folder)
            if parent == folder:
                return
            folder = parent

    def options(self, name: str, command: click.Command, others: Iterable[str]) -> dict[str, Any]:
        """What stands there for a command by its name, by its parameters'; ``others`` are all commands' names.

        Raises `UsageError` for an option that the command has not, and for a value that it does not take.
        """
        if name == MAIN_COMMAND:
            where, table = "[tool.gputrace]", {k: v for k, v in self.table.items() if not _is_command(k, v, others)}
        else:
            where, table = f"[tool.gputrace.{name}]", self.table.get(name, {})
            if not isinstance(table, dict):
                raise UsageError(f"{self.path}: {name} must be a table, [tool.gputrace.{name}]")
        known = options_of(command)
        found: dict[str, Any] = {}
        for key, value in table.items():
            option = known.get(key.replace("_", "-"))
            if option is None or option.name is None:
                raise UsageError(f"{self.path}: {where} has no option {key!r}{nearest(key, known)}")
            if option.name in found:
                raise UsageError(f"{self.path}: {where} has {key!r} twice, with - and with _: leave one out")
            found[option.name] = _taken(option, value, f"{self.path}: {where} {key}", command)
        return found


class Defaults(Mapping[str, Any]):
    """What pyproject.toml says, as click's default map: read when an option is first asked for, as by then it is known
    of which command.
    """

    def __init__(self, load: Callable[[], Mapping[str, Any]]) -> None:
        self._load = load
        self._values: Mapping[str, Any] | None = None

    def _loaded(self) -> Mapping[str, Any]:
        if self._values is None:
            self._values = self._load()
        return self._values

    def __getitem__(self, name: str) -> Any:
        return self._loaded()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._loaded())

    def __len__(self) -> int:
        return len(self._loaded())


class Setting:
    """An option in force: ``name`` as on the command line, ``value``, and ``where`` it comes from, in words."""

    def __init__(self, name: str, value: Any, where: str) -> None:
        self.name = name
        self.value = value
        self.where = where


@functools.cache
def project() -> Project:
    """That of the working directory; none where that was removed."""
    try:
        return Project(os.getcwd())
    except FileNotFoundError:
        return Project("/")


def options_of(command: click.Command) -> dict[str, click.Option]:
    """A command's options by their long names, without the hyphens before them."""
    options = [option for option in command.params if isinstance(option, click.Option)]
    return {_long(option): option for option in options}


def rank(context: click.Context, name: str) -> int:
    """How near to its user a parameter's value was given: 3 on the command line, 2 in the environment, 1 in
    pyproject.toml, 0 nowhere."""
    source = context.get_parameter_source(name)
    return 0 if source is None else _RANKS.get(source, 0)


def where(context: click.Context, option: click.Option) -> str:
    """Where an option's value comes from, in words."""
    name = option.name or ""
    given = rank(context, name)
    if given == 2:
        return f"{context.auto_envvar_prefix}_{name.upper()}"
    return ("default", project().path, "", "command line")[given]


def settings(context: click.Context) -> list[Setting]:
    """All options of a command, in its help's order, as they are in force."""
    options = options_of(context.command)
    return [Setting(n, context.params.get(o.name or ""), where(context, o)) for n, o in options.items()]


def explained(context: click.Context, error: UsageError | OutputError) -> UsageError | OutputError:
    """The error, with where those of the options that it names stand which are not on the command line."""
    text = str(error)
    elsewhere = [
        f"--{name} is from {where(context, option)}"
        for name, option in options_of(context.command).items()
        if 0 < rank(context, option.name or "") < 3 and _is_named(name, context.params.get(option.name or ""), text)
    ]
    return type(error)(f"{text} ({', '.join(elsewhere)})") if elsewhere else error


def _is_named(name: str, value: Any, text: str) -> bool:
    """Does a text speak of an option, by its name or, as of an output, by its value?"""
    if re.search(rf"(?<![\w-])--{name}(?![\w-])", text):
        return True
    return isinstance(value, str) and re.search(rf"(?<!\w){re.escape(value)}(?!\w)", text) is not None


def check_environment(context: click.Context) -> None:
    """Raises `UsageError` for a GPUTRACE_* variable that is no option of the command, but nearly is one."""
    from difflib import get_close_matches

    known = {str(option.name).upper() for option in options_of(context.command).values()}
    for variable in sorted(os.environ):
        prefix, _, name = variable.partition("_")
        if prefix != PREFIX or name in known or name in _OTHERS:
            continue
        close = get_close_matches(name, [*known, *_OTHERS], 1, _ALIKE)
        if close:
            raise UsageError(f"{variable} is no option; did you mean {PREFIX}_{close[0]}?")


def nearest(name: str, names: Iterable[str]) -> str:
    """What an error may add about a name that is none of ``names``."""
    from difflib import get_close_matches  # where a command ends for it

    close = get_close_matches(name.replace("_", "-"), names, 1)
    return f"; did you mean {close[0]!r}?" if close else f": there are {', '.join(names) or 'none'}"


def _long(option: click.Option) -> str:
    return max(option.opts, key=len).lstrip("-")


def _is_command(key: str, value: Any, commands: Iterable[str]) -> bool:
    return key in commands and key != MAIN_COMMAND and isinstance(value, dict)


def _table(path: str) -> dict[str, Any] | None:
    """What a pyproject.toml has for us; None if it has nothing, does not exist, or is not to be trusted."""
    try:
        with open(path, "rb") as file:
            data = b"" if _is_foreign(file.fileno(), path) else file.read()
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return None
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    if b"gputrace" not in data:
        return None  # nor is it ours to say whether it is TOML at all
    import tomllib

    try:
        found = tomllib.loads(data.decode())
    except ValueError as error:
        raise UsageError(f"{path} cannot be read: {error}") from None
    tool = found.get("tool")
    table = tool.get("gputrace") if isinstance(tool, dict) else None
    if table is not None and not isinstance(table, dict):
        raise UsageError(f"{path}: tool.gputrace must be a table, [tool.gputrace]")
    return table


def _is_foreign(descriptor: int, path: str) -> bool:
    """Is it another user's, in a folder that everybody may write to? It could say where a trace is written."""
    folder, owner = os.stat(os.path.dirname(path) or "."), os.fstat(descriptor).st_uid
    return bool(folder.st_mode & stat.S_IWOTH) and owner not in (os.geteuid(), *TRUSTED)


def _taken(option: click.Option, value: Any, where: str, command: click.Command) -> Any:
    """A value of TOML as click takes it. Raises `UsageError`."""
    if option.is_flag:
        if not isinstance(value, bool):
            raise UsageError(f"{where} is on or off: write true or false")
        return value
    values = value if option.multiple and isinstance(value, list) else [value]
    if any(isinstance(each, bool) or not isinstance(each, (str, int, float)) for each in values):
        what = "a string, or a list of them" if option.multiple else "a string or a number"
        raise UsageError(f"{where} takes {what}, not {value!r}")
    taken = [str(each) if isinstance(option.type, click.types.StringParamType) else each for each in values]
    try:
        for each in taken:
            option.type.convert(each, option, click.Context(command))
    except click.BadParameter as error:
        raise UsageError(f"{where}: {error.message}") from None
    return taken if option.multiple else taken[0]
