"""Which git commit a folder is at, read from git's own files: a trace says what it is of without running anything."""

from __future__ import annotations

import os


def commit(folder: str) -> str:
    """The commit checked out in ``folder`` or above it, as hex digits; "" if that cannot be told."""
    try:
        git = _git_folder(os.path.abspath(folder))
        return _resolve(git, _first_line(os.path.join(git, "HEAD"))) if git else ""
    except (OSError, UnicodeDecodeError):
        return ""


def _git_folder(folder: str) -> str:
    while not os.path.exists(os.path.join(folder, ".git")):
        above = os.path.dirname(folder)
        if above == folder:
            return ""
        folder = above
    git = os.path.join(folder, ".git")
    if os.path.isfile(git):  # a worktree or submodule: "gitdir: PATH"
        git = os.path.join(folder, _first_line(git).removeprefix("gitdir: "))
    return git


def _resolve(git: str, head: str) -> str:
    if not head.startswith("ref: "):
        return head
    ref = head.removeprefix("ref: ")
    common = os.path.join(git, "commondir")  # a worktree keeps its branches elsewhere
    shared = os.path.join(git, _first_line(common)) if os.path.exists(common) else git
    for folder in (git, shared):
        if os.path.isfile(os.path.join(folder, ref)):
            return _first_line(os.path.join(folder, ref))
    with open(os.path.join(shared, "packed-refs"), encoding="utf-8") as packed:
        for line in packed:
            digits, _, name = line.strip().partition(" ")
            if name == ref:
                return digits
    return ""


def _first_line(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.readline().strip()
