"""What to tell someone whose recording came out empty: why, and what to try."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from gputrace.record.tally import Summary

_ISOLATING = {"I": "which ignores PYTHONPATH", "E": "which ignores PYTHONPATH", "S": "which skips sitecustomize"}
# Python's one-letter options that take a value, in the same argument or the next.
_TAKES_VALUE = "cmWX"


def why_empty(summary: Summary) -> str:
    """One paragraph for a recording in which nothing was traced: the reason, and what to try."""
    return f"nothing was traced: {_reason(summary)}"


def _reason(summary: Summary) -> str:
    if summary.failed_to_trace:
        return "tracing failed, see above"
    if summary.missed:
        return "no process came to what was to be recorded, see above"
    if summary.running:
        return "what the command started still runs, see above. Let the command wait for it"
    if summary.nested:
        inner = summary.nested[-1]
        return (
            f"the command runs `gputrace record` itself, and a process is traced by the innermost alone: see {inner}. "
            "Take one of the two out"
        )
    if summary.started:
        return _without_spans(summary)
    flag = isolating_option(summary.command)
    if flag:
        return (
            f"{os.path.basename(summary.command[0])} was started with -{flag}, {_ISOLATING[flag]}: it is traced only "
            f"from its own `import gputrace` on, and there was none. Start it without -{flag}"
        )
    if summary.heirs:
        return (
            f"process {summary.heirs[0]} still runs, and no Python had started. What it starts from now on is not "
            "traced: let the command wait for it"
        )
    return (
        "no Python process that gputrace could reach was started. A process escapes if it is "
        "no Python program, if it is started with -I, -E or -S and imports no gputrace, or if PYTHONPATH and "
        "GPUTRACE_RECORD are taken out of its environment (sudo, env -i, some containers). Record inside the program "
        "then, with `gputrace.trace(FILE)`"
    )


def _without_spans(summary: Summary) -> str:
    without = summary.started - summary.silent
    reasons = []
    if summary.silent:
        reasons.append(
            f"{_processes(summary.silent)} ended before anything was written: killed, or left by os._exit or exec. "
            "What a process records is written some 20 times a second, and at its end if Python cleans up: let it "
            "live longer, or end it with sys.exit"
        )
    if without > 0:
        reasons.append(
            f"{_processes(without)} ran and opened no span. Put `with gputrace.span(NAME, stream=STREAM):` around what "
            "you want to see"
        )
    return "; ".join(reasons)


def _processes(count: int) -> str:
    return "one Python process" if count == 1 else f"{count} Python processes"


def isolating_option(command: Sequence[str]) -> str:
    """The option, one of I, E and S, that keeps a Python command from importing our `sitecustomize`; else ""."""
    if not command or not os.path.basename(command[0]).startswith(("python", "pypy")):
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
