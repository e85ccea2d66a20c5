"""`torch.steps`: with ``--steps``, an optimizer's step ends a step of the program that counts none itself.

It knows optimizers by the range that torch puts around each of their steps, and draws nothing.
"""

from __future__ import annotations

from _weakref import ref
from sys import _getframe

from gputrace.instrument.site import NOTHING, Nothing
from gputrace.instrument.torch import prepare

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType
    from typing import Any

    from gputrace.instrument.site import Site


def steps(site: Site) -> None:
    """Count the steps of the first optimizer seen, for as long as it lives; the next one seen comes after it.

    Programs with several (a generator's and a discriminator's) step one of them once a round, be it more than once. A
    step inside another, as of an optimizer that wraps one, is part of that. A step that raises is none. One that a
    `GradScaler` skips counts: it ends a round of the program as those do that an optimizer takes by itself.
    """
    regions = site.regions
    if regions is None or "first_step" not in site.options:
        return
    torch = site.module
    prepare(site, torch)
    counted = _Counted(regions.optimizer_step)
    around = step_code(torch)

    def __exit__(range: Any, kind: Any, error: Any, trace: Any) -> Any:
        if kind is None and range.name.startswith("Optimizer.step#"):
            optimizer = _outermost(around)
            if optimizer is not None:
                counted.add(optimizer)
        return NOTHING

    def step(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        return _Scaled(counted, optimizer)

    site.swap(torch.autograd.profiler.record_function.__exit__, __exit__)
    site.swap(torch.amp.GradScaler.step, step)


class _Counted:
    """Tells of the steps of one optimizer: the first, or the first after that one is gone."""

    def __init__(self, tell: Any) -> None:
        self._tell = tell
        self._first: Any = None
        self.steps = 0

    def add(self, optimizer: Any) -> None:
        first = None if self._first is None else self._first()
        if first is None:
            self._first = ref(optimizer)
        elif first is not optimizer:
            return
        self.steps += 1
        self._tell()


class _Scaled(Nothing):
    """Around a gradient scaler's step: counts it, unless the optimizer's own within it was."""

    __slots__ = ("_before", "_counted", "_optimizer")

    def __init__(self, counted: _Counted, optimizer: Any) -> None:
        self._counted = counted
        self._optimizer = optimizer
        self._before = counted.steps

    def __exit__(self, *error: object) -> None:
        if error[0] is None and self._counted.steps == self._before:
            self._counted.add(self._optimizer)


def step_code(torch: Any) -> CodeType:
    """The code of the function that torch puts around each optimizer's step, whose ``self`` is the optimizer."""
    constants = torch.optim.Optimizer.profile_hook_step.__code__.co_consts
    code: CodeType = next(each for each in constants if getattr(each, "co_name", "") == "wrapper")
    return code


def nearest_optimizer(codes: tuple[CodeType, ...]) -> Any:
    """The ``self`` of the innermost frame here of one of these codes; None if there is none."""
    frame: Any = _getframe(1)
    while frame is not None and frame.f_code not in codes:
        frame = frame.f_back
    return None if frame is None else frame.f_locals["self"]


def _outermost(around: CodeType) -> Any:
    """The optimizer whose step ends here; None if another's is still under way around it."""
    found = None
    frame: Any = _getframe(1)
    while frame is not None:
        if frame.f_code is around:
            if found is not None:
                return None
            found = frame.f_locals["self"]
        frame = frame.f_back
    return found
