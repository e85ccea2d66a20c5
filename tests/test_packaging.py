"""What `pip install` makes of the source tree: with a compiler, without one, and on other systems."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LEFT_OUT = "gputrace: the compiled part is left out, the pure one does its work: "
FREE_THREADED = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
CORE = f"gputrace/hot/_hot{sysconfig.get_config_var('EXT_SUFFIX') if FREE_THREADED else '.abi3.so'}"
WHICH_TWIN = "from gputrace import hot; print(hot.TWIN, hot.WHY, sep='; ')"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the compiled part is left out"),
]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """The source tree, with nothing built in it."""
    copy = tmp_path / "tree"
    built = shutil.ignore_patterns("__pycache__", "*.so", "build")
    for name in ("gputrace", "exporters"):
        shutil.copytree(ROOT / name, copy / name, ignore=built)
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy / name)
    return copy


def build(tree: Path, what: str, **environment: str) -> tuple[Path, list[str]]:
    """Have the build backend make a "wheel", "sdist" or "editable"; and the lines on why something was left out."""
    program = f"import sys; from setuptools import build_meta; print('made', build_meta.build_{what}('dist'))"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tree, env={**os.environ, **environment}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    [made] = [line.removeprefix("made ") for line in done.stdout.splitlines() if line.startswith("made ")]
    return tree / "dist" / made, [line for line in done.stderr.splitlines() if line.startswith("gputrace: ")]


def twin(installed: Path) -> str:
    """Which twin a Python uses that finds gputrace in a folder, and nothing else: no site-packages."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GPUTRACE_")}
    return subprocess.run(
        [sys.executable, "-S", "-c", WHICH_TWIN],
        env={**environment, "PYTHONPATH": str(installed)},
        cwd=installed,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()


def unpacked(wheel: Path) -> Path:
    folder = wheel.parent / "unpacked"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def test_a_wheel_has_the_compiled_part_and_every_module(tree: Path) -> None:
    wheel, said = build(tree, "wheel")
    assert said == []
    tag = "cp{0}-cp{0}t-".format("{}{}".format(*sys.version_info[:2])) if FREE_THREADED else "cp311-abi3-"
    assert tag in wheel.name
    names = zipfile.ZipFile(wheel).namelist()
    modules = [path.relative_to(tree).as_posix() for path in (tree / "gputrace").rglob("*.py")]
    modules += [f"gputrace/reporting/page.{kind}" for kind in ("html", "css", "js")]
    assert {CORE, "gputrace/hot/_hot.pyi", "gputrace/py.typed", *modules} <= {*names}
    assert [name for name in names if name.endswith((".c", ".h"))] == []
    assert twin(unpacked(wheel)).startswith("compiled; ")


def test_a_source_distribution_has_all_that_the_compiled_part_needs(tree: Path) -> None:
    archive, _ = build(tree, "sdist")
    with tarfile.open(archive) as packed:
        packed.extractall(tree.parent / "from_sdist", filter="data")
    [unpacked_tree] = (tree.parent / "from_sdist").iterdir()
    wheel, said = build(unpacked_tree, "wheel")
    assert said == []
    assert CORE in zipfile.ZipFile(wheel).namelist()


def test_an_editable_install_has_it_beside_its_source(tree: Path) -> None:
    _, said = build(tree, "editable")
    assert said == []
    assert (tree / CORE).exists()
    assert twin(tree).startswith("compiled; ")


@pytest.mark.parametrize("what", ["wheel", "editable"])
@pytest.mark.parametrize("missing", ["it fails", "there is none"])
def test_without_a_compiler_one_line_says_so(tree: Path, what: str, missing: str) -> None:
    environment = {"CC": "/bin/false"} if missing == "it fails" else {"PATH": str(tree), "CC": "cc"}
    made, [said] = build(tree, what, **environment)
    assert said.startswith(LEFT_OUT)
    assert ("/bin/false" if missing == "it fails" else "cc") in said
    if what == "wheel":
        assert made.name.endswith("-py3-none-any.whl")
        wheel = twin(unpacked(made))
        assert wheel == "pure; the compiled part was not built for this Python (`pip install -v` says why)"


def test_a_tree_where_it_was_not_built_says_that_it_is_one_and_how_to_build(tree: Path) -> None:
    """Whoever stands in it meets it before an installed gputrace, which has the compiled part."""
    build(tree, "wheel")  # which leaves the tree as it was
    assert twin(tree) == (
        f"pure; gputrace is imported from its source tree, {tree}, where the compiled part was not built for this "
        f"Python: `pip install -v -e {tree}` builds it there, or says why not; elsewhere an installed gputrace is found"
    )


def test_pip_shows_that_line(tree: Path) -> None:
    command = [sys.executable, "-m", "pip", "wheel", "-v", "--no-deps", "--no-build-isolation", "-w", "dist", "."]
    done = subprocess.run(command, cwd=tree, env={**os.environ, "CC": "/bin/false"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    said = [line.strip() for line in (done.stdout + done.stderr).splitlines() if LEFT_OUT in line]
    assert said == [f"{LEFT_OUT}/bin/false failed with exit status 1"]


@pytest.mark.parametrize("system", ["darwin", "win32"])
def test_elsewhere_it_is_left_out(tree: Path, system: str) -> None:
    program = f"""
import runpy, sys, setuptools, setuptools.command.build_ext
sys.platform, sys.argv = {system!r}, ["setup.py", "-q", "build_ext", "--inplace"]
runpy.run_path("setup.py", run_name="__main__")
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=tree, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert f"{LEFT_OUT}it is for Linux, and this is {system}" in done.stderr.splitlines()
    assert not list(tree.rglob("*.so"))


def test_a_core_of_other_sources_is_not_used(tree: Path) -> None:
    """An editable install's stays where it is while its sources change."""
    (tree / CORE).write_bytes(b"no shared object")
    assert twin(tree).startswith("pure; the compiled part does not work here: ImportError: ")
    (tree / CORE).unlink()
    (tree / "gputrace/hot/_hot.py").write_text("Span = object")
    assert twin(tree).startswith("pure; the compiled part does not work here: ImportError: ")
