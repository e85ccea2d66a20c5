"""Draws slices as bars on rows, by matplotlib. It chooses nothing: `choice` and `rows` did."""

from __future__ import annotations

import io
import os
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np

from gputrace.errors import OutputError, UsageError
from gputrace.plotting.rows import Row, rows
from gputrace.record.replace import replacing

if TYPE_CHECKING:
    from gputrace.table.trace import Trace

#: Colours that are told apart on white, also by the colour-blind (Paul Tol's "light" scheme).
_COLOURS = ("#77AADD", "#EE8866", "#EEDD88", "#FFAABB", "#99DDFF", "#44BB99", "#BBCC33", "#AAAA00")
_ROW_INCHES = 0.22
_MOST_ROWS = 400
#: Bars narrower than this many pixels are drawn that wide, one for all that begin in the same pixel.
_LEAST_PIXELS = 1.0
#: Those narrower than this many of them have no white edge: it would be all that is seen.
_LEAST_EDGED = 4
#: A name is written into a bar that has so much room for each of its letters, in points.
_LETTER_POINTS = 4.6
_UNITS = ((1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1.0, "ns"))
#: By format: what is said beside the picture. The date, which they would have, is not.
_METADATA: dict[str, dict[str, None]] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}


def draw(
    trace: Trace,
    output: str,
    start_ns: int,
    end_ns: int,
    *,
    most_deep: int = 8,
    width_inches: float = 12.0,
    title: str = "",
    dots_per_inch: int = 120,
) -> int:
    """Draw what of ``trace`` lies between two times of its clock, and return how many slices that is.

    If none is there, no picture is written.

    The format is the output's suffix: .svg, .png or .pdf. Raises `UsageError` without matplotlib, for another suffix,
    or for more rows than a picture can show; `OutputError` if it cannot be written: an older picture stays as it was.
    """
    part = trace.select(start_ns=start_ns, end_ns=end_ns)
    _matplotlib()
    if not len(part.slices):
        return 0
    suffix = output.rpartition(".")[2].lower()
    if suffix not in _METADATA:
        raise UsageError(f"{output}: name a picture that ends in .svg, .png or .pdf.")
    figure = _figure(part, trace.start_ns, (start_ns, end_ns), most_deep, width_inches, title, dots_per_inch)
    picture = _bytes(figure, suffix)
    try:
        with replacing(os.path.realpath(output), f"{os.urandom(6).hex()}.drawn") as write:
            write(picture)
    except OSError as error:
        raise OutputError(f"{output} cannot be written: {error.strerror or error}") from error
    return len(part.slices)


def png(trace: Trace, start_ns: int, end_ns: int, *, most_deep: int) -> bytes:
    """The same as a file's content, with a finer grain. Raises `UsageError` as `draw` does."""
    part = trace.select(start_ns=start_ns, end_ns=end_ns)
    return _bytes(_figure(part, trace.start_ns, (start_ns, end_ns), most_deep, 14.0, "", 160), "png")


def _figure(
    part: Trace,
    zero_ns: int,
    range_ns: tuple[int, int],
    most_deep: int,
    width_inches: float,
    title: str,
    dots_per_inch: int,
) -> Any:
    start_ns, end_ns = range_ns
    figure_class, collection_class = _matplotlib()
    lines = rows(part, most_deep)
    if len(lines) > _MOST_ROWS:
        raise UsageError(
            f"that is {len(lines):,} rows, more than a picture shows: choose tracks, or a smaller --depth."
        )
    unit_ns, unit = next(each for each in _UNITS if end_ns - start_ns >= each[0] or each[0] == 1.0)
    height = max(len(lines), 1) * _ROW_INCHES + (1.1 if title else 0.8)
    figure = figure_class(figsize=(width_inches, height), dpi=dots_per_inch, layout="constrained")
    axes = figure.subplots()
    least = (end_ns - start_ns) / unit_ns / (width_inches * dots_per_inch) * _LEAST_PIXELS
    for number, line in enumerate(lines):
        _draw_row(axes, collection_class, part, line, -number, (start_ns, end_ns, unit_ns, least))
    label = f"{unit} since {(start_ns - zero_ns) / 1e9:.6f} s"
    _finish(axes, lines, (end_ns - start_ns) / unit_ns, label, title)
    return figure


def _bytes(figure: Any, suffix: str) -> bytes:
    """The same picture for the same trace: no date in it, and no random ids."""
    import matplotlib

    picture = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "gputrace", "svg.fonttype": "none"}):
        figure.savefig(picture, format=suffix, metadata=_METADATA[suffix])
    return picture.getvalue()


def _draw_row(
    axes: Any, collection_class: Any, trace: Trace, line: Row, y: int, view: tuple[int, int, float, float]
) -> None:
    start_ns, end_ns, unit_ns, least = view
    slices = trace.slices
    begin = (np.clip(slices.ts_ns[line.slices], start_ns, end_ns) - start_ns) / unit_ns
    end = (np.clip(slices.end_ns[line.slices], start_ns, end_ns) - start_ns) / unit_ns
    # Of bars too narrow to see, one a pixel is enough: a million would take minutes and megabytes.
    narrow = end - begin < least
    pixel = np.floor(begin / least).astype(np.int64)
    first = np.ones(len(pixel), np.bool_)
    first[1:] = pixel[1:] != pixel[:-1]
    shown = np.flatnonzero(~narrow | first)
    begin, rows_shown = begin[shown], line.slices[shown]
    width = np.maximum(end[shown] - begin, least)
    names = slices.names[rows_shown]
    colours = [_COLOURS[zlib.crc32(str(name).encode("utf-8", "replace")) % len(_COLOURS)] for name in names]
    edges = ["#CC3311" if unfinished else "white" for unfinished in slices.unfinished[rows_shown]]
    boxes = [
        [(x, y - 0.45), (x + w, y - 0.45), (x + w, y + 0.45), (x, y + 0.45)] for x, w in zip(begin, width, strict=True)
    ]
    # The id is the group's in an SVG, for whoever styles it there.
    lines = [0.0 if narrow else 0.4 for narrow in (width < _LEAST_EDGED * least) & ~slices.unfinished[rows_shown]]
    bars = collection_class(boxes, facecolors=colours, edgecolors=edges, linewidths=lines, gid=f"row-{-y}")
    axes.add_collection(bars)
    points = axes.figure.get_figwidth() * 72 * 0.82 / ((end_ns - start_ns) / unit_ns)
    for x, w, name in zip(begin.tolist(), width.tolist(), names, strict=True):
        letters = int(w * points / _LETTER_POINTS)
        text = str(name) if len(str(name)) <= letters else f"{str(name)[: letters - 1]}…" if letters >= 4 else ""
        if text:
            # parse_math: a name may hold dollar signs.
            axes.text(x + w / 2, y, text, ha="center", va="center", fontsize=7, clip_on=True, parse_math=False)


def _finish(axes: Any, lines: list[Row], width: float, label: str, title: str) -> None:
    axes.set_xlim(0, width)
    axes.patch.set_gid("timeline")
    axes.set_ylim(-max(len(lines), 1) + 0.4, 0.6)
    named = [(-k, line.title) for k, line in enumerate(lines) if line.first]
    axes.set_yticks([y for y, _ in named], [text for _, text in named], fontsize=8, parse_math=False)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel(label, fontsize=8)
    axes.tick_params(axis="x", labelsize=8)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    for y, _ in named[1:]:
        axes.axhline(y + 0.5, color="#DDDDDD", linewidth=0.6, zorder=0)
    if title:
        axes.set_title(title, fontsize=10, loc="left", parse_math=False)


def _matplotlib() -> tuple[Any, Any]:
    try:
        from matplotlib.collections import PolyCollection
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UsageError("a picture needs matplotlib: pip install 'gputrace[plot]'.") from error
    return Figure, PolyCollection
