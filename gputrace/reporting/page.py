"""Fills the page in. Everything that a trace names is escaped, and a policy keeps what is not ours from running."""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from gputrace.analysis.tables import TEXT, shown
from gputrace.reporting import charts

if TYPE_CHECKING:
    from gputrace.analysis.summary import Summary
    from gputrace.analysis.tables import Table


@dataclass(frozen=True)
class Picture:
    """A timeline: a PNG, and what it shows; or no bytes, and why there is none."""

    text: str
    png: bytes = b""

    @property
    def url(self) -> str:
        return f"data:image/png;base64,{base64.b64encode(self.png).decode()}"


def page(summary: Summary, tables: Sequence[Table], timeline: Picture) -> bytes:
    """The page, in UTF-8. The same for the same arguments, to the byte."""
    environment = Environment(
        loader=PackageLoader("gputrace.reporting", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {"shown": shown, "sort_key": _sort_key, "TEXT": TEXT}
    style, script = (files("gputrace.reporting").joinpath(name).read_text("utf-8") for name in ("page.css", "page.js"))
    bars = [charts.busy(summary), *charts.shares(summary)]
    text = environment.get_template("page.html").render(
        paths=[trace.path for trace in summary.traces],
        policy=_policy(style, script),
        style=Markup(style),
        script=Markup(script),
        bars=[chart for chart in bars if chart.bars],
        steps=charts.step_times(summary),
        timeline=timeline,
        tables=tables,
    )
    return text.encode("utf-8", "replace")


def _policy(style: str, script: str) -> str:
    """Nothing is fetched or sent, and no style or script counts but the page's own two, by their hashes."""
    hashes = [base64.b64encode(hashlib.sha256(each.encode()).digest()).decode() for each in (style, script)]
    return (
        f"default-src 'none'; style-src 'sha256-{hashes[0]}'; script-src 'sha256-{hashes[1]}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _sort_key(value: float | None) -> str:
    """What a column of figures is sorted by; "" where there is none."""
    return "" if value is None or not math.isfinite(value) else f"{value:.17g}"
