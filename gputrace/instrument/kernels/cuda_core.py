"""`cuda.core`: launches by the kernel's name, copies, fills and launches of graphs, each on its stream.

All of it is compiled: a stand-in goes where a function or method is held. Nothing of a buffer is read but its size.
"""

from __future__ import annotations

import sys

from gputrace import hot
from gputrace.fence import let_through
from gputrace.instrument.kernels import by_dimension, handle_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from gputrace.instrument.site import Site


def work(site: Site) -> None:
    """Show ``launch``, ``copy_batch``, and the methods that enqueue work of buffers and graphs."""
    core = site.module
    if not hasattr(core, "launch"):
        return  # a version in which all of it was experimental, elsewhere
    modules = sys.modules
    launch = around_launch(_kernel_name(modules["cuda.bindings.driver"]))
    site.wrap(core, "launch", launch, modules[core.launch.__module__])
    for kind, methods in ((core.Buffer, ("copy_to", "copy_from", "fill")), (_graph_class(core), ("launch",))):
        for method in methods:
            site.wrap(kind, method, _method(f"{kind.__name__}.{method}"))
    if hasattr(core.utils, "copy_batch"):
        site.wrap(core.utils, "copy_batch", _copy_batch, modules[core.utils.copy_batch.__module__])


def around_launch(name_of: Callable[[Any], str]) -> Callable[..., Any]:
    """What stands around ``cuda.core.launch``; ``name_of(kernel)`` names its slice."""

    def launch(stream: Any, config: Any, kernel: Any, *_: Any) -> Any:
        grid, block = getattr(config, "grid", ()), getattr(config, "block", ())
        return hot.span(name_of(kernel), handle_of(stream), grid=by_dimension(grid), block=by_dimension(block))

    return launch


def _graph_class(core: Any) -> Any:
    return core.Graph if hasattr(core, "Graph") else core.graph.Graph


def _method(name: str) -> Callable[..., Any]:
    def around(self: Any, *args: Any, **kwargs: Any) -> Any:
        stream = handle_of(kwargs.get("stream", args[-1] if args else None))
        if hasattr(self, "size"):
            return hot.span(name, stream, bytes=self.size)
        return hot.span(name, stream)

    return around


def _copy_batch(stream: Any, srcs: Any, *_: Any, **__: Any) -> Any:
    return hot.span("copy_batch", handle_of(stream), copies=len(srcs))


def _kernel_name(driver: Any) -> Callable[[Any], str]:
    def name_of(kernel: Any) -> str:
        """As the driver says it; before CUDA 12.3 it cannot."""
        try:
            code, name = driver.cuKernelGetName(kernel.handle)
            return "launch" if code else name.decode()
        except Exception as error:
            let_through(error)
            return "launch"

    return name_of
