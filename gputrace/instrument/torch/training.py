"""`torch.autograd`, `torch.optim` and `torch.data`: what a training loop does around its model.

The optimizers' steps show through `record_function`, which torch puts around each of them, whatever class it is of.
"""

from __future__ import annotations

from gputrace import hot
from gputrace.instrument.site import NOTHING
from gputrace.instrument.torch import prepare, streams
from gputrace.instrument.torch.ranges import around_ranges
from gputrace.instrument.torch.steps import nearest_optimizer, step_code

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from gputrace.instrument.site import Site


def autograd(site: Site) -> None:
    """Show ``backward()`` and ``torch.autograd.grad``."""
    torch = site.module
    prepare(site, torch)

    def spans(function: Any, name: str) -> None:
        def around(outputs: Any, *args: Any, **kwargs: Any) -> Any:
            values = outputs if isinstance(outputs, (list, tuple)) else (outputs,)
            return hot.span(name, streams.of_tensors(values))

        site.swap(function, around)

    spans(torch.autograd.backward, "backward")  # Tensor.backward calls it
    spans(torch.autograd.grad, "autograd.grad")


def optim(site: Site) -> None:
    """Show steps and ``zero_grad`` of optimizers, learning-rate schedulers and the gradient scaler."""
    torch = site.module
    prepare(site, torch)

    zero_grad = torch.optim.Optimizer.zero_grad
    codes = (step_code(torch), getattr(zero_grad, "__wrapped__", zero_grad).__code__)

    def opened(range: Any) -> Any:
        """ "Optimizer.step#SGD.step" is "SGD.step"; None for other ranges."""
        if not range.name.startswith("Optimizer."):
            return None
        name = range.name.partition("#")[2]
        return hot.span(name, streams.of_optimizer(nearest_optimizer(codes)) if streams.are_known() else None)

    around_ranges(site, torch.autograd.profiler.record_function, opened)

    def step(scheduler: Any, *args: Any, **kwargs: Any) -> Any:
        return hot.span(f"{type(scheduler).__name__}.step")

    schedulers = vars(torch.optim.lr_scheduler).values()
    base = torch.optim.lr_scheduler.LRScheduler
    for kind in [kind for kind in schedulers if isinstance(kind, type) and issubclass(kind, base)]:
        if "step" in vars(kind) and kind.__module__ == base.__module__:
            site.swap(vars(kind)["step"], step)
    scaler = torch.amp.GradScaler

    def unscale(scaler: Any, optimizer: Any) -> Any:
        return hot.span("GradScaler.unscale_", streams.of_optimizer(optimizer))

    def scaled_step(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        return hot.span("GradScaler.step", streams.of_optimizer(optimizer))

    site.spans(scaler.scale, "GradScaler.scale")
    site.swap(scaler.unscale_, unscale)
    site.swap(scaler.step, scaled_step)
    site.spans(scaler.update, "GradScaler.update")


def data(site: Site) -> None:
    """Show the start of a pass, in which workers start, the wait for each batch, and each fetch, in the workers too."""
    torch = site.module
    prepare(site, torch)
    utils = torch.utils.data
    site.spans(utils.dataloader.DataLoader.__iter__, "DataLoader.__iter__")
    site.spans(utils.dataloader._BaseDataLoaderIter.__next__, "DataLoader.__next__")

    def fetch(fetcher: Any, indices: Any) -> Any:
        try:
            return hot.span("DataLoader.fetch", None, samples=len(indices))
        except TypeError:
            return NOTHING

    for kind in (utils._utils.fetch._MapDatasetFetcher, utils._utils.fetch._IterableDatasetFetcher):
        site.swap(kind.fetch, fetch)
