"""Which traces a merge is asked for: files, patterns, folders of traces, folders of shards.

It opens none of them. Links are followed where the user named them, and not inside folders.
"""

from __future__ import annotations

import glob
import hashlib
import os

from gputrace.errors import UsageError
from gputrace.record.recording import is_shard_folder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import TypeVar

    Said = TypeVar("Said")

_SUFFIXES = (".pftrace", ".json", ".perfetto-trace", ".perfetto_trace", ".pb", ".proto", ".trace")


class Found:
    """``files`` and ``shard_folders`` in the order asked for, each once. ``missing`` says of arguments that name
    nothing, and of what several name.
    """

    def __init__(self) -> None:
        self.files: list[str] = []
        self.shard_folders: list[str] = []
        self.missing: list[str] = []


def find(arguments: tuple[str, ...], output: str = "") -> Found:
    """What the arguments name. ``output`` is left out of folders and patterns: a merge done again must not take in its
    own. Raises `UsageError` where it is named itself.
    """
    found = Found()
    ours = os.path.realpath(output) if output else ""
    for argument in arguments:
        paths = [argument]
        if not os.path.lexists(argument) and glob.has_magic(argument):  # a shell that did not expand it
            paths = sorted(path for path in glob.glob(argument, recursive=True) if os.path.realpath(path) != ours)
            if not paths:
                found.missing.append(f"{argument} matches no file")
        for path in paths:
            _take(path, ours, found)
    found.files = _each_once(found.files, found.missing)
    found.shard_folders = _each_once(found.shard_folders, found.missing)
    return found


def _each_once(paths: list[str], told: list[str]) -> list[str]:
    """Files by whatever path, the first one given."""
    first: dict[str, str] = {}
    again: dict[str, list[str]] = {}
    for path in paths:
        real = os.path.realpath(path)
        if real in first:
            again.setdefault(real, []).append(path)
        else:
            first[real] = path
    for real, others in again.items():
        path = first[real]
        number = len(others) + 1
        also = ", ".join(dict.fromkeys(other for other in others if other != path))
        told.append(f"{path}: is given {number} times{f', also as {also}' if also else ''}, and merged once")
    return list(first.values())


def _take(path: str, ours: str, found: Found) -> None:
    if is_shard_folder(path):
        found.shard_folders.append(path)
    elif os.path.isdir(path):
        inside = sorted(_inside(path, ours))
        if not inside:
            found.missing.append(f"{path} is not a recording's folder (no file 'recording' in it), and holds no trace")
        found.files += inside
    elif not os.path.exists(path):
        found.missing.append(f"{path} does not exist")
    elif os.path.realpath(path) == ours:
        raise UsageError(f"-o {path} is one of the traces to merge, and would be lost: give another name")
    else:
        found.files.append(path)


def _inside(folder: str, ours: str) -> list[str]:
    """Files of a folder, and of those in it, that are named as traces are; hidden ones are other people's business."""
    paths = []
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in names:
            path = os.path.join(parent, name)
            bare = name.lower().removesuffix(".gz")
            if not name.startswith(".") and bare.endswith(_SUFFIXES) and os.path.realpath(path) != ours:
                paths.append(path)
    return paths


def by_input(option: str, said: Mapping[str, Said], arguments: tuple[str, ...], found: Found) -> dict[str, Said]:
    """What ``option`` says of files, by the paths that ``arguments`` named them by. Raises `UsageError` where it is of
    none of them, which would go unnoticed, or of a recording's folder.
    """
    first = {os.path.realpath(path): path for path in (*arguments, *found.files)}
    folders = {os.path.realpath(path) for path in found.shard_folders}
    by_path = {}
    for path, value in said.items():
        real = os.path.realpath(path)
        if real in folders:
            raise UsageError(f"{option} names {path}, a recording's folder, which states its clock itself")
        if real not in first:
            raise UsageError(f"{option} names {path}, which is none of the inputs{_nearest(path, found.files)}")
        by_path[first[real]] = value
    return by_path


def _nearest(path: str, files: list[str]) -> str:
    from difflib import get_close_matches  # where a command ends for it

    same_name = [file for file in files if os.path.basename(file) == os.path.basename(path)]
    nearest = get_close_matches(path, same_name or files, 1, cutoff=0)
    return f"; did you mean {nearest[0]}?" if nearest else ""


def repeated(files: list[str]) -> dict[str, str]:
    """Files whose bytes are those of an earlier one, and that one. Only files of one size are read for it."""
    by_size: dict[int, list[str]] = {}
    for path in files:
        if os.path.isfile(path):
            by_size.setdefault(os.path.getsize(path), []).append(path)
    again: dict[str, str] = {}
    for size, paths in by_size.items():
        if len(paths) < 2 or not size:
            continue
        first: dict[bytes, str] = {}
        for path in paths:
            try:
                digest = _digest(path)
            except OSError:
                continue  # whoever reads it says so
            if digest in first:
                again[path] = first[digest]
            else:
                first[digest] = path
    return again


def _digest(path: str) -> bytes:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).digest()
