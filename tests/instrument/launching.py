"""Runs programs that launch kernels through a framework, on the fake driver, as they are and recorded.

A framework is its stand-in (`standins/`), or the real package where one is installed and ``real`` is said.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from tests.engine import Engine, assert_clean, slices
from tests.fake_driver import environment as with_fake_driver
from tests.fake_driver import require
from tests.hot.twin import ROOT
from tests.record.running import recording

STANDINS = Path(__file__).parent / "standins"
LIMIT_S = 100

#: Before a program of a test: a context, two streams, and ``kernel_ns``, which says how long the next kernels last.
PRELUDE = """
from cuda.bindings import driver as _driver
from tests.fake_driver import control
def ok(result):
    assert int(result[0]) == 0, result
    return result[1] if len(result) == 2 else result[1:]
ok(_driver.cuInit(0))
ok(_driver.cuCtxSetCurrent(ok(_driver.cuDevicePrimaryCtxRetain(ok(_driver.cuDeviceGet(0))))))
one, two = int(ok(_driver.cuStreamCreate(1))), int(ok(_driver.cuStreamCreate(1)))
def kernel_ns(ns):
    control.set(kernel_ns=ns)
"""
#: After one: what is left to run is run.
POSTLUDE = """
ok(_driver.cuCtxSynchronize())
"""

#: After `import gputrace`, before the program: the next span, window or instant of a patch raises.
FAULT = """
from gputrace import hot
def _broken(*args, **kwargs):
    raise LookupError("a fault of ours")
hot.span = hot.window = hot.instant = _broken
"""


class Launch(NamedTuple):
    """A host slice, and how long the window on a stream is that its arrow leads to: ``ns`` None where it has none."""

    name: str
    args: dict[str, Any]
    stream: str
    ns: int | None


def environment(twin: str, *, real: bool = False) -> dict[str, str]:
    """The environment of a program that has the fake driver and, but for ``real``, the stand-ins."""
    require()
    paths = [str(ROOT)] if real else [str(STANDINS), str(ROOT)]
    base = {**os.environ, "GPUTRACE_PURE": "1" if twin == "pure" else "", "PYTHONPATH": os.pathsep.join(paths)}
    return with_fake_driver(base)


def plain(path: Path, program: str, **options: Any) -> str:
    """A program's stdout, without us."""
    file = path / "program.py"
    file.write_text(program)
    done = subprocess.run(
        [sys.executable, file],
        capture_output=True,
        text=True,
        env=environment("pure", **options),
        cwd=path,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def record(
    path: Path, program: str, twin: str, *words: str, device: str = "cuda", **options: Any
) -> tuple[str, str, Path]:
    """A program's stdout, what `record` said, and the trace. ``words``: more of `record`'s options."""
    file, trace = path / "program.py", path / f"{twin}.pftrace"
    file.write_text(program)
    command = recording(sys.executable, str(file), output=trace, device=device)
    command[4:4] = words
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment(twin, **options), cwd=path, timeout=LIMIT_S
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr, trace


def launches(trace: Path) -> list[Launch]:
    """All host slices in order of time, each with its window. The engine read all of it."""
    engine = Engine(trace)
    assert_clean(engine)
    found = slices(engine)
    by_id = {each.id: each for each in found}
    made = []
    for each in found:
        if any(part.startswith("GPU ") for part in each.track):
            continue
        windows = [by_id[id] for id in each.flows_to]
        assert len(windows) <= 1
        stream, ns = "", None
        for window in windows:
            assert window.name == each.name
            stream, ns = window.track[-1], window.dur
        made.append(Launch(each.name or "", each.args, stream, ns))
    return made


def assert_launched(found: list[Launch], expected: list[tuple[str, dict[str, Any], int, int]], said: str = "") -> None:
    """The slices are those expected, as (name, args, group, ns): windows of one group are on one stream, those of
    another on another, and each is as long as its kernel, or longer. Group 0: no window. ``said``: what `record` said.
    """
    assert [(each.name, each.args) for each in found] == [(name, args) for name, args, _, _ in expected]
    streams: dict[int, set[str]] = {}
    for each, (_, _, group, ns) in zip(found, expected, strict=True):
        assert (each.ns is None) == (group == 0), (each, said)
        if each.ns is not None:
            assert each.ns >= 0.95 * ns, each
            streams.setdefault(group, set()).add(each.stream)
    assert all(len(rows) == 1 for rows in streams.values()), streams
    assert len(set.union(set(), *streams.values())) == len(streams), streams


def assert_same_and_launched(
    path: Path, program: str, twin: str, expected: list[tuple[str, dict[str, Any], int, int]]
) -> None:
    """A program does under a recording what it does without one, no patch fails, and its launches are there."""
    stdout, stderr, trace = record(path, program, twin)
    assert stdout == plain(path, program)
    assert "does not work" not in stderr
    assert_launched(launches(trace), expected, stderr)
