"""`gputrace.read`: a file to a `Trace`, whatever wrote it."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from gputrace.reading import recognise
from gputrace.reading.stream import ByteStream, Limits
from gputrace.remote import here
from gputrace.table.chrome import ChromeReader
from gputrace.table.perfetto import PerfettoReader
from gputrace.table.trace import Trace

if TYPE_CHECKING:
    from gputrace.table.columns import Counters, Flows, Instants, Slices
    from gputrace.table.trace import Patterns
    from gputrace.table.tracks import Track


def read(
    path: str | os.PathLike[str],
    *,
    tracks: Patterns | Callable[[Track], bool] | None = None,
    names: Patterns | None = None,
    start_ns: int | None = None,
    end_ns: int | None = None,
    limits: Limits | None = None,
) -> Trace:
    """The trace in a file: Perfetto's format or Chrome's JSON, gzipped or not, of gputrace or any other tool.

    ``path`` may be a URL of any storage that fsspec knows, and is fetched into a temporary file then, which takes the
    extra ``remote``. What the file is is told by its content. ``tracks``, ``names``, ``start_ns`` and ``end_ns`` choose
    a part of it as `Trace.select` does; times are the trace's own. What cannot be read of it is in the result's
    ``problems``, and all else is there. ``limits`` bound what a gzipped file may unfold to.

    Raises `InputError` if the file cannot be read at all, or is no trace, and `UsageError` for a URL without fsspec.
    """
    with here(os.fspath(path)) as name:
        kind = recognise.recognise(name, limits)
        with ByteStream(name, limits) as stream:
            trace = _chrome(stream) if kind == recognise.CHROME else _perfetto(stream)
    if tracks is None and names is None and start_ns is None and end_ns is None:
        return trace
    return trace.select(tracks=tracks, names=names, start_ns=start_ns, end_ns=end_ns)


def _perfetto(stream: ByteStream) -> Trace:
    reader = PerfettoReader(stream)
    reader.read()
    return of_perfetto(reader, *reader.gathered.tables())


def of_perfetto(reader: PerfettoReader, slices: Slices, instants: Instants, counters: Counters, flows: Flows) -> Trace:
    """What a reader found that is through, with such tables."""
    tool = "gputrace" if any(name.startswith("gputrace") for name in reader.metadata) else ""
    return Trace(
        reader.stream.path,
        recognise.PERFETTO,
        tool,
        "boottime",
        slices,
        instants,
        counters,
        flows,
        reader.descriptors.tracks(),
        reader.clock_table(),
        reader.metadata,
        reader.gathered.problems,
    )


def _chrome(stream: ByteStream) -> Trace:
    reader = ChromeReader(stream)
    reader.read()
    recording = reader.rows.recording
    base_ns = recording["base_ns"] + recording["boottime_offset_ns"] if recording else 0
    slices, instants, counters, flows = reader.gathered.tables(base_ns)
    return Trace(
        stream.path,
        recognise.CHROME,
        _tool(reader, bool(recording)),
        "boottime" if recording else "",
        slices,
        instants,
        counters,
        flows,
        reader.rows.tracks(),
        reader.clock_table(),
        {**reader.facts, **reader.rows.facts},
        reader.gathered.problems,
    )


def _tool(reader: ChromeReader, ours: bool) -> str:
    if ours:
        return "gputrace"
    if isinstance(reader.facts.get("viztracer_metadata"), dict):
        return "viztracer"
    return "torch.profiler" if "schemaVersion" in reader.facts and "traceName" in reader.facts else ""
