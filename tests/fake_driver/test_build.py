"""The library is built once, whole, by whoever comes first; and a machine that cannot build it says so."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.fake_driver import build
from tests.fake_driver.isolated import ROOT


def test_builds_at_once_end_in_one_library(tmp_path: Path) -> None:
    build.require()
    program = f"""
from pathlib import Path
from tests.fake_driver import build
build.CACHE = Path({str(tmp_path)!r}, "cache")
import ctypes
ctypes.CDLL(str(build.library_path())).fake_set
"""
    command = [sys.executable, "-c", program]
    builders = [subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE) for _ in range(2)]
    assert [builder.communicate()[1] for builder in builders] == [b""] * 2
    assert [builder.returncode for builder in builders] == [0] * 2
    (folder,) = (tmp_path / "cache").iterdir()
    assert {path.name for path in folder.iterdir()} == {build.NAME, build.NVML}


@pytest.mark.parametrize(("ci", "outcome"), [("true", pytest.fail.Exception), ("", pytest.skip.Exception)])
def test_without_a_compiler_ci_fails_and_others_skip(
    ci: str, outcome: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "CACHE", tmp_path)
    monkeypatch.setenv("CC", str(tmp_path / "no-such-compiler"))
    monkeypatch.setenv("CI", ci)
    with pytest.raises(outcome, match="no C compiler"):
        build.require()


def test_the_environment_keeps_what_was_there() -> None:
    build.require()
    env = build.environment({"LD_LIBRARY_PATH": "/opt/lib", "HOME": "/home"}, skew_ppm=50)
    assert env == {
        "LD_LIBRARY_PATH": f"{build.library_path().parent}:/opt/lib",
        "HOME": "/home",
        "FAKE_CUDA_SKEW_PPM": "50",
    }
