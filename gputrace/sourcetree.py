"""Finds the exporters where gputrace is imported from a source tree: they lie beside the package there, not in it.

Installed, they are a package of it like any other; in the tree, a program run from its root would not find them.
"""

from __future__ import annotations

import os


def find_exporters(package_path: list[str]) -> None:
    """Add the folder that holds ``exporters`` to the package's path, if this is a source tree."""
    package = package_path[0]
    beside = os.path.dirname(os.path.abspath(package))
    if not os.path.isdir(os.path.join(package, "exporters")) and os.path.isfile(
        os.path.join(beside, "exporters", "perfetto.py")
    ):
        package_path.append(beside)
