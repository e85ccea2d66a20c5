"""The kept code of the engine: a bad copy is made anew, and one that others could have put there is not run."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest

from gputrace import webdist
from gputrace.sql import wasm

AN_EMPTY_MODULE = b"\0asm\1\0\0\0"


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where it is kept, once compiled, for an engine that takes no time to compile."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "a.wasm").write_bytes(AN_EMPTY_MODULE)
    monkeypatch.setattr(webdist, "find_engine", lambda: tmp_path / "a.wasm")
    monkeypatch.setattr(wasm, "_compiled", functools.cache(wasm._compiled.__wrapped__))
    wasm._compiled()
    [path] = (tmp_path / "gputrace").iterdir()
    return path


def compiled_anew(monkeypatch: pytest.MonkeyPatch) -> bool:
    import wasmtime

    wasm._compiled.cache_clear()
    made: list[Any] = []
    real = wasmtime.Module
    with monkeypatch.context() as patch:
        patch.setattr(real, "__init__", lambda self, *a, real=real.__init__: (made.append(a), real(self, *a))[1])
        wasm._compiled()
    return bool(made)


def test_it_is_kept(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert kept.parent.stat().st_mode & 0o777 == 0o700
    assert not compiled_anew(monkeypatch)


def test_a_damaged_copy_is_made_anew(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = kept.read_bytes()
    kept.write_bytes(whole[:100])
    assert compiled_anew(monkeypatch)
    assert kept.stat().st_size == len(whole)


def test_a_folder_that_others_write_to_is_not_trusted(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept.parent.chmod(0o777)
    assert compiled_anew(monkeypatch)
