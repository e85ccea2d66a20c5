"""Finds the exporters where gputrace is imported from a source tree: they lie beside the package there, not in it.

Installed, they are a package of it like any other; in the tree, a program run from its root would not find them.
"""

from __future__ import annotations

import os


def root_of(package: str) -> str:
    """The source tree that a package's folder lies in; "" of one that is installed."""
    beside = os.path.dirname(os.path.abspath(package))
    if os.path.isdir(os.path.join(package, "exporters")):
        return ""
    return beside if os.path.isfile(os.path.join(beside, "exporters", "perfetto.py")) else ""


def find_exporters(package_path: list[str]) -> None:
    """Add the folder that holds ``exporters`` to the package's path, if this is a source tree."""
    root = root_of(package_path[0])
    if root:
        package_path.append(root)
