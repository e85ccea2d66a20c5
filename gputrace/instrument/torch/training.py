"""`torch.autograd`, `torch.optim` and `torch.data`: what a training loop does around its model.

The optimizers' steps show through `record_function`, which torch puts around each of them, whatever class it is of.
"""

from __future__ import annotations

from gputrace import hot
from gputrace.instrument.site import NOTHING
from gputrace.instrument.torch import prepare
from gputrace.instrument.torch.ranges import around_ranges

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from gputrace.instrument.site import Site


def autograd(site: Site) -> None:
    """Show ``backward()`` and ``torch.autograd.grad``."""
    torch = site.module
    prepare(site, torch)
    site.spans(torch.autograd.backward, "backward")  # Tensor.backward calls it
    site.spans(torch.autograd.grad, "autograd.grad")


def optim(site: Site) -> None:
    """Show steps and ``zero_grad`` of optimizers, learning-rate schedulers and the gradient scaler."""
    torch = site.module
    prepare(site, torch)

    def name_of(range_name: str) -> str:
        """ "Optimizer.step#SGD.step" is "SGD.step"; "" for other ranges."""
        return range_name.partition("#")[2] if range_name.startswith("Optimizer.") else ""

    around_ranges(site, torch.autograd.profiler.record_function, name_of)

    def step(scheduler: Any, *args: Any, **kwargs: Any) -> Any:
        return hot.span(f"{type(scheduler).__name__}.step")

    schedulers = vars(torch.optim.lr_scheduler).values()
    base = torch.optim.lr_scheduler.LRScheduler
    for kind in [kind for kind in schedulers if isinstance(kind, type) and issubclass(kind, base)]:
        if "step" in vars(kind) and kind.__module__ == base.__module__:
            site.swap(vars(kind)["step"], step)
    for name in ("scale", "unscale_", "step", "update"):
        site.spans(getattr(torch.amp.GradScaler, name), f"GradScaler.{name}")


def data(site: Site) -> None:
    """Show the wait for each batch, and each fetch of one, in the workers too."""
    torch = site.module
    prepare(site, torch)
    utils = torch.utils.data
    site.spans(utils.dataloader._BaseDataLoaderIter.__next__, "DataLoader.__next__")

    def fetch(fetcher: Any, indices: Any) -> Any:
        try:
            return hot.span("DataLoader.fetch", None, samples=len(indices))
        except TypeError:
            return NOTHING

    for kind in (utils._utils.fetch._MapDatasetFetcher, utils._utils.fetch._IterableDatasetFetcher):
        site.swap(kind.fetch, fetch)
