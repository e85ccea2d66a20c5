"""The page of a summary whose every figure is known: what stands on it, and that nothing of it can be anything else."""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path

import pytest

import gputrace
from gputrace.analysis.summary import Options, Summarizer, Summary
from gputrace.analysis.summarytables import tables
from gputrace.model import BEGIN, END, SLICE
from gputrace.reporting.overview import overview
from gputrace.reporting.page import Picture, page
from tests.analysis.test_summary import rank, summed
from tests.exporters.recordings import Script
from tests.merging.making import Host, write_trace
from tests.reporting.parsed import Parsed

NONE = Picture("There is none.")
HOSTILE = [
    "<script>alert(1)</script>",
    "</title></style></script><img src=x onerror=alert(1)>",
    '" onmouseover="alert(1)" x=\'',
    "{{ 7 * 7 }}{% raw %}",
    "--><!-- ]]>",
    "&lt;b&gt;&#x22;",
    "javascript:alert(1)",
]


def written(summary: Summary, timeline: Picture = NONE, top: int = 20) -> Parsed:
    return Parsed(page(summary, list(tables(summary, top)), timeline))


def hostile(folder: Path) -> Path:
    """A trace in which all that can have a name has one that a page must not obey."""
    script = Script(0, 100, HOSTILE[0])
    thread, stream = script.thread(HOSTILE[1]), script.stream()
    script.add(thread, *((k * 1_000, SLICE, name, None, k + 1, k * 1_001 + 500) for k, name in enumerate(HOSTILE)))
    script.add(stream, *((k * 1_000 + 100, SLICE, n, None, k + 1, k * 1_000 + 600) for k, n in enumerate(HOSTILE)))
    return write_trace(folder / "it's <b>.pftrace", Host("node0"), script)


def test_its_tables_are_the_summary_s(tmp_path: Path) -> None:
    paths = [write_trace(tmp_path / f"{k}.pftrace", Host("n"), rank(k, 1 + k / 2), number=k) for k in range(2)]
    summary = summed(*paths, by_step=True)
    found = written(summary)
    meant = list(tables(summary, 20))
    assert len(meant) == 9
    assert found.tables == {t.title: [[head for head, _ in t.columns], *t.cells()] for t in meant}
    assert written(summary, top=3).inner["p"].count("and ") >= 2


def test_what_is_sorted_by_are_the_figures_themselves(tmp_path: Path) -> None:
    summary = summed(write_trace(tmp_path / "t.pftrace", Host("n"), rank(0)))
    keys = [float(found["data-sort"] or "nan") for tag, found in written(summary).tags if "data-sort" in found]
    figures = [value for t in tables(summary, 20) for row in t.rows for value in row if not isinstance(value, str)]
    assert keys == pytest.approx([float("nan") if value is None else value for value in figures], nan_ok=True)


def test_how_long_its_bars_are(tmp_path: Path) -> None:
    summary = summed(write_trace(tmp_path / "t.pftrace", Host("n"), rank(0, name="train.py")), by_step=True)
    gpu, host = "Where the GPUs' time goes", "Where the host's time goes"
    device = "train.py/GPU 0 · NVIDIA H200"
    # Ten windows of 1 µs within 91 µs; ten steps of 9 µs, 2 µs of each in spans inside.
    assert written(summary).bars == [
        ("GPU busy", device, pytest.approx(10 / 91, abs=1e-4), "11.0% of 91.00 µs"),
        ("GPU busy", f"{device}/stream 7", pytest.approx(10 / 91, abs=1e-4), "11.0% of 91.00 µs"),
        (gpu, "forward", 1, "100.0%, 10.00 µs"),
        (host, "step", pytest.approx(7 / 9, abs=1e-4), "77.8%, 70.00 µs"),
        (host, "forward", pytest.approx(1 / 9, abs=1e-4), "11.1%, 10.00 µs"),
        (host, "idle", pytest.approx(0.5 / 9, abs=1e-4), "5.6%, 5.000 µs"),
        (host, "cudaStreamSynchronize", pytest.approx(0.5 / 9, abs=1e-4), "5.6%, 5.000 µs"),
    ]


def test_how_high_its_steps_are(tmp_path: Path) -> None:
    script = Script()
    script.add(script.thread(), *((k * 10_000, SLICE, "step", None, 0, k * 10_000 + k + 1) for k in range(480)))
    path = write_trace(tmp_path / "t.pftrace", Host("n"), script)
    columns = written(summed(path, by_step=True)).columns
    assert len(columns) == 240  # of two steps each
    text, heights = columns[119]
    assert text == "steps 238 to 239: median 240 ns, slowest 240 ns, GPU busy for 0 ns"
    assert heights == pytest.approx({"slowest": 50, "fill": 100 * 239.5 / 480, "gpu": 0}, abs=1e-3)
    few = written(summed(write_trace(tmp_path / "f.pftrace", Host("n"), rank(0, 2.0)), by_step=True)).columns
    assert few == [(f"step {k}: 9.000 µs, GPU busy for 2.000 µs", few[0][1]) for k in range(10)]
    assert few[0][1] == pytest.approx({"slowest": 100, "fill": 100, "gpu": 100 * 2 / 9}, abs=1e-3)


def test_names_are_text_wherever_they_stand(tmp_path: Path) -> None:
    trace = gputrace.read(hostile(tmp_path))
    summarizer = Summarizer(Options(by_step=True, steps=["*"]))
    summarizer.add(trace)
    drawn = overview(trace, trace, None, None)
    found = written(summarizer.summary(), drawn)
    assert drawn.png
    assert [tag for tag, _ in found.tags].count("script") == 1
    assert [found for tag, found in found.tags if tag == "img"] == [{"src": drawn.url, "alt": drawn.text}]
    assert {name for _, found in found.tags for name in found if name.startswith("on")} == set()
    assert {row[0] for row in found.tables["Spans"][1:]} == set(HOSTILE)
    assert {label for _, label, _, _ in found.bars} >= set(HOSTILE)
    assert trace.path in found.inner["title"]


def test_its_policy_lets_nothing_in_but_its_own_two(tmp_path: Path) -> None:
    found = written(summed(hostile(tmp_path)), Picture("A timeline", b"\x89PNG"))
    hashes = [
        base64.b64encode(hashlib.sha256(found.inner[tag].encode()).digest()).decode() for tag in ("style", "script")
    ]
    assert found.policy.split("; ") == [
        "default-src 'none'",
        f"style-src 'sha256-{hashes[0]}'",
        f"script-src 'sha256-{hashes[1]}'",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
    ]
    assert [tag for tag, _ in found.tags].index("style") > 3  # behind the policy
    assert all(each.startswith("data:") for each in found.fetched)
    assert not any("style" in attributes for _, attributes in found.tags)  # the policy would drop it
    assert not re.search(r"url\(|@import", found.inner["style"])


def test_a_summary_of_nothing(tmp_path: Path) -> None:
    summary = summed(write_trace(tmp_path / "t.pftrace", Host("n"), Script()), by_step=True)
    found = written(summary)
    assert (list(found.tables), found.bars, found.columns) == (["Traces"], [], [])
    assert "There is none." in found.inner["p"]


def test_the_same_page_for_the_same_traces(tmp_path: Path) -> None:
    trace = gputrace.read(write_trace(tmp_path / "t.pftrace", Host("n"), rank(0)))
    pages = []
    for _ in range(2):
        summarizer = Summarizer()
        summarizer.add(trace)
        summary = summarizer.summary()
        pages.append(page(summary, list(tables(summary, 20)), overview(trace, trace, None, None)))
    assert pages[0] == pages[1]


def test_a_timeline_is_as_deep_as_can_be_seen_at_once(tmp_path: Path) -> None:
    def read(threads: int) -> gputrace.Trace:
        script = Script()
        for k in range(threads):
            begins = [(depth * 10, BEGIN, f"d{depth}") for depth in range(6)]
            script.add(script.thread(f"t{k}"), *begins, *((1_000 + depth * 10, END) for depth in range(6)))
        return gputrace.read(write_trace(tmp_path / f"{threads}.pftrace", Host("n"), script))

    for threads, told in (
        (10, "8 levels deep"),
        (20, "4 levels deep"),
        (70, "1 level deep"),
        (90, "more than 80 rows"),
    ):
        trace = read(threads)
        drawn = overview(trace, trace, None, None)
        assert told in drawn.text
        assert bool(drawn.png) == (threads < 90)
    trace = read(2)
    assert overview(trace, trace, 200, 700).text.endswith("2.pftrace: 500 ns from 200 ns on, 8 levels deep at most.")
    assert overview(trace, trace, 5_000_000_000, None).text.startswith("There is none: nothing lies between 5 s")
