"""A trace processor as a program, for machines that have none: the real engine behind `--stdiod`."""

from __future__ import annotations

import sys
from pathlib import Path

_PROGRAM = """#!{python}
import os, sys
assert sys.argv[1:] == ["--stdiod"]
from gputrace.sql.wasm import WasmMachine
machine = WasmMachine()
print("ready to be asked", file=sys.stderr, flush=True)
while data := os.read(0, 4096):
    sys.stdout.buffer.write(machine.exchange(data).read())
    sys.stdout.buffer.flush()
"""


def make_shell(folder: Path, name: str = "trace_processor_shell") -> Path:
    """The program, in a folder that is made for it."""
    return make_program(folder / name, _PROGRAM.format(python=sys.executable))


def make_program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path
