"""`torch.streams`: on which stream torch's work is put just now, for the GPU windows of its other patches.

It starts no CUDA and asks the device nothing; before the program has started CUDA, and where this patch is off, there
is no stream. Each answer is for the device that the work's tensors lie on, which need not be the current one.
"""

from __future__ import annotations

from gputrace.devices.base import AMBIENT_HANDLES
from gputrace.fence import let_through

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any, Final

    from gputrace.instrument.site import Site

#: The most dots in the path of a module that gets a window, unless a number was given. A window costs the host as much
#: as launching a small kernel, so without that number modules that hold no others, which may launch just one, get none.
MOST_DOTS: Final = 2


def streams(site: Site) -> None:
    """Have `of_tensors`, `of_optimizer` and `here` answer. A torch that was built without CUDA has nothing to say."""
    global _source
    if hasattr(site.module._C, "_cuda_getCurrentRawStream"):
        _source = source = _Source(site)

        def undo() -> bool:
            global _source
            if _source is source:
                _source = None
            return True

        site.undo_with(undo)


def are_known() -> bool:
    """May there be an answer?"""
    return _source is not None


def device_of(values: Iterable[Any]) -> int | None:
    """The index of the first GPU that one of these tensors lies on; None if none does, or nobody asks for streams.

    Tensors of the program's own classes are not asked: they would answer by the program's own code.
    """
    source = _source
    # What is asked of a tensor is itself recorded where a graph is being traced, or a mode looks on.
    if source is not None and source.is_traced() is None and not source.has_mode():
        kinds = source.kinds
        for value in values:
            if type(value) in kinds and value.is_cuda:
                return int(value.get_device())
    return None


def of_device(device: int | None) -> int | None:
    """The handle of the stream that work on a GPU is put on now; None where there is no GPU, or no CUDA yet."""
    return None if device is None or _source is None else _source.of(device)


def of_tensors(values: Iterable[Any]) -> int | None:
    """The handle of the stream that work on these is put on: see `device_of`."""
    return of_device(device_of(values))


def of_module(module: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
    """As `of_tensors`, for a module that is called so; None for one that gets no window."""
    source = _source
    if source is None or name.count(".") > source.most_dots:
        return None
    if not source.all_modules and not module.__dict__.get("_modules"):
        return None
    return of_tensors((*args, *kwargs.values()))


def of_optimizer(optimizer: Any) -> int | None:
    """As `of_tensors`, for an optimizer's parameters."""
    groups = getattr(optimizer, "param_groups", None) if _source is not None else None
    return of_tensors(groups[0]["params"][:1]) if groups else None


def here() -> int | None:
    """The handle of the stream that work on the current device is put on."""
    return None if _source is None else _source.here()


class _Source:
    """Asks one torch. A fault ends the patch, and there is no stream from then on."""

    __slots__ = (
        "_device",
        "_is_initialized",
        "_raw",
        "_site",
        "all_modules",
        "has_mode",
        "is_traced",
        "kinds",
        "most_dots",
    )

    def __init__(self, site: Site) -> None:
        torch = site.module
        self._site = site
        self._raw = torch._C._cuda_getCurrentRawStream
        self._device = torch._C._cuda_getDevice
        self._is_initialized = torch.cuda.is_initialized
        self.is_traced, self.has_mode = torch._C._get_tracing_state, torch._C._is_torch_function_mode_enabled
        self.kinds = frozenset((torch.Tensor, torch.nn.Parameter))
        self.all_modules = site.value is not None
        self.most_dots = MOST_DOTS if site.value is None else site.value

    def of(self, device: int) -> int | None:
        try:
            if not self._is_initialized():
                return None
            handle: int = self._raw(device)
            # A default stream's handle means the current device's.
            return None if handle in AMBIENT_HANDLES and device != self._device() else handle
        except Exception as error:
            let_through(error)
            self._site.fail(error)
            return None

    def here(self) -> int | None:
        try:
            return int(self._raw(self._device())) if self._is_initialized() else None
        except Exception as error:
            let_through(error)
            self._site.fail(error)
            return None


_source: _Source | None = None
