"""The program's imports are its own: a module that is waited for is found, loaded and described as without us."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gputrace.instrument import finder


@pytest.fixture(autouse=True)
def imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    yield tmp_path
    finder.forget_all()
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_it_calls_once_the_module_is_there_whole(imports: Path) -> None:
    package = imports / "waited"
    package.mkdir()
    (package / "__init__.py").write_text("import waited.inner\nlast = 1\n")
    (package / "inner.py").write_text("import waited\nassert not hasattr(waited, 'last')\n")
    seen: list[Any] = []
    finder.when_imported("waited", lambda module: seen.append(("waited", module.last)))
    finder.when_imported("waited.inner", lambda module: seen.append(("inner", module.__name__)))
    assert seen == []
    importlib.import_module("waited")
    assert seen == [("inner", "waited.inner"), ("waited", 1)]
    assert all(type(each).__module__ != finder.__name__ for each in sys.meta_path)
    finder.when_imported("waited", lambda module: seen.append("at once"))
    assert seen[-1] == "at once"


def test_the_module_looks_as_without_us(imports: Path) -> None:
    (imports / "looked_at.py").write_text("loader = __loader__, __spec__.loader\n")

    def facts() -> list[Any]:
        module = importlib.import_module("looked_at")
        loaders = (*module.loader, module.__loader__, module.__spec__.loader)  # type: ignore[union-attr]
        return [*(type(each) for each in loaders), module.__file__, module.__spec__.origin]  # type: ignore[union-attr]

    expected = facts()
    del sys.modules["looked_at"]
    finder.when_imported("looked_at", lambda module: None)
    assert facts() == expected


def test_a_module_that_gives_itself_another_name_is_the_one_waited_for(imports: Path) -> None:
    (imports / "named_otherwise.py").write_text("__name__ = 'another'\nloader = __loader__\n")
    seen: list[Any] = []
    finder.when_imported("named_otherwise", seen.append)
    module = importlib.import_module("named_otherwise")
    assert seen == [module]
    assert type(module.loader).__module__ != finder.__name__


def test_a_module_that_fails_to_import_is_waited_for_still(imports: Path) -> None:
    file = imports / "fails_once.py"
    file.write_text("raise LookupError('the first time')\n")
    seen: list[str] = []
    finder.when_imported("fails_once", lambda module: seen.append(module.__name__))
    with pytest.raises(LookupError, match="the first time"):
        importlib.import_module("fails_once")
    assert seen == []
    file.write_text("it_works = 'now'\n")
    importlib.invalidate_caches()
    importlib.import_module("fails_once")
    assert seen == ["fails_once"]


def test_a_module_that_is_not_there_is_missed_as_without_us() -> None:
    finder.when_imported("not_there_at_all", lambda module: None)
    with pytest.raises(ModuleNotFoundError, match="No module named 'not_there_at_all'"):
        importlib.import_module("not_there_at_all")
    assert importlib.util.find_spec("not_there_at_all") is None


def test_a_package_without_code_is_imported_as_without_us(imports: Path) -> None:
    (imports / "no_code").mkdir()
    finder.when_imported("no_code", lambda module: None)
    assert importlib.import_module("no_code").__file__ is None


def test_nothing_is_left_once_nothing_is_waited_for() -> None:
    before = sys.meta_path[:]
    finder.when_imported("never_imported", lambda module: None)
    assert len(sys.meta_path) == len(before) + 1
    finder.forget_all()
    assert sys.meta_path == before
