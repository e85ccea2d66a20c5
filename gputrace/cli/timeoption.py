"""Times as a person types them."""

from __future__ import annotations

import re

import click

from gputrace.errors import UsageError

_TIME = re.compile(r"(?P<number>\d+(?:\.\d+)?)(?P<unit>ns|us|µs|ms|s|min)?")
_UNIT_NS = {"ns": 1, "us": 10**3, "µs": 10**3, "ms": 10**6, "s": 10**9, "min": 60 * 10**9}


class Time(click.ParamType):  # type: ignore[type-arg,unused-ignore] # generic in newer releases alone
    """A number and its unit, such as 250ms, seconds if it has none; an int of ns."""

    name = "time"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        match = _TIME.fullmatch(str(value).strip())
        if match is None:
            self.fail(f"{value!r} is no time: write 1.5s, 200ms, 30us or 10min", param, ctx)
        whole, _, digits = match["number"].partition(".")
        unit_ns = _UNIT_NS[match["unit"] or "s"]
        ns: int = int(whole) * unit_ns + int(digits or 0) * unit_ns // 10 ** len(digits)
        return ns


def check_range(from_ns: int | None, to_ns: int | None) -> None:
    """Raises `UsageError` where ``--from`` and ``--to`` leave nothing between them."""
    if from_ns is not None and to_ns is not None and from_ns >= to_ns:
        raise UsageError("--from is not before --to: nothing lies between them")
