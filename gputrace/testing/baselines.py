"""Measured times kept in a JSON file beside the tests: by device, then by test and name.

The file is meant to be committed. It knows neither pytest nor a device.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os

from gputrace.errors import GputraceError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import Any

#: The file's name, in the folder of the tests that it is for.
FILE = "gputrace_baselines.json"


class BadBaselines(GputraceError):
    """The file cannot be read or written; the text says what to do."""


class Baseline:
    """A time measured earlier, in ns, and how far off it may be."""

    __slots__ = ("median_ns", "repeats", "uncertainty_ns")

    def __init__(self, median_ns: int, uncertainty_ns: int, repeats: int) -> None:
        self.median_ns = median_ns
        self.uncertainty_ns = uncertainty_ns
        self.repeats = repeats


def load(path: Path, device: str, key: str) -> Baseline | None:
    """What was stored for ``key`` on a device of this name; None if nothing was. Raises `BadBaselines`."""
    stored = _read(path).get(device, {}).get(key)
    if stored is None:
        return None
    try:
        found = Baseline(**{name: int(stored[name]) for name in Baseline.__slots__})
    except (KeyError, TypeError, ValueError):
        found = Baseline(0, 0, 0)
    if found.median_ns <= 0 or found.uncertainty_ns < 0:
        raise BadBaselines(f"{path} holds no time for {key!r} on {device}: {stored!r}; measure it anew")
    return found


def store(path: Path, device: str, key: str, baseline: Baseline) -> None:
    """Add or replace one. Processes may do so at once: none takes away another's. Raises `BadBaselines`."""
    try:
        with _locked(path.parent):
            everything = _read(path)
            everything.setdefault(device, {})[key] = {name: getattr(baseline, name) for name in Baseline.__slots__}
            new = path.with_name(f".{path.name}.{os.getpid()}.new")
            new.write_text(json.dumps(everything, indent=2, sort_keys=True, ensure_ascii=False) + "\n", "utf-8")
            os.replace(new, path)
    except OSError as error:
        raise BadBaselines(f"cannot write {path}: {error.strerror}") from error


def _read(path: Path) -> dict[str, dict[str, Any]]:
    try:
        found = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise BadBaselines(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise BadBaselines(f"{path} is no JSON ({error}): mend it, or remove it and measure anew") from error
    if not isinstance(found, dict) or not all(isinstance(each, dict) for each in found.values()):
        raise BadBaselines(f"{path} holds no baselines by device: mend it, or remove it and measure anew")
    return found


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One process at a time. The folder itself is locked, so that no file is left for it."""
    held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield
    finally:
        os.close(held)
