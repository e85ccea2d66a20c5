"""Tells when the program has imported a module, without importing it itself.

A finder in front of the others: it lets them find the module and lends it a loader that, for this one import, calls
back at the end. It knows no patch.
"""

from __future__ import annotations

import sys

from gputrace.fence import let_through

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

#: What waits for which module: called with the module, once. Must raise nothing.
_waiting: dict[str, Callable[[Any], None]] = {}


def when_imported(name: str, call: Callable[[Any], None]) -> None:
    """Call ``call(module)`` once module ``name`` is there whole: now, or at the end of its import, or never."""
    module = sys.modules.get(name)
    # Under way on another thread or further up this one, it is not asked for again: its finder has been.
    if module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False):
        call(module)
        return
    _waiting[name] = call
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


def forget_all() -> None:
    """Wait for nothing any more."""
    _waiting.clear()
    if _finder in sys.meta_path:
        sys.meta_path.remove(_finder)


class _Finder:
    """First on `sys.meta_path`: one look into a dict for each import that finds nothing in `sys.modules`."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name not in _waiting:
            return None
        for finder in list(sys.meta_path):
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec = None if find is None else find(name, path, target)
            if spec is not None:
                # A namespace package has no code to wait for, a very old loader no way to wait.
                if hasattr(spec.loader, "exec_module"):
                    spec.loader = _Loader(name, spec.loader)
                return spec
        return None


class _Loader:
    """Stands in for a loader until the module's code runs; the module never shows it."""

    def __init__(self, name: str, loader: Any) -> None:
        self._name = name
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: Any) -> Any:
        create = getattr(self._loader, "create_module", None)
        return None if create is None else create(spec)

    def exec_module(self, module: Any) -> None:
        name, loader = self._name, self._loader  # the module may give itself another name
        try:
            module.__spec__.loader = loader
            if module.__loader__ is self:
                module.__loader__ = loader
        except Exception as error:  # a module of the program's own kind
            let_through(error)
        loader.exec_module(module)
        call = _waiting.pop(name, None)
        if not _waiting:
            forget_all()
        if call is not None:
            # What stands there now may be another: some modules put something else in their place.
            call(sys.modules.get(name, module))


_finder = _Finder()
