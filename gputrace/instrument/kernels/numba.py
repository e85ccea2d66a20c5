"""`numba.launches`: each launch of a Numba CUDA kernel by its Python function's name, on its stream.

Only the launch itself: copies of host arrays to the device and back are made around it, and are not in its window.
"""

from __future__ import annotations

from _thread import _local

from gputrace import hot
from gputrace.instrument.kernels import beside_torch, by_dimension
from gputrace.instrument.kernels.cuda_core import around_launch
from gputrace.instrument.site import Nothing

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from gputrace.instrument.site import Site


def launches(site: Site) -> None:
    """Show launches with grid and block."""
    dispatcher = site.module
    if not hasattr(dispatcher.CUDADispatcher, "call"):
        return  # the simulator's, which runs kernels in Python
    beside_torch(site)
    called = _local()

    def call(function: Any, *args: Any, **kwargs: Any) -> Any:
        return _Called(called, function.py_func.__name__)

    def name_of(kernel: Any) -> str:
        name: str = getattr(called, "name", "launch")
        return name

    def launch_kernel(
        _: Any, gx: Any, gy: Any, gz: Any, bx: Any, by: Any, bz: Any, shared: Any, stream: Any, *rest: Any
    ) -> Any:
        grid, block = by_dimension((gx, gy, gz)), by_dimension((bx, by, bz))
        return hot.span(name_of(None), 0 if stream is None else stream, grid=grid, block=block)

    site.swap(dispatcher.CUDADispatcher.call, call)
    if hasattr(dispatcher, "launch"):
        # It is cuda.core's. Where that shows what it launches, Numba took a stand-in, which would show this one again.
        dispatcher.launch = getattr(dispatcher.launch, "__wrapped__", dispatcher.launch)
        site.wrap(dispatcher, "launch", around_launch(name_of))
    else:
        site.swap(dispatcher.driver.launch_kernel, launch_kernel)


class _Called(Nothing):
    """Around a call of a kernel: names what this thread launches in it."""

    __slots__ = ("_before", "_called", "_name")

    def __init__(self, called: Any, name: str) -> None:
        self._called = called
        self._name = name

    def __enter__(self) -> _Called:
        self._before = getattr(self._called, "name", "launch")
        self._called.name = self._name
        return self

    def __exit__(self, *_: object) -> None:
        self._called.name = self._before
