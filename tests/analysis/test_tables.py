"""Figures as people read them."""

from __future__ import annotations

import csv
import io
import json

import pytest

from gputrace.analysis.tables import CHANGE, COUNT, NS, SHARE, TEXT, Table, as_csv, duration, markdown


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0 ns"),
        (999, "999 ns"),
        (1_000, "1.000 µs"),
        (-1_500, "-1.500 µs"),
        (12_345, "12.35 µs"),
        (123_456, "123.5 µs"),
        (999_950, "1.000 ms"),
        (2_000_000_000, "2.000 s"),
        (12_345_678_900_000, "12,346 s"),
    ],
)
def test_durations(ns: int, text: str) -> None:
    assert duration(ns) == text


def test_markdown() -> None:
    columns = [("name", TEXT), ("count", COUNT), ("time", NS), ("share", SHARE), ("change", CHANGE)]
    table = Table(
        "Spans",
        columns,
        [("a|b\n<c> &lt; $x$ ~~y~~", 1_234, 1_500.0, 0.125, 0.05), ("", 0, float("nan"), None, -0.5)],
        more=3,
    )
    assert markdown([table]).splitlines() == [
        "### Spans",
        "",
        "| name | count | time | share | change |",
        "| --- | ---: | ---: | ---: | ---: |",
        r"| a\|b\\n\<c\> \&lt; \$x\$ \~\~y\~\~ | 1,234 | 1.500 µs | 12.5% | +5.0% |",
        "|  | 0 |  |  | -50.0% |",
        "",
        "and 3 more",
    ]


def test_what_a_terminal_would_obey_is_written_out() -> None:
    """A clear screen, a line that says something else, and text that runs the other way."""
    table = Table("Spans", [("name", TEXT)], [("a\x1b[2J\r\u202eb\ud800",), ("größe 線",)])
    assert list(table.cells()) == [[r"a\x1b[2J\r\u202eb\ud800"], ["größe 線"]]


def test_csv_reads_back() -> None:
    rows = [{"name": 'say "a, b"\n', "ns": 5, "mean": float("nan")}, {"name": "é", "ns": 6, "mean": 0.5}]
    back = list(csv.DictReader(io.StringIO(as_csv(rows))))
    assert back == [{"name": 'say "a, b"\n', "ns": "5", "mean": ""}, {"name": "é", "ns": "6", "mean": "0.5"}]
    assert as_csv([]) == ""


def test_csv_of_what_holds_others_is_json() -> None:
    (back,) = csv.DictReader(io.StringIO(as_csv([{"name": "step", "args": {"number": 0, "of": "é"}, "of": [1, 2]}])))
    assert {"args": json.loads(back["args"]), "of": json.loads(back["of"])} == {
        "args": {"number": 0, "of": "é"},
        "of": [1, 2],
    }
