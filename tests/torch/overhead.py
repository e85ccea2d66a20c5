"""What each of PyTorch's patches costs a training step: `python -m tests.torch.overhead [SIZE...]`.

Steps with a patch and without it take turns in one process, both recorded; the figure is the median of the ratios of
neighbours in processor time, the collector's included, so a busy machine slows both alike.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import gputrace
from gputrace import instrument
from gputrace.instrument.registry import PATCHES

PAIRS = 20
STEPS = 3

#: Width, tokens, layers: a model as small as models get, and one as a laptop trains them.
SIZES = {"tiny": (32, 16, 2), "small": (256, 64, 4)}


def make_step(size: str) -> Callable[[], None]:
    width, tokens, layers = SIZES[size]
    torch.manual_seed(0)
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True), layers)
    optimizer = torch.optim.AdamW(model.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1000)
    loader = torch.utils.data.DataLoader(torch.randn(8 * STEPS, tokens, width), batch_size=8)

    def steps() -> None:
        for batch in loader:
            with torch.profiler.record_function("step"):
                loss = model(batch).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                scheduler.step()

    return steps


def ratios(step: Callable[[], None], names: list[str]) -> list[float]:
    """Time with these patches over time without, a pair a value."""
    found = []

    def timed(chosen: list[str]) -> int:
        instrument.start(chosen, told.append)
        begin_ns = time.process_time_ns()
        step()
        took_ns = time.process_time_ns() - begin_ns
        instrument.stop()
        return took_ns

    told: list[Any] = []
    timed(names), timed([])
    for turn in range(PAIRS):
        # Each goes first as often as the other.
        first, second = (timed(chosen) for chosen in ((names, []) if turn % 2 else ([], names)))
        found.append(first / second if turn % 2 else second / first)
    assert not told, told
    return found


def main() -> None:
    torch.set_num_threads(1)
    names = [name for name in PATCHES if name.startswith("torch.")]
    for size in sys.argv[1:] or SIZES:
        step = make_step(size)
        with tempfile.TemporaryDirectory() as folder, gputrace.trace(Path(folder) / "t.pftrace", "host", instrument=[]):
            for chosen in ([name] for name in names):
                print(f"{size:6} {chosen[0]:18} {statistics.median(ratios(step, chosen)):.3f}x", flush=True)
            every = [name for name in names if PATCHES[name].default]
            print(f"{size:6} {'all by default':18} {statistics.median(ratios(step, every)):.3f}x", flush=True)


if __name__ == "__main__":
    main()
