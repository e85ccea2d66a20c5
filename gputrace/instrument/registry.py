"""Every patch by name: what it waits for, where it is, and whether it is on unless asked otherwise.

It is read by the launcher and by each traced program, so it imports nothing and knows no framework.
"""

from __future__ import annotations

import os

from gputrace.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Final

#: Hold names, separated by commas or spaces: patches to add, and patches to leave out.
ADD_VARIABLE: Final = "GPUTRACE_INSTRUMENT"
LEAVE_OUT_VARIABLE: Final = "GPUTRACE_NO_INSTRUMENT"
#: What ``--capture-range`` takes, the first with a range's name behind it.
NVTX: Final = "nvtx:"
CUDA_PROFILER: Final = "cuda-profiler"
#: Those that a callback in C++ serves: see `gputrace.instrument.torch.observer`.
BUILT: Final = ("torch.backward", "torch.ops", "torch.copies")
#: In a process's report: did it show any of Python's calls, and if not, some of the modules that were called.
CALLS_SHOWN: Final = "python_calls_shown"
MODULES_SEEN: Final = "python_modules_seen"


class Patch:
    """One change to a framework that makes its work show.

    ``name`` is "framework.what"; ``module`` the module that it waits for; ``where`` "module:function", called with a
    `gputrace.instrument.site.Site` once the program has imported that module. ``default``: on unless left out.
    ``value`` says what a number behind the name stands for ("torch.modules=3"), "" where none may stand there.
    ``needs``: the one without which it shows nothing, if any.
    """

    __slots__ = ("default", "module", "name", "needs", "value", "where")

    def __init__(
        self, name: str, module: str, where: str, *, default: bool = True, value: str = "", needs: str = ""
    ) -> None:
        self.name = name
        self.module = module
        self.where = where
        self.default = default
        self.value = value
        self.needs = needs


_TORCH: Final = "gputrace.instrument.torch"
_KERNELS: Final = "gputrace.instrument.kernels"

#: By name, in the order in which they are applied.
PATCHES: Final[dict[str, Patch]] = {
    patch.name: patch
    for patch in (
        Patch("torch.streams", "torch", f"{_TORCH}.streams:streams", value="the most dots in a module's path"),
        Patch("torch.modules", "torch", f"{_TORCH}.modules:modules", value="the most dots in a path"),
        Patch("torch.autograd", "torch", f"{_TORCH}.training:autograd"),
        Patch("torch.optim", "torch", f"{_TORCH}.training:optim"),
        Patch("torch.steps", "torch", f"{_TORCH}.steps:steps"),
        Patch("torch.data", "torch", f"{_TORCH}.training:data"),
        Patch("torch.distributed", "torch.distributed.distributed_c10d", f"{_TORCH}.distributed:distributed"),
        Patch("torch.cuda", "torch", f"{_TORCH}.cuda:cuda"),
        Patch("torch.ranges", "torch", f"{_TORCH}.ranges:ranges"),
        Patch("torch.backward", "torch", f"{_TORCH}.backward:backward", default=False, needs="torch.modules"),
        Patch("torch.ops", "torch", f"{_TORCH}.observer:ops", default=False),
        Patch("torch.copies", "torch", f"{_TORCH}.observer:copies", default=False),
        Patch("triton.launches", "triton", f"{_KERNELS}.triton:launches"),
        Patch("cuda.core", "cuda.core", f"{_KERNELS}.cuda_core:work"),
        Patch("numba.launches", "numba.cuda.dispatcher", f"{_KERNELS}.numba:launches"),
        Patch("cupy.ranges", "cupy", f"{_KERNELS}.cupy:ranges"),
        Patch("nvtx.ranges", "nvtx", "gputrace.instrument.nvtx_ranges:ranges"),
        Patch("python.gc", "sys", "gputrace.instrument.gc_pauses:pauses", default=False),
        Patch("python.calls", "sys", "gputrace.instrument.python_calls:calls", default=False),
        Patch("python.exceptions", "sys", "gputrace.instrument.raises:exceptions", default=False),
    )
}


def choose(
    add: Iterable[str] = (),
    leave_out: Iterable[str] = (),
    *,
    below: tuple[Iterable[str], Iterable[str]] = ((), ()),
    only: Iterable[str] | None = None,
) -> list[str]:
    """The patches to apply, in order, each "name" or "name=number".

    Those on by default, with what three places add and leave out, each going before the one it follows: ``below``, the
    environment's GPUTRACE_INSTRUMENT and GPUTRACE_NO_INSTRUMENT, and ``add`` and ``leave_out``. Or, where given, those
    of ``only`` alone. A framework's name stands for all of its patches. Raises `UsageError` for a name that there is
    not, for a number where none belongs, and for one without another that it needs.
    """
    if only is not None:
        chosen = _numbers(only)
    else:
        chosen = {name: "" for name, patch in PATCHES.items() if patch.default}
        environment = [os.environ.get(ADD_VARIABLE, "")], [os.environ.get(LEAVE_OUT_VARIABLE, "")]
        for more, less in (below, environment, (add, leave_out)):
            chosen |= _numbers(more)
            for name in _numbers(less):
                chosen.pop(name, None)
    for name in chosen:
        if (needed := PATCHES[name].needs) and needed not in chosen:
            raise UsageError(f"{name} shows nothing without {needed}, whose notes it goes by: have both, or neither")
    return [f"{name}={chosen[name]}" if chosen[name] else name for name in PATCHES if name in chosen]


def _numbers(texts: Iterable[str]) -> dict[str, str]:
    """The number behind each name, "" for none. Several names may stand in one text."""
    found: dict[str, str] = {}
    for word in " ".join(texts).replace(",", " ").split():
        name, equals, number = word.partition("=")
        named = [patch for patch in PATCHES.values() if name in (patch.name, patch.name.partition(".")[0])]
        if not named:
            raise UsageError(f"there is no instrument {name!r}{_nearest(name)}")
        for patch in named:
            if equals and not (patch.value and number.isdecimal()):
                what = f"a whole number, {patch.value}" if patch.value else "nothing"
                raise UsageError(f"{word!r}: behind {patch.name!r} may stand {what}")
            found[patch.name] = number
    return found


def _nearest(name: str) -> str:
    from difflib import get_close_matches  # where a command ends for it, not where a program starts

    names = [*PATCHES, *{patch.partition(".")[0] for patch in PATCHES}]
    close = get_close_matches(name, names, 1)
    return f"; did you mean {close[0]!r}?" if close else f": there are {', '.join(PATCHES) or 'none'}"
