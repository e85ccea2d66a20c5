"""Reading the traces that a command line names, one at a time, and saying what is wrong with any."""

from __future__ import annotations

from gputrace.cli.say import say
from gputrace.errors import InputError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from gputrace.table.trace import Trace

#: Of what could not be read of a trace, so many are told, and the count of the rest.
_TOLD = 5


def read_all(arguments: tuple[str, ...], failures: list[str]) -> Iterator[Trace]:
    """The traces that files, folders and patterns name. Why one cannot be read is said, and added to ``failures``."""
    from gputrace.merging.inputs import find
    from gputrace.table.read import read

    found = find(arguments)
    for line in found.missing:
        _fail(line, failures)
    for path in found.shard_folders:
        _fail(f"{path} is a recording's folder: make a trace of it first, by gputrace merge", failures)
    for path in found.files:
        try:
            trace = read(path)
        except InputError as error:
            _fail(str(error), failures)
            continue
        except OSError as error:
            _fail(f"{path}: {error.strerror}", failures)
            continue
        tell_problems(trace)
        yield trace
        del trace  # before the next is read: two may not fit into memory


def tell_problems(trace: Trace) -> None:
    """Say what could not be read of a trace."""
    for problem in trace.problems[:_TOLD]:
        say(str(problem))
    if len(trace.problems) > _TOLD:
        say(f"{trace.path}: and {len(trace.problems) - _TOLD:,} more that cannot be read as they stand")


def _fail(line: str, failures: list[str]) -> None:
    say(line)
    failures.append(line)
