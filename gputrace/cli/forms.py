"""Which form a command prints in, of those that its flags name."""

from __future__ import annotations

import click


def form_of(**asked: bool) -> str | None:
    """The one that was asked for, None if none was. Raises `click.UsageError` for several: one would win unseen."""
    chosen = [name for name, given in asked.items() if given]
    if len(chosen) > 1:
        flags = " and ".join(f"--{name}" for name in chosen)
        raise click.UsageError(f"{flags} are {len(chosen)} formats: choose one.")
    return chosen[0] if chosen else None
