"""`gputrace plot`, its picture read back: every slice of the range is a bar of its row, as wide as it was long."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from gputrace.exporters.perfetto import Perfetto

import gputrace
from gputrace.errors import OutputError, UsageError
from gputrace.model import BEGIN, END, SLICE
from gputrace.plotting.choice import around, between
from gputrace.plotting.rows import rows
from gputrace.plotting.timeline import draw
from tests.exporters.recordings import Script, write

SVG = "{http://www.w3.org/2000/svg}"
MS = 1_000_000
ROOT = Path(__file__).parents[2]


def trace(tmp_path: Path, *scripts: Script) -> gputrace.Trace:
    (tmp_path / "t.pftrace").write_bytes(write(Perfetto, *(scripts or (step(),))))
    return gputrace.read(tmp_path / "t.pftrace")


def step() -> Script:
    """A step on a thread and on two lanes of a stream."""
    script = Script()
    thread, first, second = script.thread(), script.stream(merge_key="s"), script.stream(merge_key="s")
    script.add(thread, (0, BEGIN, "step"), (2 * MS, SLICE, "launch", None, 0, 3 * MS), (10 * MS, END))
    script.add(thread, (20 * MS, BEGIN, "step"), (30 * MS, END))
    script.add(first, (4 * MS, SLICE, "a kernel", None, 0, 12 * MS))
    script.add(second, (5 * MS, SLICE, "$beside$ it", None, 0, 18 * MS), (40 * MS, BEGIN, "open"))
    return script


class Drawn:
    """An SVG that was drawn: by row, the begins and ends of its bars, as shares of the whole width."""

    def __init__(self, path: Path) -> None:
        self.root = ElementTree.fromstring(path.read_text())
        left, right = self._extent(next(self._paths("timeline")))
        self.rows: list[list[tuple[float, float]]] = []
        while any(True for _ in self._paths(f"row-{len(self.rows)}")):
            extents = [self._extent(each) for each in self._paths(f"row-{len(self.rows)}")]
            self.rows.append([((a - left) / (right - left), (b - left) / (right - left)) for a, b in extents])

    def _paths(self, id: str) -> Any:
        group = self.root.find(f".//{SVG}g[@id='{id}']")
        return () if group is None else group.iter(f"{SVG}path")

    def _extent(self, path: ElementTree.Element) -> tuple[float, float]:
        xs = [float(x) for x in re.findall(r"[ML] (-?[\d.]+) ", path.attrib["d"])]
        return min(xs), max(xs)

    @property
    def texts(self) -> list[str]:
        return ["".join(each.itertext()) for each in self.root.iter(f"{SVG}text")]


def test_every_bar_is_where_its_slice_was(tmp_path: Path) -> None:
    read = trace(tmp_path)
    output = tmp_path / "t.svg"
    start_ns, end_ns = between(read, None, 20 * MS)
    assert draw(read, str(output), start_ns, end_ns, title="A $step$") == 4
    drawn = Drawn(output)
    pixel = 1 / (12 * 120)
    meant = [[(0, 0.5)], [(0.1, 0.15)], [(0.2, 0.6)], [(0.25, 0.9)]]
    assert [[pytest.approx(bar, abs=pixel) for bar in row] for row in meant] == drawn.rows
    assert {"MainThread", "step", "launch", "a kernel", "$beside$ it", "A $step$"} <= set(drawn.texts)
    assert "ms since 0.000000 s" in drawn.texts


def test_a_slice_that_never_ended_reaches_to_the_end_and_is_red(tmp_path: Path) -> None:
    script = Script()
    script.add(script.thread(), (0, SLICE, "x", None, 0, 40 * MS))
    script.add(script.thread("worker"), (10 * MS, BEGIN, "open"))
    read = trace(tmp_path, script)
    output = tmp_path / "t.svg"
    draw(read, str(output), *between(read, 20 * MS, 60 * MS))
    _, [(begin, end)] = Drawn(output).rows
    assert (begin, end) == pytest.approx((0, 0.5), abs=1 / (12 * 120))
    assert "#cc3311" in output.read_text()
    draw(read, str(output), *between(read, 0, 5 * MS))
    assert "#cc3311" not in output.read_text()


def test_the_same_picture_for_the_same_trace(tmp_path: Path) -> None:
    read = trace(tmp_path)
    for suffix in ("svg", "png", "pdf"):
        pictures = []
        for name in ("one", "two"):
            draw(read, str(tmp_path / f"{name}.{suffix}"), *between(read, None, None))
            pictures.append((tmp_path / f"{name}.{suffix}").read_bytes())
        assert pictures[0] == pictures[1]


def test_what_is_too_narrow_to_see_is_one_bar_a_pixel(tmp_path: Path) -> None:
    script = Script()
    script.add(script.thread(), *((i * 100, SLICE, "tiny", None, 0, i * 100 + 50) for i in range(100_000)))
    read = trace(tmp_path, script)
    assert draw(read, str(tmp_path / "t.svg"), *between(read, None, None)) == 100_000
    [bars] = Drawn(tmp_path / "t.svg").rows
    assert 1300 < len(bars) <= 12 * 120 + 1


def test_rows_are_threads_then_streams_of_each_process(tmp_path: Path) -> None:
    titles = [row.title for row in rows(trace(tmp_path), 8)]
    assert titles == ["MainThread", "", "GPU 0 · NVIDIA H200 · stream 7", ""]
    both = trace(tmp_path, step(), Script(1, 999, "eval.py"))
    assert len(rows(both, 1)) == 3
    other = Script(1, 999, "eval.py")
    other.add(other.thread(), (0, SLICE, "x", None, 0, 5))
    titles = [row.title for row in rows(trace(tmp_path, step(), other), 1) if row.first]
    assert titles == ["eval.py · MainThread", "train.py · MainThread", "train.py · GPU 0 · NVIDIA H200 · stream 7"]


def test_processes_of_one_name_are_told_apart_by_pid(tmp_path: Path) -> None:
    workers = [Script(number, pid, "worker.py") for number, pid in ((1, 70), (2, 71))]
    other = Script(3, 72, "eval.py")
    for script in (*workers, other):
        script.add(script.thread(), (0, SLICE, "x", None, 0, 5))
    workers[1].add(workers[1].stream(), (0, SLICE, "k", None, 0, 5))
    titles = [row.title for row in rows(trace(tmp_path, *workers, other), 1)]
    assert titles == [
        "worker.py 70 · MainThread",
        "worker.py 71 · MainThread",
        "worker.py 71 · GPU 0 · NVIDIA H200 · stream 7",
        "eval.py · MainThread",
    ]
    assert [row.title for row in rows(trace(tmp_path, workers[0]), 1)] == ["MainThread"]


def test_the_range_by_a_slice_s_name(tmp_path: Path) -> None:
    read = trace(tmp_path)
    zero = read.start_ns
    assert around(read, "step") == around(read, "step#0") == (zero - MS // 5, zero + 10 * MS + MS // 5)
    assert around(read, "step#1") == around(read, "step#-1") == (zero + 20 * MS - MS // 5, zero + 30 * MS + MS // 5)
    for wrong, said in (("stop", "no slice named 'stop'"), ("step#2", "#2 is none"), ("step#-3", "#-3 is none")):
        with pytest.raises(UsageError, match=said):
            around(read, wrong)
    script = Script()
    script.add(script.thread(), (0, SLICE, "pass#1", None, 0, 100))
    assert around(trace(tmp_path, script), "pass#1")[1] > 0


def test_a_range_that_is_none(tmp_path: Path) -> None:
    read = trace(tmp_path)
    with pytest.raises(UsageError, match=r"nothing lies between 0\.5 s and 0\.2 s"):
        between(read, 500 * MS, 200 * MS)


def test_outputs_that_cannot_be(tmp_path: Path) -> None:
    read = trace(tmp_path)
    with pytest.raises(UsageError, match=r"ends in \.svg, \.png or \.pdf"):
        draw(read, str(tmp_path / "t.gif"), *between(read, None, None))
    with pytest.raises(OutputError, match="cannot be written"):
        draw(read, str(tmp_path / "gone" / "t.svg"), *between(read, None, None))
    script = Script()
    for i in range(500):
        script.add(script.thread(f"t{i}"), (0, SLICE, "x", None, 0, 5))
    with pytest.raises(UsageError, match="500 rows"):
        draw(trace(tmp_path, script), str(tmp_path / "t.svg"), *between(read, None, None))


@pytest.mark.parametrize("suffix", ["svg", "png", "pdf"])
def test_one_that_finds_no_room_leaves_the_older_one(tmp_path: Path, run: Callable[..., Any], suffix: str) -> None:
    trace(tmp_path)
    (source,) = tmp_path.iterdir()
    (tmp_path / f"t.{suffix}").write_text("an older picture")
    limit = "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
    limit += "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))"
    done = run("plot", source.name, "-o", f"t.{suffix}", before=limit)
    assert done.returncode != 0
    assert "cannot be written: File too large" in done.stderr
    assert (tmp_path / f"t.{suffix}").read_text() == "an older picture"
    assert {each.name for each in tmp_path.iterdir()} == {source.name, f"t.{suffix}"}


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Any]:
    def run(*arguments: str, before: str = "") -> Any:
        program = (
            f"import sys; {before}\nfrom gputrace.cli.main import main; sys.argv[0] = 'gputrace'; sys.exit(main())"
        )
        command = [sys.executable, "-c", program, *arguments]
        return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=100)

    return run


def test_the_command(tmp_path: Path, run: Callable[..., Any]) -> None:
    trace(tmp_path)
    done = run("plot", "t.pftrace", "-o", "t.svg", "--start", "0", "--end", "20ms", "--track", "*stream*")
    assert (done.returncode, done.stderr) == (0, "gputrace: drew 2 slices to t.svg\n")
    assert len(Drawn(tmp_path / "t.svg").rows) == 2
    done = run("plot", "t.pftrace", "-o", "t.svg", "--start", "1", "--slice", "step")
    assert done.returncode == 2
    assert "use one of the two" in done.stderr
    done = run("plot", "t.pftrace", "-o", "t.svg", before="sys.modules['matplotlib'] = None")
    assert done.returncode == 2
    assert "pip install 'gputrace[plot]'" in done.stderr


def test_times_have_units_and_are_seconds_without_one(tmp_path: Path, run: Callable[..., Any]) -> None:
    trace(tmp_path)
    pictures = []
    for start, end in (("2ms", "11ms"), ("0.002", "0.011s"), ("2000us", "11000000ns")):
        done = run("plot", "t.pftrace", "-o", "t.svg", "--start", start, "--end", end)
        assert (done.returncode, done.stderr) == (0, "gputrace: drew 4 slices to t.svg\n")
        pictures.append((tmp_path / "t.svg").read_bytes())
    assert pictures[0] == pictures[1] == pictures[2]
    done = run("plot", "t.pftrace", "-o", "t.svg", "--start", "soon")
    assert done.returncode == 2
    assert "'soon' is no time: write 1.5s, 200ms, 30us or 10min" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--track", "nothing"], "no track fits 'nothing'; it is "),
        (["--start", "2s", "--end", "3s"], "it is "),
        (["--start", "0", "--end", "1ms", "--track", "*stream*"], "it is "),
    ],
)
def test_of_nothing_there_is_no_picture(
    tmp_path: Path, run: Callable[..., Any], arguments: list[str], why: str
) -> None:
    trace(tmp_path)
    done = run("plot", "t.pftrace", "-o", "t.svg", *arguments)
    assert done.returncode == 1
    assert done.stderr.startswith(f"gputrace: t.pftrace: nothing in it is of the part that was asked for ({why}")
    assert "with tracks like 'train.py/MainThread', 'train.py/GPU 0 · NVIDIA H200/stream 7'" in done.stderr
    assert done.stderr.endswith("t.svg is not written\n")
    assert not (tmp_path / "t.svg").exists()


def test_the_readme_s_examples_on_its_own_trace(tmp_path: Path, run: Callable[..., Any]) -> None:
    made = run(
        "record", "--device", "simulated", "-o", "trace.pftrace", "--", sys.executable, ROOT / "examples/train.py"
    )
    assert made.returncode == 0, made.stderr
    text = (ROOT / "README.md").read_text()
    examples = [line.removeprefix("gputrace ") for line in text.splitlines() if line.startswith("gputrace plot ")]
    assert len(examples) == 2
    shown = run("plot", "--help").stdout
    for example in examples:
        done = run(*shlex.split(example))
        assert done.returncode == 0, done.stderr
        assert f"gputrace {example}" in shown
