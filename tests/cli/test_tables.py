"""Tables in terminals of any width, and in none: what names a row stays, and no figure is cut."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.cells import cell_len

from gputrace.analysis.tables import COUNT, NS, TEXT, Table
from gputrace.cli.tables import fit
from tests.analysis.test_summary import rank
from tests.merging.making import Host, write_trace
from tests.record.running import GPUTRACE, on_a_terminal, run

COLUMNS = [("span", TEXT), ("track", TEXT), ("count", COUNT), ("mean time", NS), ("max", NS), ("failed", COUNT)]
ROWS = [("forward", "train.py/GPU 0 · Simulated GPU/compute", 400, 1_288_000, 2_205_000, 0)]


def shown(width: int | None, rows: list[tuple[object, ...]] = ROWS) -> tuple[list[str], list[int], int]:
    table = Table("Spans", COLUMNS, rows, spare=("mean time", "max"))
    found = fit(table, list(table.cells()), width)
    return [COLUMNS[n][0] for n in found.shown], found.widths, found.width


def test_what_fits_and_what_goes_nowhere_is_whole() -> None:
    heads, widths, width = shown(None)
    assert heads == [head for head, _ in COLUMNS]
    assert widths[1] == cell_len(ROWS[0][1])
    assert shown(width) == (heads, widths, width)


def test_texts_fold_and_heads_wrap_before_a_column_goes() -> None:
    heads, _, width = shown(shown(None)[2] - 1)
    assert heads == [head for head, _ in COLUMNS]
    assert width == shown(None)[2] - 1


@pytest.mark.parametrize(
    ("width", "gone"),
    [(66, {"failed"}), (59, {"failed", "mean time"}), (49, {"failed", "mean time", "max"})],
)
def test_columns_that_say_nothing_go_first_then_those_that_can_be_spared(width: int, gone: set[str]) -> None:
    heads, widths, taken = shown(width)
    assert [head for head, _ in COLUMNS if head not in gone] == heads
    assert widths[0] >= len("forward")
    assert taken <= width


@pytest.mark.parametrize("width", [1, 20, 40])
def test_names_and_figures_are_never_squeezed_to_nothing(width: int) -> None:
    heads, widths, _ = shown(width, [("a" * 50, "b" * 50, 123_456_789, 1, 1, 1)])
    assert heads == ["span", "track", "count", "failed"]
    assert min(widths[:2]) >= 10
    assert widths[2] == len("123,456,789")


@pytest.mark.parametrize("columns", [40, 60, 80, 100, 120])
def test_a_summary_and_a_comparison_name_their_spans_on_any_terminal(tmp_path: Path, columns: int) -> None:
    for k, slower in enumerate((1.0, 1.5)):
        write_trace(tmp_path / f"rank{k}.pftrace", Host("node0"), rank(k, slower), number=k)
    for command in (["summary", "--by", "step"], ["diff"]):
        told = [*GPUTRACE, *command, "rank0.pftrace", "rank1.pftrace"]
        code, out = on_a_terminal(told, tmp_path, "stdout", columns=columns)
        assert code == 0
        lines = out.decode().splitlines()
        last = max(n for n, line in enumerate(lines) if "Spans" in line or "Changes" in line)
        assert any(line.split()[:1] == ["forward"] for line in lines[last:])
        assert "…" not in "\n".join(lines[last:])
        assert columns < 80 or all(cell_len(line) <= columns for line in lines[last:] if "\x1b" not in line)


def test_in_a_pipe_a_long_value_hides_nothing(tmp_path: Path) -> None:
    """The longest of the doctor's options once moved where they come from out of sight."""
    options = "options of record     from"
    shown = run([*GPUTRACE, "doctor", "--seconds", "0.1"], tmp_path).stdout.decode()
    assert options in shown
    assert all(line == line.rstrip() for line in shown.splitlines())
