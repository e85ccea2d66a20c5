"""What to tell someone whose recording came out empty: why, and what to try."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from gputrace.record.recording import Summary

_ISOLATING = {"I": "which ignores PYTHONPATH", "E": "which ignores PYTHONPATH", "S": "which skips sitecustomize"}
# Python's one-letter options that take a value, in the same argument or the next.
_TAKES_VALUE = "cmWX"


def why_empty(command: Sequence[str], summary: Summary) -> str:
    """One paragraph for a recording in which nothing was traced: not what went wrong (`Summary.told` says that), but
    what was not there.
    """
    if summary.started:
        ran = "one Python process" if summary.started == 1 else f"{summary.started} Python processes"
        return (
            f"nothing was traced: {ran} ran and opened no span. Put `with gputrace.span(NAME, stream=STREAM):` around "
            "what you want to see"
        )
    if summary.told:
        return "nothing was traced"
    flag = _isolating_option(command)
    if flag:
        return (
            f"nothing was traced: {os.path.basename(command[0])} was started with -{flag}, {_ISOLATING[flag]}: it is "
            f"traced only from its own `import gputrace` on, and there was none. Start it without -{flag}"
        )
    return (
        "nothing was traced: no Python process that gputrace could reach was started. A process escapes if it is "
        "no Python program, if it is started with -I, -E or -S and imports no gputrace, or if PYTHONPATH and "
        "GPUTRACE_RECORD are taken out of its environment (sudo, env -i, some containers). Record inside the program "
        "then, with `gputrace.trace(FILE)`"
    )


def _isolating_option(command: Sequence[str]) -> str:
    """The option, one of I, E and S, that keeps a Python command from importing our `sitecustomize`; else ""."""
    if not os.path.basename(command[0]).startswith(("python", "pypy")):
        return ""
    arguments = iter(command[1:])
    for argument in arguments:
        if not argument.startswith("-") or argument in ("-", "--"):
            return ""
        if argument.startswith("--"):
            continue
        for place, letter in enumerate(argument[1:], 2):
            if letter in _ISOLATING:
                return letter
            if letter in "cm":
                return ""  # the rest is the program's
            if letter in _TAKES_VALUE:
                if place == len(argument):
                    next(arguments, None)
                break
    return ""
