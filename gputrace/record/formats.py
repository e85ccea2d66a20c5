"""Which exporter writes a file, by its suffix.

It knows no format, only their names: exporters are found through the entry-point group ``gputrace.exporters``, whose
names are suffixes without their dot.
"""

from __future__ import annotations

import importlib
import os

from gputrace.errors import UsageError
from gputrace.model import Exporter

GROUP = "gputrace.exporters"

# What our own entry points say, said again: reading them takes importlib.metadata, which alone costs a third of what
# `record` may cost around an empty program. Other suffixes pay for it. A test compares this with the entry points.
_OWN = {
    ".pftrace": "gputrace.exporters.perfetto:Perfetto",
    ".json": "gputrace.exporters.chrome:Chrome",
}


class Format:
    """What an output's name asks for: ``suffix`` (".pftrace"), ``exporter`` ("module:Class"), and gzip or not."""

    __slots__ = ("exporter", "gzip", "suffix")

    def __init__(self, suffix: str, exporter: str, gzip: bool) -> None:
        self.suffix = suffix
        self.exporter = exporter
        self.gzip = gzip


def of_output(output: str) -> Format:
    """The format of ``NAME.suffix`` or ``NAME.suffix.gz``. Raises `UsageError`, listing the suffixes known."""
    name = os.path.basename(output)
    gzip = name.lower().endswith(".gz")
    suffix = os.path.splitext(name[:-3] if gzip else name)[1].lower()
    exporter = _OWN.get(suffix) or known().get(suffix)
    if exporter is None:
        said = f"the suffix {suffix!r} names no trace format" if suffix else "it has no suffix that names a format"
        listed = ", ".join(known())
        raise UsageError(f"cannot write {output}: {said}. Known are {listed}, each also with .gz behind it")
    return Format(suffix, exporter, gzip)


def known() -> dict[str, str]:
    """Exporter ("module:Class") by suffix, ours first. Costs an import of importlib.metadata: some 40 ms."""
    from importlib.metadata import entry_points

    others = {f".{point.name}": point.value for point in entry_points(group=GROUP)}
    return _OWN | {suffix: exporter for suffix, exporter in sorted(others.items()) if suffix not in _OWN}


def load(exporter: str) -> type[Exporter]:
    """The class behind "module:Class". Raises `UsageError` if it cannot be imported or is no `Exporter`."""
    module, _, name = exporter.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except Exception as error:  # a third party's import may raise anything
        raise UsageError(f"the exporter {exporter} cannot be loaded: {type(error).__name__}: {error}") from error
    if not (isinstance(found, type) and issubclass(found, Exporter)):
        raise UsageError(f"the exporter {exporter} is no subclass of gputrace.model.Exporter")
    return found
