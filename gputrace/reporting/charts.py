"""What a summary's charts show: how long each bar is, and what is written at it. It knows no HTML."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gputrace.analysis.places import GPU, HOST
from gputrace.analysis.tables import duration, printable

if TYPE_CHECKING:
    from gputrace.analysis.steps import Step
    from gputrace.analysis.summary import Summary

#: A chart has so many bars, and so many columns; a page so many charts of steps.
_MOST_BARS = 10
_MOST_COLUMNS = 240
_MOST_THREADS = 4


@dataclass(frozen=True)
class Bar:
    """``share`` of the whole width is filled, 0 to 1."""

    label: str
    share: float
    text: str


@dataclass(frozen=True)
class Bars:
    """Bars that lie below one another. ``more`` counts those that were left out."""

    title: str
    note: str
    bars: list[Bar]
    more: int = 0


@dataclass(frozen=True)
class Column:
    """A step, or some that follow one another. Heights are shares of the chart's, 0 to 1: the slowest one's time on the
    host, the median one's, and how long the GPU was busy for the median one.
    """

    slowest: float
    median: float
    gpu: float
    text: str


@dataclass(frozen=True)
class Columns:
    """The steps of a thread, in order. ``top`` is the time at the chart's upper edge."""

    title: str
    note: str
    top: str
    columns: list[Column]


def busy(summary: Summary) -> Bars:
    """How busy each GPU and each of its streams was."""
    bars = [
        Bar(
            printable(f"{use.device}/{use.stream}" if use.stream else use.device),
            (share := use.busy_ns / max(use.end_ns - use.begin_ns, 1)),
            f"{share:.1%} of {duration(use.end_ns - use.begin_ns)}",
        )
        for use in summary.devices
    ]
    return Bars(
        "GPU busy", "From each GPU's first window to its last, or in the time asked for; overlap counted once.", bars
    )


def shares(summary: Summary) -> Iterator[Bars]:
    """On the host and on GPUs: the spans that have most of the time."""
    for side, title in ((GPU, "Where the GPUs' time goes"), (HOST, "Where the host's time goes")):
        own: dict[str, int] = {}
        for row in summary.spans:
            if row.side == side:
                own[row.name] = own.get(row.name, 0) + row.self_ns
        whole = sum(own.values())
        longest = sorted(((name, ns) for name, ns in own.items() if ns), key=lambda each: -each[1])
        bars = [
            Bar(printable(name), ns / whole, f"{ns / whole:.1%}, {duration(ns)}") for name, ns in longest[:_MOST_BARS]
        ]
        note = f"Time in each span and in none inside it, of {duration(whole)} in all spans told of here."
        yield Bars(title, note, bars, len(longest) - len(bars))


def step_times(summary: Summary) -> list[Columns]:
    """Of each thread that has steps, how long they took; of the first threads, where many have."""
    by_place: dict[str, list[Step]] = {}
    for step in summary.steps:
        by_place.setdefault(step.place, []).append(step)
    return [_columns(place, steps) for place, steps in list(by_place.items())[:_MOST_THREADS]]


def _columns(place: str, steps: list[Step]) -> Columns:
    figures = np.array([(step.duration_ns, step.gpu_busy_ns) for step in steps], np.int64)
    top = max(int(figures.max()), 1)
    columns = []
    first = 0
    for part in np.array_split(figures, min(_MOST_COLUMNS, len(figures))):
        median, gpu = np.median(part, axis=0).tolist()
        slowest = int(part[:, 0].max())
        last = first + len(part) - 1
        if last == first:
            text = f"step {first}: {duration(slowest)}, GPU busy for {duration(gpu)}"
        else:
            text = (
                f"steps {first} to {last}: median {duration(median)}, slowest {duration(slowest)}, "
                f"GPU busy for {duration(gpu)}"
            )
        columns.append(Column(slowest / top, median / top, gpu / top, text))
        first = last + 1
    a_column = "" if len(columns) == len(steps) else f" A column is {len(steps) / len(columns):.1f} steps: "
    note = f"{len(steps):,} steps, in order.{a_column}{'their median, and pale the slowest one.' if a_column else ''}"
    return Columns(f"Steps of {printable(place)}", note, duration(top), columns)
