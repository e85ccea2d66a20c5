"""Builds the stand-ins for `libcuda.so.1` and NVML once for each version of their sources, with the machine's `cc`."""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.missing import missing

HERE = Path(__file__).parent
SOURCE = HERE / "src"
CACHE = HERE / "build"
NAME = "libcuda.so.1"
NVML = "libnvidia-ml.so.1"
FLAGS = ["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-fvisibility=hidden"]
LINK = ["-Wl,-z,defs", "-lm", "-lpthread"]


class NoCompiler(Exception):
    """The fake driver cannot be built here: there is no C compiler."""


def library_path() -> Path:
    """The driver's library, built if need be, NVML's beside it.

    Safe for processes that ask at once: a build is renamed into place whole.

    Raises `NoCompiler` without a `cc`, and `subprocess.CalledProcessError` (its text on stderr) if it fails.
    """
    libraries = {NAME: sorted(SOURCE.glob("*.c")), NVML: sorted(SOURCE.glob("nvml/*.c"))}
    digest = hashlib.sha256(" ".join(FLAGS + LINK).encode())
    for path in sorted(path for path in SOURCE.rglob("*") if path.is_file()):
        digest.update(path.name.encode() + path.read_bytes())
    folder = CACHE / digest.hexdigest()[:16]
    if not (folder / NAME).exists():
        compiler = shlex.split(os.environ.get("CC", "cc"))
        if not shutil.which(compiler[0]):
            raise NoCompiler("no C compiler: install gcc or clang as `cc`, or name one in CC")
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as made:
            for name, sources in libraries.items():
                command = [*compiler, *FLAGS, "-o", f"{made}/{name}", *map(str, sources), f"-Wl,-soname,{name}", *LINK]
                subprocess.run(command, check=True)
            folder.mkdir(exist_ok=True)
            for name in (NVML, NAME):  # the one that is asked for comes last
                os.replace(f"{made}/{name}", folder / name)
    return folder / NAME


def require() -> Path:
    """The library, or skip the calling test where no compiler is: but in CI that is a failure."""
    try:
        return library_path()
    except NoCompiler as error:
        missing(f"the fake driver is not here: {error}")


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
