"""The part of a run that a user asked for, as people write it: "--delay 5s", "--steps 10:20", "--python-depth 3".

It knows nothing of how it is kept to: `gputrace.regions` and `gputrace.instrument` read what comes out.
"""

from __future__ import annotations

from gputrace.errors import UsageError
from gputrace.instrument.registry import CUDA_PROFILER, NVTX

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

_UNITS_NS = {"": 1e9, "s": 1e9, "ms": 1e6, "us": 1e3, "µs": 1e3, "m": 60e9, "min": 60e9, "h": 3600e9}
#: Stands for no counters, and takes back a region that was asked for elsewhere.
OFF = "off"
MOST_NS = 366 * 86_400 * 10**9
MOST_DIGITS = 15
LEAST_KEPT_NS = 1_000_000_000
#: NVML itself looks no more often.
LEAST_PERIOD_NS = 10_000_000


def region_options(
    delay: str | None, duration: str | None, steps: str | None, capture_range: str | None = None
) -> dict[str, int | str]:
    """What every process is told of the region, as `gputrace.shards.ShardFolder` takes options; none if none is asked.

    Raises `UsageError` for what is no time, no range of steps and no kind of range to capture, and where two of them
    contradict one another.
    """
    if steps is not None and capture_range is not None:
        raise UsageError(
            "--steps and --capture-range contradict one another: each says by itself where to begin. Give one of them"
        )
    if steps is not None and (delay is not None or duration is not None):
        other = "--delay" if delay is not None else "--duration"
        raise UsageError(
            f"--steps and {other} contradict one another: --steps counts, {other} goes by the clock. Give one of them"
        )
    options: dict[str, int | str] = {}
    if delay is not None:
        options["delay_ns"] = duration_in_ns(delay, "--delay")
    if duration is not None:
        options["duration_ns"] = duration_in_ns(duration, "--duration")
        if not options["duration_ns"]:
            raise UsageError(f"--duration {duration} would record nothing: give more, like --duration 10s")
    if steps is not None:
        first, end = _steps(steps)
        options["first_step"] = first
        if end is not None:
            options["end_step"] = end
    if capture_range is not None:
        options["capture_range"] = _capture_range(capture_range)
    given = {"--delay": delay, "--duration": duration, "--steps": steps, "--capture-range": capture_range}
    if options:
        options["region"] = " ".join(f"{name} {value}" for name, value in given.items() if value is not None)
    return options


def last_options(last: str | None, named: str = "--last") -> dict[str, int | str]:
    """What every process is told of how much of its end it keeps; none if that is all. ``named``: as who asks calls it.

    Raises `UsageError` for what is no time, and for less than `LEAST_KEPT_NS`.
    """
    if last is None or last.strip().lower() == OFF:
        return {}
    last_ns = duration_in_ns(last, named)
    if last_ns < LEAST_KEPT_NS:
        raise UsageError(f"{named} {last} is too short: give 1s or more")
    return {"last_ns": last_ns}


def duration_in_ns(text: str, option: str) -> int:
    """A time in ns, from a number with a unit: "500ms", "1.5s", "2m", "1h"; seconds without one.

    Raises `UsageError` for what is none, and for more than a year.
    """
    written = text.strip().lower()
    unit = written.lstrip("0123456789.")
    number = written.removesuffix(unit)
    unit = unit.strip()
    if unit not in _UNITS_NS or not number.isascii() or not number.replace(".", "", 1).isdecimal():
        raise UsageError(f"{option} {text!r} is no time: write it like 500ms, 10s or 2m")
    ns = float(number) * _UNITS_NS[unit]
    if ns > MOST_NS:
        raise UsageError(f"{option} {text} is more than a year: write it like 500ms, 10s or 2m")
    return round(ns)


def counters_options(every: str, named: str = "--counters") -> dict[str, int | str]:
    """What every process is told of its counters: read every so often, or never for "off". ``named`` as above.

    Raises `UsageError` for what is neither, and for more often than `LEAST_PERIOD_NS`.
    """
    if every.strip().lower() == OFF:
        return {}
    period_ns = duration_in_ns(every, named)
    if period_ns < LEAST_PERIOD_NS:
        raise UsageError(f"{named} {every} is too often: give 10ms or more, or off")
    return {"counters_ns": period_ns}


def calls_options(
    python: bool,
    include: Iterable[str],
    exclude: Iterable[str],
    depth: int | None,
    least: str | None,
    lines: bool = False,
) -> dict[str, int | str]:
    """What every process is told of which function calls to show: see `gputrace.instrument.python_calls.calls`.

    Raises `UsageError` for a filter where no calls are to be shown, and for a ``least`` that is no time.
    """
    options: dict[str, int | str] = {}
    for name, globs in (("include", include), ("exclude", exclude)):
        if text := ",".join(globs):
            options[f"python_{name}"] = text
    if depth is not None:
        options["python_depth"] = depth
    if least is not None and (least_ns := duration_in_ns(least, "--python-min")):
        options["python_min_ns"] = least_ns
    if lines:
        options["python_lines"] = 1
    if options and not python:
        given = ", ".join(f"--{name.removesuffix('_ns').replace('_', '-')}" for name in options)
        raise UsageError(f"{given} only says which calls to show: add --python to show calls")
    return options


def _steps(text: str) -> tuple[int, int | None]:
    """The first step and the one behind the last, None for no end: "10:20" is a range as Python's.

    A number alone is refused: to some it is that step, to others so many, and which it was shows when the run is over.
    """
    first, colon, end = (part.strip() for part in text.partition(":"))
    numbers = [part for part in (first, end) if part]
    if not numbers or not all(_is_number(part) for part in numbers):
        raise UsageError(f"--steps {text!r} is no range of steps: write it like 10:20 (step 10 to step 19), 10: or :20")
    begin = int(first) if first else 0
    if not colon:
        alone, many = f"step {begin} alone is {begin}:{begin + 1}", f"the first {begin} steps are :{begin}"
        raise UsageError(f"--steps {text} is no range of steps: {alone}{f', {many}' if begin else ''}")
    if end and int(end) <= begin:
        raise UsageError(f"--steps {text} holds no step: the second number must be more than the first")
    return begin, int(end) if end else None


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= MOST_DIGITS


def _capture_range(text: str) -> str:
    """As `gputrace.instrument.capturing` reads it. Names of ranges are taken as they are."""
    kind, colon, name = text.partition(":")
    if text == CUDA_PROFILER or (kind + colon == NVTX and name):
        return text
    from difflib import get_close_matches

    forms = {CUDA_PROFILER: CUDA_PROFILER, "nvtx": f"{NVTX}NAME, where NAME is the range's"}
    close = get_close_matches(kind.strip().lower(), forms, 1, 0.5)
    meant = f"did you mean {forms[close[0]]}?" if close else f"there are {CUDA_PROFILER} and {NVTX}NAME"
    raise UsageError(f"--capture-range {text!r} is none: {meant}")
