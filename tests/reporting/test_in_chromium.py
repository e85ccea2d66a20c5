"""The page in real Chromium: its own style and script work under its policy, nothing else does, nothing is fetched."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import gputrace
from gputrace.analysis.summary import Options, Summarizer
from gputrace.analysis.summarytables import tables
from gputrace.reporting.overview import overview
from gputrace.reporting.page import page
from tests.chromium import launched
from tests.reporting.test_page import HOSTILE, hostile

pytestmark = pytest.mark.slow

INJECTED = (
    "<script>document.title = 'owned'</script><b style='color: red' onclick='0'>x</b><img src='https://evil.example/'>"
)
CELLS = "rows => rows.map(row => row.cells[{}]).map(cell => cell.dataset.sort ?? cell.textContent)"
ALPHABETIC = "cells => [...cells].sort((a, b) => a.localeCompare(b))"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    trace = gputrace.read(hostile(folder))
    summarizer = Summarizer(Options(by_step=True, steps=["*"]))
    summarizer.add(trace)
    summary = summarizer.summary()
    file = folder / "page.html"
    file.write_bytes(page(summary, list(tables(summary, 20)), overview(trace, trace, None, None)))
    return file


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with launched() as browser:
        yield browser


def test_it_shows_in_light_and_dark_and_sorts(written: Path, browser: Any) -> None:
    papers = set()
    for scheme in ("light", "dark"):
        told: list[str] = []
        asked: list[str] = []
        with browser.new_context(color_scheme=scheme) as context:
            shown = context.new_page()
            shown.on("console", lambda message, told=told: told.append(message.text))
            shown.on("pageerror", lambda error, told=told: told.append(str(error)))
            shown.on("request", lambda request, asked=asked: asked.append(request.url))
            shown.goto(written.as_uri())
            assert "it's <b>.pftrace" in shown.title()
            papers.add(shown.evaluate("getComputedStyle(document.body).backgroundColor"))
            assert shown.evaluate("document.querySelector('.timeline img').naturalWidth") > 1_000
            assert shown.evaluate("document.querySelector('.bar .fill').getBoundingClientRect().width") > 100
            sorts(shown)
        assert told == []
        assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
    assert len(papers) == 2


def sorts(page: Any) -> None:
    """By text and by figures, either way."""
    spans = page.locator("section", has=page.get_by_role("heading", name="Spans", exact=True))
    heads = spans.locator("th").all_text_contents()
    for head in ("span", "mean"):
        found = []
        for _ in range(2):
            spans.get_by_role("button", name=head, exact=True).click()
            found.append(spans.locator("tbody tr").evaluate_all(CELLS.format(heads.index(head))))
        assert len(found[0]) == 2 * len(HOSTILE)
        rising = page.evaluate(ALPHABETIC, found[0]) if head == "span" else sorted(found[0], key=float)
        assert found == ([rising, rising[::-1]] if head == "span" else [rising[::-1], rising])
        assert spans.locator("th[aria-sort]").all_text_contents() == [head]


def test_what_slipped_in_would_not_run(written: Path, browser: Any) -> None:
    """Were a name ever not escaped, the policy would still hold."""
    broken = written.with_name("broken.html")
    broken.write_text(written.read_text().replace("<main>", f"<main>{INJECTED}", 1))
    with browser.new_context() as context:
        shown = context.new_page()
        told: list[str] = []
        shown.on("console", lambda message: told.append(message.text))
        shown.goto(broken.as_uri())
        assert shown.title() != "owned"
        assert shown.evaluate("document.querySelector('main img').naturalWidth") == 0
        assert shown.evaluate("getComputedStyle(document.querySelector('main b')).color") != "rgb(255, 0, 0)"
        refused = [line for line in told if "Content Security Policy" in line]
        for kind in ("inline script", "inline style", "https://evil.example/"):
            assert any(kind in line for line in refused), told
