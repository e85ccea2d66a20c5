"""Figures of several Pythons and twins come together in one table, and nothing that misses its budget looks met."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.benchmarks import figures, report
from tests.benchmarks.figures import COMPILED, PURE, Row
from tests.benchmarks.report import Figure, Report


def cost(measured: float | None, budget: float, aside: str = "") -> Row:
    return Row("a span", measured, budget, aside=aside)


def run(python: str, *found: Figure) -> Report:
    twins = {figure.twin for figure in found}
    return Report(list(found), {python: f"CPython {python}"}, [] if COMPILED in twins else [python])


FIRST = run("3.11", Figure("Cost", cost(3.0, 3.5), "3.11", PURE), Figure("Cost", cost(0.5, 0.75), "3.11", COMPILED))
SECOND = run("3.13", Figure("Cost", cost(4.0, 3.5), "3.13", PURE), Figure("Peers", Row("keke", 16.0), "3.13", ""))


def test_a_line_has_every_python_and_twin_and_says_which_is_over() -> None:
    merged = Report.merged([SECOND, FIRST])
    assert "| Cost | compiled 3.11 | pure 3.11 | pure 3.13 | budget | verdict |" in merged.markdown()
    line = "| a span | 0.50x | 3x | 4x | pure 3.50x, compiled 0.75x | over: pure 3.13 |"
    assert line in merged.markdown().splitlines()
    assert [figure.column for figure in merged.over] == ["pure 3.13"]


def test_a_budget_of_one_twin_says_whose_it_is() -> None:
    edge = Report([], {}, [])
    edge.figures = [Figure("Cost", Row("an edge", 700.0, unit="ns"), "3.11", PURE)]
    edge.figures.append(Figure("Cost", Row("an edge", 20.0, 33, "ns"), "3.11", COMPILED))
    assert "| an edge | 20 ns | 700 ns | compiled 33 ns | met |" in edge.markdown()


def test_what_nobody_judges_has_neither_budget_nor_verdict() -> None:
    assert "| Peers | 3.13 |\n| --- | ---: |\n| keke | 16x |" in SECOND.markdown()


def test_a_python_without_the_compiled_twin_is_named() -> None:
    assert Report.merged([FIRST, SECOND]).markdown().endswith("The compiled twin was not built for Python 3.13.")


def test_a_later_run_replaces_what_it_measured_again_and_nothing_else() -> None:
    again = run("3.11", Figure("Cost", cost(3.6, 3.5), "3.11", PURE))
    again.pure_only = []
    merged = Report.merged([FIRST, again])
    assert {figure.column: figure.row.measured for figure in merged.figures} == {"pure 3.11": 3.6, "compiled 3.11": 0.5}


def test_what_could_not_be_measured_says_why_and_is_not_judged() -> None:
    missing = run("3.11", Figure("Cost", cost(None, 3.5, "not installed"), "3.11", PURE))
    assert "| a span | not installed | 3.50x |  |" in missing.markdown()
    assert missing.over == []


def test_it_reads_back_what_it_kept(tmp_path: Path) -> None:
    FIRST.write(tmp_path / "kept.json")
    assert Report.read(tmp_path / "kept.json") == FIRST


@pytest.mark.parametrize(("at_least", "verdict"), [(False, "over"), (True, "met")])
def test_a_budget_is_the_most_or_the_least(at_least: bool, verdict: str) -> None:
    assert Row("writing", 3.0, 2.0, "M/s", at_least).verdict == verdict


def test_a_block_chooses_the_twin_of_its_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GPUTRACE_PURE", raising=False)
    with figures.using(PURE):
        assert figures.in_child("figures", fake=False) == PURE
    assert "GPUTRACE_PURE" not in os.environ


def test_the_readme_has_a_place_for_the_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n")
    monkeypatch.setattr(report, "README", readme)
    report.write_readme("new")
    assert readme.read_text() == f"before\n{report.BEGIN}\nnew\n{report.END}\nafter\n"
    readme.write_text("no marks")
    with pytest.raises(SystemExit):
        report.write_readme("new")
