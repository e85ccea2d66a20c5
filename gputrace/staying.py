"""Has a program that takes gputrace out of `sys.modules` and imports it anew get what was there, while it is recorded.

Test suites purge packages so, and what plugins and notebooks call a reload. Imported twice, two recordings would have
one core and one shard's folder. It knows no recording.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

_ROOT = __name__.partition(".")[0]
_Spec: Any = type(__spec__)


def stay() -> None:
    """Be found again from now on. Raises nothing."""
    if _finder.root is None:
        _finder.root = sys.modules.get(_ROOT)
        sys.meta_path.insert(0, _finder)


def leave() -> None:
    """Let the next import be a new one. Raises nothing."""
    _finder.root = None
    while _finder in sys.meta_path:
        sys.meta_path.remove(_finder)


class _Finder:
    root: ModuleType | None = None

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if not name.startswith(_ROOT) or target is not None:  # which is reloaded, and stays what it is
            return None
        first, *inner = name.split(".")
        module: Any = self.root if first == _ROOT else None
        for part in inner:
            module = getattr(module, "__dict__", {}).get(part)  # a package has those that were imported
        return None if getattr(module, "__name__", "") != name else _Spec(name, _Loader(module))


class _Loader:
    def __init__(self, module: ModuleType) -> None:
        self._module = module
        self._spec = module.__spec__

    def create_module(self, spec: Any) -> ModuleType:
        return self._module

    def exec_module(self, module: Any) -> None:
        module.__spec__ = self._spec


_finder = _Finder()
