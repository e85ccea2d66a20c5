"""Which form a command prints in, of those that its flags name, and what JSON is."""

from __future__ import annotations

import click

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def form_of(**asked: bool) -> str | None:
    """The one that was asked for, None if none was. Raises `click.UsageError` for several: one would win unseen."""
    chosen = [name for name, given in asked.items() if given]
    if len(chosen) > 1:
        flags = " and ".join(f"--{name}" for name in chosen)
        raise click.UsageError(f"{flags} are {len(chosen)} formats: choose one.")
    return chosen[0] if chosen else None


def as_json(found: Any) -> str:
    """JSON on several lines. Half a character, as a path has that is no UTF-8, becomes U+FFFD."""
    import orjson

    options = orjson.OPT_NON_STR_KEYS | orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY
    try:
        return orjson.dumps(found, default=str, option=options).decode()
    except TypeError:
        from gputrace.reading.chrome import encodable

        return orjson.dumps(encodable(found), default=str, option=options).decode()
