"""`triton.launches`: each launch of a Triton kernel by its name, on the stream that it goes to.

Around Triton's own launcher for CUDA, which calls the program's launch hooks inside. It sets no hook itself: with a
hook set, PyTorch's Inductor makes other launchers. It reads no argument of a kernel.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

from gputrace import hot
from gputrace.instrument.kernels import beside_torch, by_dimension
from gputrace.instrument.site import NOTHING

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from gputrace.instrument.site import Site


def launches(site: Site) -> None:
    """Show launches with ``grid``, ``num_warps`` and ``num_stages`` (of kernels loaded before the recording: warps)."""
    beside_torch(site)
    backend = site.module.backends.backends.get("nvidia")
    if backend is None:
        return  # a Triton for other devices
    kind: Any = backend.driver.__init__.__globals__["CudaLauncher"]
    compiled: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()  # a kernel's facts by its launcher

    def made(launcher: Any, src: Any, metadata: Any) -> Any:
        compiled[launcher] = metadata
        return NOTHING

    def launch(
        launcher: Any, x: Any, y: Any, z: Any, stream: Any, function: Any, packed: Any, lazy: Any, *_: Any
    ) -> Any:
        metadata = compiled.get(launcher)
        if metadata is None:
            # What is known without the program's own code, which `lazy.get()` would call.
            name = "Triton kernel" if lazy is None else lazy.data["name"]
            return hot.span(name, stream, grid=by_dimension((x, y, z)), num_warps=packed[0])
        facts = {name: getattr(metadata, name) for name in ("num_warps", "num_stages") if hasattr(metadata, name)}
        return hot.span(metadata.name, stream, grid=by_dimension((x, y, z)), **facts)

    site.swap(kind.__init__, made)
    site.swap(kind.__call__, launch)
