"""Times as a person types them."""

from __future__ import annotations

import re

import click

_TIME = re.compile(r"(?P<number>\d+(?:\.\d*)?|\.\d+)\s*(?P<unit>ns|us|µs|ms|s|min)")
_NS = {"ns": 1, "us": 10**3, "µs": 10**3, "ms": 10**6, "s": 10**9, "min": 60 * 10**9}


class Time(click.ParamType):  # type: ignore[type-arg,unused-ignore]  # generic since click 8.4
    """A number and its unit, such as 250ms; an int of ns."""

    name = "TIME"

    def convert(self, value: str | int, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        match = _TIME.fullmatch(value.strip())
        if match is None:
            self.fail(f"{value!r} is no time: write a number and ns, us, ms, s or min, such as 250ms.", param, ctx)
        return round(float(match["number"]) * _NS[match["unit"]])
