"""A storage for fsspec that fails as a network does: ``flaky://NAME`` is a file in the folder FLAKY_ROOT.

Files in that folder say what goes wrong: ``.failures`` and ``.torn`` hold how many uploads fail or arrive by half; with
``.refused`` there none is allowed, and with ``.hang`` one makes ``.hanging`` and waits for ever. `installed` makes
fsspec know it, by entry point, in processes that are started with the environment it returns.
"""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path
from typing import Any

from fsspec import AbstractFileSystem

ROOT = Path(__file__).parent.parent


class FlakyStorage(AbstractFileSystem):  # type: ignore[misc]
    protocol = "flaky"
    cachable = False

    def put_file(self, lpath: str, rpath: str, callback: Any = None, **_: Any) -> None:
        if _there(".hang"):
            _path(".hanging").write_text("yes")
            threading.Event().wait()
        if _there(".refused"):
            raise PermissionError("Access Denied")
        if _one_of(".failures"):
            raise OSError("the network is down, said token=hunter2")
        path = _path(rpath)
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(lpath, path)
        if _one_of(".torn"):
            os.truncate(path, path.stat().st_size // 2)

    def get_file(self, rpath: str, lpath: str, **_: Any) -> None:
        shutil.copyfile(_path(rpath), lpath)

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        status = _path(path).stat()
        kind = "directory" if _path(path).is_dir() else "file"
        return {"name": self._strip_protocol(path), "size": status.st_size, "type": kind}

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        names = [f"{path}/{each.name}".lstrip("/") for each in sorted(_path(path).iterdir())]
        return [self.info(name) for name in names] if detail else names


def _path(name: str) -> Path:
    return Path(os.environ["FLAKY_ROOT"]) / FlakyStorage._strip_protocol(name)


def _there(name: str) -> bool:
    return _path(name).exists()


def _one_of(name: str) -> bool:
    """Takes one from the number that a file holds, if it is not 0 yet."""
    left = int(_path(name).read_text()) if _there(name) else 0
    if left:
        _path(name).write_text(str(left - 1))
    return left > 0


def installed(folder: Path) -> dict[str, str]:
    """An environment in which fsspec knows it. ``folder``/stored is its root, and temporary files go to
    ``folder``/temporary.
    """
    for name in ("stored", "temporary", "site/flaky-1.0.dist-info"):
        (folder / name).mkdir(parents=True)
    about = folder / "site" / "flaky-1.0.dist-info"
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: flaky\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[fsspec.specs]\nflaky = tests.flaky_storage:FlakyStorage\n")
    environment = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    return {
        **environment,
        "FLAKY_ROOT": str(folder / "stored"),
        "TMPDIR": str(folder / "temporary"),
        "PYTHONPATH": os.pathsep.join([str(folder / "site"), str(ROOT)]),
    }
