"""Patches of what launches kernels from Python: Triton, cuda.core, Numba; CuPy's ranges. A launch is a slice on the
thread that launches, and a window on the stream that it launches on. Nothing here imports any of them.
"""

from __future__ import annotations

import sys

from gputrace.fence import let_through

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from gputrace.instrument.site import Site


def by_dimension(sizes: Iterable[object]) -> str:
    """A grid or a block as text: "4x1x1"."""
    return "x".join(map(str, sizes))


def handle_of(stream: Any) -> int | None:
    """A stream's handle, by the protocol of cuda.core; None for what is no stream, as the framework itself will say."""
    try:
        handle: int = stream.__cuda_stream__()[1]
        return handle
    except Exception as error:
        let_through(error)
        return None


def beside_torch(site: Site) -> None:
    """Have torch's compiler leave alone what this site puts in the way, where the program has imported torch."""
    torch = sys.modules.get("torch")
    if hasattr(torch, "_C"):
        from gputrace.instrument.torch import prepare

        prepare(site, torch)
