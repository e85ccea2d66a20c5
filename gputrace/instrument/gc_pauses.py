"""Python's own garbage collections as slices, on the thread that each of them stops. It knows no framework."""

from __future__ import annotations

import gc

from gputrace import hot
from gputrace.fence import let_through

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from gputrace.instrument.site import Site


def pauses(site: Site) -> None:
    """A span around each collection, with its generation (2 looks at everything)."""
    running: list[Any] = []  # at most one in the process

    def look(phase: str, info: dict[str, Any]) -> None:
        try:
            if phase == "start":
                made = hot.span("garbage collection", generation=info["generation"])
                made.__enter__()
                running.append(made)
            elif running:
                running.pop().__exit__(None, None, None)
        except Exception as error:
            let_through(error)
            site.fail(error)

    def undo() -> bool:
        if look in gc.callbacks:
            gc.callbacks.remove(look)
        return True

    gc.callbacks.append(look)
    site.undo_with(undo)
