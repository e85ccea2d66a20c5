"""Suffixes and the exporters behind them."""

from __future__ import annotations

from importlib.metadata import entry_points

import pytest

from gputrace.errors import UsageError
from gputrace.model import Exporter
from gputrace.record import formats


def test_our_own_table_says_what_our_entry_points_say() -> None:
    declared = {f".{point.name}": point.value for point in entry_points(group=formats.GROUP)}
    assert declared.items() >= formats._OWN.items()


@pytest.mark.parametrize(
    ("output", "suffix", "gzip"),
    [
        ("trace.pftrace", ".pftrace", False),
        ("a.b/trace.pftrace.gz", ".pftrace", True),
        ("trace.JSON", ".json", False),
        ("x.pftrace.json.gz", ".json", True),
    ],
)
def test_suffix_and_gzip(output: str, suffix: str, gzip: bool) -> None:
    format = formats.of_output(output)
    assert (format.suffix, format.gzip) == (suffix, gzip)
    assert issubclass(formats.load(format.exporter), Exporter)


@pytest.mark.parametrize("output", ["trace", "trace.gz", "trace.foo", ".pftrace", "trace.pftrace.bz2", "a.json/trace"])
def test_an_unknown_suffix_is_refused_with_those_known(output: str) -> None:
    with pytest.raises(UsageError, match=r"\.pftrace, \.json"):
        formats.of_output(output)


@pytest.mark.parametrize("exporter", ["no.such.module:Class", "gputrace.model:Nothing", "gputrace.model:Track", "junk"])
def test_an_exporter_that_is_none_is_refused(exporter: str) -> None:
    with pytest.raises(UsageError, match="exporter"):
        formats.load(exporter)
