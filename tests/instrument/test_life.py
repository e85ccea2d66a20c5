"""A patch lasts as long as the recording, and its faults end the patch and not the program."""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import gputrace
from gputrace.instrument import registry
from gputrace.instrument.registry import Patch
from gputrace.instrument.site import Site
from tests.engine import Engine, slices

#: What the program's module says; a new one for each test.
TEXT = """
def work(n):
    return n + 1

class Box:
    size = 3
"""


def apply_spans(site: Site) -> None:
    site.spans(site.module.work, "work")
    site.set(site.module.Box, "size", 4)
    site.set(site.module.Box, "colour", "red")


def apply_and_fail(site: Site) -> None:
    apply_spans(site)
    raise LookupError("no such thing in this version")


def apply_what_fails(site: Site) -> None:
    def around(n: int) -> Any:
        raise LookupError(f"cannot show {n}")

    site.swap(site.module.work, around)


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    made = types.ModuleType("stand_in")
    exec(TEXT, made.__dict__)
    monkeypatch.setitem(sys.modules, "stand_in", made)
    return made


@pytest.fixture
def patched(monkeypatch: pytest.MonkeyPatch) -> Any:
    def patch(function: Any) -> None:
        row = Patch("stand.in", "stand_in", f"{__name__}:{function.__name__}")
        monkeypatch.setattr(registry, "PATCHES", {row.name: row})
        monkeypatch.setattr("gputrace.instrument.PATCHES", {row.name: row})

    return patch


def names(path: Path) -> list[str]:
    return [each.name for each in slices(Engine(path))]


def test_it_begins_and_ends_with_the_recording(tmp_path: Path, module: Any, patched: Any) -> None:
    patched(apply_spans)
    code = module.work.__code__
    output = tmp_path / "t.pftrace"
    with gputrace.trace(output, "host"):
        assert module.work(1) == 2
        assert (module.Box.size, module.Box.colour) == (4, "red")
    assert names(output) == ["work"]
    assert module.work.__code__ is code
    assert vars(module.Box)["size"] == 3
    assert not hasattr(module.Box, "colour")


@pytest.mark.parametrize("instrument", [False, [], ["stand"], True])
def test_the_program_says_which(tmp_path: Path, module: Any, patched: Any, instrument: Any) -> None:
    patched(apply_spans)
    output = tmp_path / "t.pftrace"
    with gputrace.trace(output, "host", instrument=instrument), gputrace.span("own"):
        module.work(1)
    assert names(output) == ["own", *(["work"] if instrument else [])]


def test_a_fault_while_it_is_applied(tmp_path: Path, module: Any, patched: Any) -> None:
    patched(apply_and_fail)
    code = module.work.__code__
    recording = gputrace.trace(tmp_path / "t.pftrace", "host")
    with recording, gputrace.span("own"):
        assert module.work.__code__ is code
        assert module.work(1) == 2
        assert module.Box.size == 3
    assert recording.summary is not None
    assert recording.summary.told == [
        "stand.in does not work here and was switched off (LookupError: no such thing in this version); "
        "--no-instrument stand.in leaves it out"
    ]


def test_a_fault_at_a_call(tmp_path: Path, module: Any, patched: Any) -> None:
    patched(apply_what_fails)
    code = module.work.__code__
    recording = gputrace.trace(tmp_path / "t.pftrace", "host")
    with recording, gputrace.span("own"):
        assert [module.work(n) for n in range(3)] == [1, 2, 3]
        assert module.work.__code__ is code
    assert recording.summary is not None
    [told] = recording.summary.told
    assert "LookupError: cannot show 0" in told


def test_a_name_that_another_took_meanwhile_stays_theirs(tmp_path: Path, module: Any, patched: Any) -> None:
    patched(apply_spans)
    with gputrace.trace(tmp_path / "t.pftrace", "host"):
        module.Box.size = 5
    assert module.Box.size == 5


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_that_is_not_recorded_has_no_patch(tmp_path: Path, module: Any, patched: Any) -> None:
    patched(apply_spans)
    code = module.work.__code__
    with gputrace.trace(tmp_path / "t.pftrace", "host"):
        pid = os.fork()
        if pid == 0:
            os._exit(0 if module.work.__code__ is code and module.work(1) == 2 else 1)
        assert os.waitpid(pid, 0)[1] == 0
        assert module.work.__code__ is not code
