"""The house's own rules: what may import what, and that the README says what is so."""

from __future__ import annotations

import ast
import importlib
import json
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import gputrace
from gputrace.devices.simulated import SimulatedStream
from tests.engine import Engine, assert_clean, slices
from tests.record.running import GPUTRACE, ONE_SPAN, PYTHON, recording, run

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")

#: What a program may have to do without, or should not have to wait for.
HEAVY = {"asyncio", "concurrent", "ctypes", "dataclasses", "enum", "importlib.metadata", "inspect", "json", "logging"}
HEAVY |= {"pathlib", "re", "socket", "subprocess", "tempfile", "threading", "typing", "weakref"}
OTHERS = {
    "click",
    "cuda",
    "google",
    "jinja2",
    "markupsafe",
    "matplotlib",
    "numpy",
    "orjson",
    "perfetto",
    "rich",
    "wrapt",
}
#: They never run in a traced program.
READERS = tuple(
    f"gputrace.{room}"
    for room in ("analysis", "checking", "converting", "merging", "plotting", "reading", "reporting", "table")
)
#: Pytest alone imports it.
TESTING = "gputrace.testing"
MOST_PICTURE_BYTES = 200_000


# --- imports ----------------------------------------------------------------------------------------------------------


def imported_by(program: str) -> set[str]:
    """Modules that a program brings into an interpreter that has nothing besides this source tree: no site-packages,
    and so nobody's .pth files.
    """
    program = f"import sys\nbefore = set(sys.modules)\n{program}\nprint(*sorted(set(sys.modules) - before))"
    environment = {k: v for k, v in os.environ.items() if k != "GPUTRACE_RECORD"} | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-S", "-c", program], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def heavy(modules: set[str]) -> set[str]:
    return {name for name in modules if any(f"{name}.".startswith(f"{h}.") for h in HEAVY | OTHERS)}


def test_importing_gputrace_brings_nothing_heavy() -> None:
    assert heavy(imported_by("import gputrace")) == set()


def test_spans_with_nothing_recording_bring_nothing_more() -> None:
    program = "with gputrace.span('a', n=1), gputrace.use_stream(3): gputrace.instant('b'); gputrace.counter('c', 1)"
    assert imported_by(f"import gputrace\n{program}") == imported_by("import gputrace")


def test_every_module_but_the_command_line_does_without_other_packages() -> None:
    names = [
        name
        for name in modules("gputrace")
        if not name.startswith(("gputrace.__main__", "gputrace.cli", "gputrace.record.site", TESTING, *READERS))
    ]
    found = imported_by("\n".join(f"import {name}" for name in [*names, *modules("exporters")]))
    assert {"gputrace.profiler", "gputrace.api", "exporters.perfetto"} <= found
    assert {name for name in found if name.partition(".")[0] in OTHERS} == set()


def test_the_walls_stand() -> None:
    # import-linter's contracts are in pyproject.toml.
    lint = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([lint, "--no-cache"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_core_names_exporters_only_in_strings() -> None:
    # import-linter knows them as `exporters`, which is not their name once installed.
    for path in (ROOT / "gputrace").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
            assert not any(name.startswith("gputrace.exporters") for name in names), path


def modules(package: str) -> Iterator[str]:
    for path in sorted((ROOT / package).rglob("*.py")):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        yield name.removesuffix(".__init__")


# --- the README -------------------------------------------------------------------------------------------------------


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_the_first_screen_has_the_two_commands() -> None:
    first_screen = README.splitlines()[:20]
    assert [line for line in first_screen if line.startswith("pip install")] == [
        "pip install . && gputrace record --device simulated -o trace.pftrace -- python examples/train.py",
        "pip install -e '.[test]' && pytest -n auto",
    ]
    # .ci/run finds them by their beginning, so there may be no others.
    assert len(re.findall(r"^pip install .* && ", README, re.MULTILINE)) == 2


def test_what_it_points_to_is_there() -> None:
    targets = re.findall(r"\]\((?!https?:)([^)#]+)\)", README) + re.findall(r"`(tests/[\w/]+\.py)`", README)
    assert "examples/train.png" in targets
    assert [target for target in targets if not (ROOT / target).exists()] == []
    assert (ROOT / "examples" / "train.png").stat().st_size < MOST_PICTURE_BYTES


def test_its_contents_lead_to_sections() -> None:
    prose = re.sub(r"```.*?```", "", README, flags=re.DOTALL)
    anchors = {
        re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")  # as GitHub makes them
        for title in re.findall(r"^##+ (.*)$", prose, re.MULTILINE)
    }
    linked = re.findall(r"\]\(#([^)]+)\)", README)
    assert len(linked) > 20
    assert [each for each in linked if each not in anchors] == []
    chapters = re.findall(r"^## (.*)$", prose, re.MULTILINE)
    assert [each for each in chapters if each.lower().replace(" ", "-").replace(",", "") not in linked] == []


def test_the_benchmark_finds_where_its_table_goes() -> None:
    begin, end = README.index("<!-- figures:begin -->"), README.index("<!-- figures:end -->")
    assert begin < end


def test_the_map_shows_every_room() -> None:
    [drawn] = blocks("text")
    shown = set(re.findall(r"^  ([\w/]+(?:\.py)?) ", drawn.partition("exporters/")[0], re.MULTILINE))
    there = {path.name for path in (ROOT / "gputrace").glob("*.py")}
    there |= {f"{path.parent.name}/" for path in (ROOT / "gputrace").glob("*/__init__.py")}
    assert shown == there


def test_the_map_is_in_the_order_of_the_walls() -> None:
    import tomllib

    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    [layers] = [contract["layers"] for contract in contracts if contract["type"] == "layers"]
    floor = {name.strip(): number for number, row in enumerate(layers) for name in row.split("|")}
    [drawn] = blocks("text")
    rooms = re.findall(r"^  (\w+)(?:/|\.py) ", drawn.partition("exporters/")[0], re.MULTILINE)
    floors = [floor[room] for room in rooms if not room.startswith("__")]
    assert floors == sorted(floors)


def after_its_first_lines(*snippets: str) -> dict[str, Any]:
    """What the names are once the first snippet ran, and then these."""
    names: dict[str, Any] = {}
    for snippet in (blocks("python")[0], *snippets):
        exec(compile(snippet, "README.md", "exec"), names)
    return names


@pytest.mark.parametrize("number", range(1, len(blocks("python"))))
def test_each_snippet_runs_after_its_first_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.chdir(tmp_path)
    snippet = blocks("python")[number]
    after_its_first_lines(snippet)
    assert (tmp_path / "inside.pftrace").exists() == ("inside.pftrace" in snippet)


def test_the_snippets_can_be_recorded_as_one_program(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("".join(blocks("python")))
    done = run(recording(PYTHON, "program.py", device="simulated"), tmp_path)
    assert done.returncode == 0, done.stderr
    engine = Engine(tmp_path / "trace.pftrace")
    assert_clean(engine)
    assert {"forward", "copy back", "epoch done", "all-reduce", "work"} <= {each.name for each in slices(engine)}
    assert b"inside.pftrace was not written" in done.stderr
    assert not (tmp_path / "inside.pftrace").exists()


def test_its_table_has_every_public_name_where_it_says() -> None:
    rows = re.findall(r"\[`(\w+)`\]\((gputrace/[\w/]+)\.py\)", README)
    for name, module in rows:
        assert getattr(importlib.import_module(module.replace("/", ".")), name).__doc__, name
    assert set(gputrace.__all__) <= {name for name, _ in rows}


def test_a_failed_candidate_of_its_tuner_has_no_time() -> None:
    [tuner] = [snippet for snippet in blocks("python") if "EventProfiler" in snippet]
    names = after_its_first_lines(tuner)

    def fails(stream: SimulatedStream) -> None:
        raise RuntimeError("illegal memory access")

    with gputrace.EventProfiler(gputrace.device("simulated")) as profiler, pytest.raises(RuntimeError, match="illegal"):
        names["measure"](profiler, fails)


def test_its_options_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [options] = [block for block in blocks("toml") if "[tool.gputrace]" in block]
    (tmp_path / "pyproject.toml").write_text(options)
    done = run([*GPUTRACE, "doctor", "--json", "--seconds", "0.1"], tmp_path)
    found = json.loads(done.stdout)["options"]["record"]
    assert found["max-size"] == {"value": "64MB", "from": str(tmp_path / "pyproject.toml")}
    trace = tmp_path / "trace.pftrace"
    run(recording(PYTHON, "-c", ONE_SPAN, output=trace), tmp_path)
    assert run([*GPUTRACE, "summary", str(trace)], tmp_path).returncode == 0


def test_its_exporter_is_a_whole_one(tmp_path: Path) -> None:
    [exporter] = [snippet for snippet in blocks("python") if "(Exporter)" in snippet]
    [entry_point] = [block for block in blocks("toml") if 'entry-points."gputrace.exporters"' in block]
    (tmp_path / "mypackage.py").write_text(exporter)
    metadata = tmp_path / "mypackage-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: mypackage\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(
        "[gputrace.exporters]\n" + textwrap.dedent(entry_point).splitlines()[1].replace('"', "") + "\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = run(recording(PYTHON, "-c", ONE_SPAN, output="trace.tsv"), tmp_path, env=environment)
    assert done.returncode == 0
    lines = [line.split("\t") for line in (tmp_path / "trace.tsv").read_text().splitlines()]
    assert "work" in {line[4] for line in lines}
