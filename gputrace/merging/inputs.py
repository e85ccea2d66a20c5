"""Which traces a merge is asked for: files, patterns, folders of traces, folders of shards, and URLs of the like.

It opens none of them, and fetches none. Links are followed where the user named them, and not inside folders.
"""

from __future__ import annotations

import glob
import hashlib
import os

from gputrace import remote
from gputrace.errors import InputError, UsageError
from gputrace.record.recording import is_shard_folder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import TypeVar

    Said = TypeVar("Said")

SUFFIXES = (".pftrace", ".json", ".perfetto-trace", ".perfetto_trace", ".pb", ".proto", ".trace")


class Found:
    """``files`` and ``shard_folders`` in the order asked for, each once. ``missing`` says of arguments that name
    nothing, ``again`` of what several name.
    """

    def __init__(self) -> None:
        self.files: list[str] = []
        self.shard_folders: list[str] = []
        self.missing: list[str] = []
        self.again: list[str] = []


def find(arguments: tuple[str, ...], output: str = "") -> Found:
    """What the arguments name. ``output``, a path or a URL, is left out of folders and patterns: a merge done again
    must not take in its own. Raises `UsageError` where it is named itself.
    """
    found = Found()
    ours = _real(output) if output else ""
    for argument in arguments:
        if remote.is_url(argument):
            _take_remote(argument, ours, found)
            continue
        paths = [argument]
        if not os.path.lexists(argument) and glob.has_magic(argument):  # a shell that did not expand it
            paths = sorted(path for path in glob.glob(argument, recursive=True) if os.path.realpath(path) != ours)
            if not paths:
                found.missing.append(f"{argument} matches no file")
        for path in paths:
            _take(path, ours, found)
    found.files = _each_once(found.files, found.again)
    found.shard_folders = _each_once(found.shard_folders, found.again)
    return found


def _real(path: str) -> str:
    """What a file is known by, whatever path or URL it is named by."""
    return remote.shown(path) if remote.is_url(path) else os.path.realpath(path)


def _each_once(paths: list[str], told: list[str]) -> list[str]:
    """Files by whatever path, the first one given."""
    first: dict[str, str] = {}
    again: dict[str, list[str]] = {}
    for path in paths:
        real = _real(path)
        if real in first:
            again.setdefault(real, []).append(path)
        else:
            first[real] = path
    for real, others in again.items():
        path = first[real]
        number = len(others) + 1
        also = ", ".join(dict.fromkeys(other for other in others if other != path))
        told.append(f"{path}: is given {number} times{f', also as {also}' if also else ''}, and read once")
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


def _take_remote(url: str, ours: str, found: Found) -> None:
    if remote.shown(url) == ours:
        raise UsageError(f"-o {ours} is one of the traces to merge, and would be lost: give another name")
    try:
        files = [file for file in remote.find(url, SUFFIXES) if file != ours]
    except InputError as error:
        found.missing.append(str(error))
        return
    if not files:
        found.missing.append(f"{remote.shown(url)} matches no file, or is a folder that holds no trace")
    found.files += files


def _inside(folder: str, ours: str) -> list[str]:
    """Files of a folder, and of those in it, that are named as traces are; hidden ones are other people's business."""
    paths = []
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in names:
            path = os.path.join(parent, name)
            bare = name.lower().removesuffix(".gz")
            if not name.startswith(".") and bare.endswith(SUFFIXES) and os.path.realpath(path) != ours:
                paths.append(path)
    return paths


def by_input(option: str, said: Mapping[str, Said], arguments: tuple[str, ...], found: Found) -> dict[str, Said]:
    """What ``option`` says of files, by the paths that ``arguments`` named them by. Raises `UsageError` where it is of
    none of them, which would go unnoticed, or of a recording's folder.
    """
    first = {_real(path): path for path in (*arguments, *found.files)}
    folders = {os.path.realpath(path) for path in found.shard_folders}
    by_path = {}
    for path, value in said.items():
        real = _real(path)
        if real in folders:
            raise UsageError(f"{option} names {path}, a recording's folder, which states its clock itself")
        if real not in first:
            nearest = _nearest(path, found.files)
            raise UsageError(f"{option} names {remote.shown(path)}, which is none of the inputs{nearest}")
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
        file = remote.to_open(path)
        if os.path.isfile(file):
            by_size.setdefault(os.path.getsize(file), []).append(path)
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
    with open(remote.to_open(path), "rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).digest()
