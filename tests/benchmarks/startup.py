"""What `gputrace record` adds to an empty program: inside its process, and in all.

Measured on a wheel in an environment of its own: an editable install puts a finder before every import. The recording's
own environment is lent to plain start-ups of Python, so that what happens inside the program is told from the launcher.
Both are differences of neighbouring runs' wall times, in ms.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from tests.benchmarks.figures import ROOT, Row

INSIDE_BUDGET_MS = 15.0
IN_ALL_BUDGET_MS = 120.0
#: What a traced program may never import on its own account.
HEAVY = ("google", "cuda", "perfetto", "numpy", "orjson", "click", "rich", "asyncio", "typing", "dataclasses")
EMPTY = ["-c", "pass"]

_ENVIRONMENT = """
import json, os, sys
from gputrace.record import environment, recording
session = recording.start_recording(sys.argv[1], "host", ["python"])
print(json.dumps(environment.for_command(os.environ, session.folder.path)))
"""


def measure(quick: bool = False) -> list[Row]:
    rounds = 15 if quick else 40
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        python = install(folder)
        plain = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        inner = json.loads(_output([python, "-c", _ENVIRONMENT, str(folder / "inner.pftrace")], plain))
        record = [folder / "env/bin/gputrace", "record", "-q", "--device", "host", "-o", folder / "all.pftrace", "--"]
        empty = [python, *EMPTY]
        inside, in_all, alone = [], [], []
        for _ in range(rounds):
            base_ms = _wall_ms(empty, plain)
            inside.append(_wall_ms(empty, inner) - base_ms)
            in_all.append(_wall_ms([*record, *empty], plain) - base_ms)
            alone.append(base_ms)
        modules = "import sys; print(*sys.modules)"
        mine = {name.partition(".")[0] for name in _output([python, "-c", modules], inner).split()}
        mine -= {name.partition(".")[0] for name in _output([python, "-c", modules], plain).split()}
    heavy = sorted(mine & {*HEAVY})
    return [
        Row(
            "`record`, inside an empty program",
            statistics.median(inside),
            INSIDE_BUDGET_MS,
            "ms",
            aside=f"Python alone {statistics.median(alone):.0f}",
        ),
        Row("heavy packages imported there", len(heavy), 0, "", aside=", ".join(heavy)),
        Row("`record` around an empty program, in all", statistics.median(in_all), IN_ALL_BUDGET_MS, "ms"),
    ]


def install(folder: Path) -> Path:
    """A wheel of this tree in a fresh environment, beside the packages of the running one; its Python."""
    environment = folder / "env"
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    source = folder / "source"  # a copy, as the build leaves its own files beside what it builds
    source.mkdir()
    for path in ROOT.glob("*"):
        if path.is_file():
            shutil.copy(path, source)
    for name in ("gputrace", "exporters"):
        shutil.copytree(ROOT / name, source / name)
    subprocess.run([*pip, "wheel", "--no-deps", "-w", folder / "wheel", source], check=True, stdout=sys.stderr)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    python = environment / "bin" / "python"
    (wheel,) = (folder / "wheel").glob("gputrace-*.whl")
    command = [sys.executable, "-m", "pip", "--python", python, "--quiet", "--disable-pip-version-check"]
    subprocess.run([*command, "install", "--no-deps", "--no-index", wheel], check=True, stdout=sys.stderr)
    # A folder named in a .pth file is searched, but its own .pth files are not run: no editable install comes along.
    packages = Path(
        _output([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], os.environ).strip()
    )
    (packages / "benchmark-dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def _wall_ms(command: list[str | Path], environment: Mapping[str, str]) -> float:
    start = time.perf_counter()
    subprocess.run(command, env=environment, cwd="/", check=True, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return (time.perf_counter() - start) * 1e3


def _output(command: list[str | Path], environment: Mapping[str, str]) -> str:
    done = subprocess.run(command, env=environment, cwd="/", check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout
