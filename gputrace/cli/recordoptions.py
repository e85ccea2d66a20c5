"""The options of `gputrace record`, and what they come to together, wherever each was given.

It starts nothing: `gputrace doctor` shows what is in force by the same.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from gputrace.cli import settings
from gputrace.cli.settings import Setting
from gputrace.errors import UsageError
from gputrace.instrument.registry import ADD_VARIABLE, CUDA_PROFILER, LEAVE_OUT_VARIABLE, choose
from gputrace.record.region import OFF, calls_options, counters_options, last_options, region_options

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_OPTIONS = (
    click.option(
        "-o",
        "--output",
        default="trace.pftrace",
        show_default=True,
        metavar="FILE",
        help="Where the trace goes, a path or a URL; %r, %h and %p in it stand for rank, host and pid.",
    ),
    click.option(
        "--device",
        default="auto",
        show_default=True,
        metavar="auto|cuda|simulated|host",
        help="What GPU windows are measured on; host: on none.",
    ),
    click.option("--unmasked/--masked", help="Keep what looks like a secret in command lines."),
    click.option(
        "--max-size",
        metavar="SIZE",
        help="How much each process keeps of host spans not written yet, and of the last seconds, like 64MB; 32MB if "
        "not given.",
    ),
    # Those of all places count, the nearer one going before: `choose` puts them together.
    click.option(
        "--instrument",
        multiple=True,
        allow_from_autoenv=False,
        metavar="NAME",
        help="Show this of a framework, too; the README has the names.",
    ),
    click.option(
        "--no-instrument",
        multiple=True,
        allow_from_autoenv=False,
        metavar="NAME",
        help="Leave this of a framework alone, like torch.modules, or all of it: torch.",
    ),
    click.option("--python/--no-python", help="Show calls of the program's own Python functions."),
    click.option(
        "--python-include",
        multiple=True,
        metavar="GLOB",
        help="Of these modules only, like 'torch.nn' or '*'. "
        "If not given: all but the standard library's and packages'.",
    ),
    click.option("--python-exclude", multiple=True, metavar="GLOB", help="Of these modules not."),
    click.option("--python-depth", type=click.IntRange(min=1), metavar="N", help="At most so many shown calls deep."),
    click.option(
        "--python-min",
        metavar="TIME",
        help="Calls at least so long, like 100us, and those in which something else is recorded.",
    ),
    click.option(
        "--python-lines/--no-python-lines", help="Have each call say in which file and line its function begins."
    ),
    click.option("--torch-backward/--no-torch-backward", help="Show the backward of each of PyTorch's modules."),
    click.option("--torch-ops/--no-torch-ops", help="Show each of PyTorch's operators, forward and backward."),
    click.option("--delay", metavar="TIME", help="Record from so long after the start on, like 10s."),
    click.option("--duration", metavar="TIME", help="Record for so long, like 30s; the program goes on."),
    click.option(
        "--steps",
        metavar="A:B",
        help="Record from step A up to step B; gputrace.step() ends a step, or else PyTorch's optimizer.",
    ),
    click.option(
        "--capture-range",
        metavar="cuda-profiler|nvtx:NAME",
        help="Record between torch.cuda.profiler's start() and stop(), or inside NVTX ranges of this name.",
    ),
    click.option(
        "--last", metavar="TIME", help="Keep only so much of the end, like 30s; SIGUSR2 has it written meanwhile, too."
    ),
    click.option(
        "--counters",
        default="100ms",
        show_default=True,
        metavar="TIME|off",
        help="How often to read memory, CPU and GPU counters.",
    ),
    click.option("-q", "--quiet/--no-quiet", help="Say only what went wrong."),
)
#: Lists of which those of pyproject.toml add to those of nearer places.
ADDING = ("instrument", "no_instrument")
#: Those that say which part of a run is recorded.
_REGION = ("delay", "duration", "steps", "capture_range")
#: Of two that contradict one another, the one that was given nearer goes before.
_CONTRADICTIONS = (("steps", "delay"), ("steps", "duration"), ("steps", "capture_range"))


def record_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command these options."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


class Wanted:
    """What a context's options come to. ``instruments`` and ``options`` are as `start_recording` takes them;
    ``left_out`` says, by option, which nearer one it contradicts. Raises `UsageError`.
    """

    def __init__(self, context: click.Context) -> None:
        settings.check_environment(context)
        self.left_out: dict[str, str] = {}
        self.region = {name: _unless_off(context.params[name]) for name in _REGION}
        for one, other in _CONTRADICTIONS:
            self._decide(context, one, other)
        try:
            self._read(context)
        except UsageError as error:
            raise settings.explained(context, error) from None

    def _decide(self, context: click.Context, one: str, other: str) -> None:
        if self.region[one] is None or self.region[other] is None:
            return
        nearness = settings.rank(context, one) - settings.rank(context, other)
        if nearness:
            nearer, farther = (one, other) if nearness > 0 else (other, one)
            self.region[farther] = None
            self.left_out[farther.replace("_", "-")] = f"--{nearer.replace('_', '-')} was given nearer"

    def _read(self, context: click.Context) -> None:
        params = context.params
        python = params["python"]
        filters = ("python_include", "python_exclude", "python_depth", "python_min", "python_lines")
        # Filters that stand somewhere for good wait there for --python; one on the command line is meant for now.
        if python or any(settings.rank(context, name) == 3 for name in filters):
            called = calls_options(python, *(params[name] for name in filters))
        else:
            called = {}
        self.options = region_options(**self.region) | last_options(params["last"])
        self.options |= counters_options(params["counters"]) | called
        add, leave_out = (params[name] if settings.rank(context, name) == 3 else () for name in ADDING)
        below = _of_project(context, "instrument"), _of_project(context, "no_instrument")
        flags = {"python.calls": python, "python.exceptions": python}
        flags |= {f"torch.{what}": params[f"torch_{what}"] for what in ("backward", "ops")}
        self.instruments = choose([*add, *(name for name in flags if flags[name])], leave_out, below=below)
        self._check_capture()

    def _check_capture(self) -> None:
        """Raise `UsageError` where what a capture range is seen by was left out."""
        asked = str(self.options.get("capture_range", ""))
        seen_by = ["torch.cuda"] if asked == CUDA_PROFILER else ["nvtx.ranges", "torch.ranges"] if asked else []
        names = {word.partition("=")[0] for word in self.instruments}
        if seen_by and not names.intersection(seen_by):
            raise UsageError(f"--capture-range {asked} is seen by {' and '.join(seen_by)}, which you left out")

    def settings(self, context: click.Context) -> list[Setting]:
        """Every option as it is in force, and where it comes from; of those that add up, what each place has."""
        found = [each for each in settings.settings(context) if each.name.replace("-", "_") not in ADDING]
        for each in found:
            if each.name in self.left_out:
                each.where += f"; left out: {self.left_out[each.name]}"
        for name, variable in zip(ADDING, (ADD_VARIABLE, LEAVE_OUT_VARIABLE), strict=True):
            places = [(_of_project(context, name), settings.project().path), (os.environ.get(variable, ""), variable)]
            found += [Setting(name.replace("_", "-"), value, where) for value, where in places if value]
        return [*found, Setting("instruments in force", self.instruments, "all of these")]


def _of_project(context: click.Context, name: str) -> Sequence[str]:
    found: Sequence[str] = (context.default_map or {}).get(name, ())
    return found


def _unless_off(value: str | None) -> str | None:
    return None if value is None or value.strip().lower() == OFF else value
