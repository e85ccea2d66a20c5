"""What keeps one edge of a host slice through a crash: its store in the ring, without the span around it.

The ring is a file that the kernel keeps when the process is gone, so the store is the whole of it: 32 bytes, then the
tag that makes them count. Measured within the twin itself, in a build that lets one ask for it, while its collector
reads what comes.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import shlex
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.benchmarks.figures import COMPILED, ROOT, Row, in_child, print_rows, rows_of

BUDGET_NS = 33.0
SLICES = 500  # at once: a collector's period of them is less than the ring holds
PAUSE_S = 0.002
TWIN = "gputrace.hot._hot"


def measure(quick: bool = False) -> list[Row]:
    """Of the compiled twin; the pure one, which keeps nothing through a crash, has no such row."""
    if in_child("figures", fake=False) != COMPILED:
        return []
    return rows_of(in_child("edge", "100" if quick else "500", fake=False))


def build(folder: Path) -> Path:
    """The compiled twin with edge.c in the place of spans.c. Raises `subprocess.CalledProcessError`."""
    native = ROOT / "gputrace/hot"
    sources = [native / "_hot.c", *sorted(native.glob("native/*.c")), Path(__file__).with_suffix(".c")]
    sources.remove(native / "native/spans.c")
    made = folder / "_hot.so"
    flags = ["-std=gnu11", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", f"-I{sysconfig.get_path('include')}"]
    flags += [] if sysconfig.get_config_var("Py_GIL_DISABLED") else ["-DPy_LIMITED_API=0x030b0000"]
    compiler = shlex.split(os.environ.get("CC", "cc"))
    subprocess.run([*compiler, *flags, "-o", made, *sources, "-lpthread"], check=True)
    return made


class Instead:
    """A finder that has a built extension stand for the installed one."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def find_spec(self, name: str, path: object = None, target: object = None) -> Any:
        return importlib.util.spec_from_file_location(name, self.path) if name == TWIN else None


def run(rounds: int) -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        path = build(Path(folder))
        sys.meta_path.insert(0, Instead(path))
        from gputrace import hot
        from tests.benchmarks.program import recorded

        assert hot.TWIN == "compiled", hot.WHY
        assert sys.modules[TWIN].__file__ == str(path), "another extension was loaded first"
        store = ctypes.PyDLL(str(path)).edge_store_ns
        store.argtypes, store.restype = [ctypes.py_object, ctypes.c_uint64], ctypes.c_double
        found = []
        with recorded("host") as running:
            with hot.span("the collector wakes"):
                pass
            for _ in range(rounds):
                found.append(store("edge", SLICES))
                time.sleep(PAUSE_S)
        assert running.summary is not None
        assert running.summary.slices == rounds * SLICES + 1, running.summary
        assert min(found) > 0
    return [
        Row(
            "one host edge that a crash cannot take: its store in the ring",
            statistics.median(found),
            BUDGET_NS,
            "ns",
        )
    ]


if __name__ == "__main__":
    print_rows(run(int(sys.argv[1])))
