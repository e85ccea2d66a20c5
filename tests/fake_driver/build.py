"""Builds the stand-in `libcuda.so.1` once for each version of its source, with the machine's C compiler."""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SOURCE = HERE / "src"
CACHE = HERE / "build"
NAME = "libcuda.so.1"
FLAGS = ["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-fvisibility=hidden"]
LINK = [f"-Wl,-soname,{NAME}", "-Wl,-z,defs", "-lm", "-lpthread"]


class NoCompiler(Exception):
    """The fake driver cannot be built here: there is no C compiler."""


def library_path() -> Path:
    """The library, built if need be. Safe for processes that ask at once: a build is renamed into place whole.

    Raises `NoCompiler` without a `cc`, and `subprocess.CalledProcessError` (its text on stderr) if it fails.
    """
    sources = sorted(SOURCE.glob("*.c"))
    digest = hashlib.sha256(" ".join(FLAGS + LINK).encode())
    for path in sorted(SOURCE.iterdir()):
        digest.update(path.name.encode() + path.read_bytes())
    folder = CACHE / digest.hexdigest()[:16]
    if not (folder / NAME).exists():
        compiler = shlex.split(os.environ.get("CC", "cc"))
        if not shutil.which(compiler[0]):
            raise NoCompiler("no C compiler: install gcc or clang as `cc`, or name one in CC")
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as made:
            command = [*compiler, *FLAGS, "-o", f"{made}/{NAME}", *map(str, sources), *LINK]
            subprocess.run(command, check=True)
            folder.mkdir(exist_ok=True)
            os.replace(f"{made}/{NAME}", folder / NAME)
    return folder / NAME


def require() -> Path:
    """The library, or skip the calling test where no compiler is: but in CI that is a failure."""
    try:
        return library_path()
    except NoCompiler as error:
        if os.environ.get("CI") == "true":
            pytest.fail(f"the fake driver is needed in CI: {error}", pytrace=False)
        pytest.skip(str(error))


def environment(base: dict[str, str] | None = None, **settings: object) -> dict[str, str]:
    """An environment in which a new process loads the fake driver as its `libcuda.so.1`.

    Added to `base` (by default this process's own). A setting is a name of `SETTINGS` in `src/fake.h`, or
    `truth_file`, `counts_file`, `fail`, `delay` (their text is in `README.md` beside this).
    """
    environment = dict(os.environ if base is None else base)
    folders = [str(library_path().parent), environment.get("LD_LIBRARY_PATH", "")]
    environment["LD_LIBRARY_PATH"] = ":".join(filter(None, folders))
    for name, value in settings.items():
        environment[f"FAKE_CUDA_{name.upper()}"] = str(value)
    return environment
