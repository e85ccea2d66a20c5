"""Trains a small network, and shows where its time goes: on a machine with or without a GPU.

    gputrace record --device simulated -o trace.pftrace -- python examples/train.py

A network of two layers learns to take the noise out of waves. numpy does the arithmetic, so it really learns; the
simulated GPU is kept busy for as long as the arithmetic would take it. The trace then looks as a training loop's does:
the host runs a step ahead of the GPU, and each batch is copied while the one before is worked on.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # on matrices this small, threads only wait for one another

import numpy as np

import gputrace
from gputrace.devices.simulated import default_gpu

# The GPU's assumed speed. It is a slow one: numpy on one core must be able to keep ahead of it, as a host does.
FLOPS = 10e9  # floating-point operations a second
BANDWIDTH = 200e6  # bytes a second between host and device
LAUNCH_S = 5e-6  # what the smallest kernel or copy takes

SAMPLES, HIDDEN = 64, 256
BATCH, STEPS, EPOCHS = 128, 40, 10  # steps an epoch
NOISE = 0.5
RATE, MOMENTUM = 1.0, 0.9

Floats = np.ndarray[Any, np.dtype[np.float32]]

gpu = default_gpu()
compute, copy = gpu.stream("compute"), gpu.stream("copy")


@contextmanager
def kernel(name: str, flops: float) -> Iterator[None]:
    """Keep the compute stream busy for so many flops, while numpy does the same in the block."""
    with gputrace.span(name, stream=compute, mflop=flops / 1e6):
        compute.launch(round(1e9 * (LAUNCH_S + flops / FLOPS)))
        yield


def transfer(name: str, size: int) -> None:
    """Keep the copy stream busy for so many bytes."""
    with gputrace.span(name, stream=copy, bytes=size):
        copy.launch(round(1e9 * (LAUNCH_S + size / BANDWIDTH)))


class Network:
    """``output = tanh(input @ w1) @ w2``, its weights, and how they last moved."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.w1, self.w2 = (
            (rng.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)
            for shape in ((SAMPLES, HIDDEN), (HIDDEN, SAMPLES))
        )
        self.moved1, self.moved2 = np.zeros_like(self.w1), np.zeros_like(self.w2)

    def step(self, noisy: Floats, clean: Floats) -> float:
        """One step of gradient descent; the loss before it."""
        matmul = 2 * BATCH * SAMPLES * HIDDEN  # flops: all five multiply by a matrix of this size
        with gputrace.span("forward", stream=compute):
            with kernel("x @ w1", matmul):
                hidden = noisy @ self.w1
            with kernel("tanh", 10 * hidden.size):
                hidden = np.tanh(hidden)
            with kernel("h @ w2", matmul):
                output = hidden @ self.w2
            with kernel("loss", 3 * output.size):
                error = output - clean
                loss = float(np.mean(error * error))
        with gputrace.span("backward", stream=compute):
            error *= 2 / error.size
            with kernel("grad w2", matmul):
                grad2 = hidden.T @ error
            with kernel("grad h", matmul):
                grad_hidden = error @ self.w2.T
            with kernel("grad tanh", 3 * hidden.size):
                grad_hidden *= 1 - hidden * hidden
            with kernel("grad w1", matmul):
                grad1 = noisy.T @ grad_hidden
        with gputrace.span("optimizer", stream=compute):
            for weight, moved, grad in ((self.w1, self.moved1, grad1), (self.w2, self.moved2, grad2)):
                with kernel("sgd", 4 * weight.size):
                    moved *= MOMENTUM
                    moved -= RATE * grad
                    weight += moved
        return loss


def make_waves(count: int, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Waves of any phase and one to three periods: with noise, and without."""
    periods, phase = rng.uniform(1, 3, (count, 1)), rng.uniform(0, 2 * np.pi, (count, 1))
    clean = np.sin(periods * np.linspace(0, 2 * np.pi, SAMPLES) + phase)
    noisy = clean + NOISE * rng.standard_normal(clean.shape)
    return noisy.astype(np.float32), clean.astype(np.float32)


class Loop:
    """Takes a network through its batches, one copied while the one before is worked on."""

    def __init__(self, network: Network, noisy: Floats, clean: Floats) -> None:
        self.network, self.noisy, self.clean = network, noisy, clean
        # There is room for two batches on the GPU. Of the batch in each: it is there; it is done with; its loss is out.
        self.copied, self.worked, self.told = ([gpu.event_create(), gpu.event_create()] for _ in range(3))
        self.copy_batch(0)

    def copy_batch(self, number: int) -> None:
        copy.wait_event(self.worked[number % 2])
        transfer("batch", 2 * 4 * BATCH * SAMPLES)
        gpu.event_record(self.copied[number % 2], copy)

    def step(self, number: int) -> float:
        """Enqueue a step and the copy of the next batch; wait for the step before, not for this one."""
        first = number % STEPS * BATCH
        with gputrace.span("step", stream=compute, number=number):
            compute.wait_event(self.copied[number % 2])
            loss = self.network.step(self.noisy[first : first + BATCH], self.clean[first : first + BATCH])
            gpu.event_record(self.worked[number % 2], compute)
        self.copy_batch(number + 1)
        copy.wait_event(self.worked[number % 2])
        transfer("loss", 4)
        gpu.event_record(self.told[number % 2], copy)
        with gputrace.span("wait"):
            gpu.event_wait(self.told[(number - 1) % 2])
        return loss


def main() -> None:
    rng = np.random.default_rng(0)
    loop = Loop(Network(rng), *make_waves(BATCH * STEPS, rng))
    print(f"mean square of the noise: {NOISE**2:.4f}; of what the network leaves of it:")
    for epoch in range(EPOCHS):
        losses: list[float] = []
        with gputrace.span("epoch", number=epoch):
            for number in range(epoch * STEPS, (epoch + 1) * STEPS):
                began_ns = time.monotonic_ns()
                losses.append(loop.step(number))
                gputrace.counter("loss", losses[-1])
                gputrace.counter("steps a second", 1e9 / (time.monotonic_ns() - began_ns))
        gputrace.instant("epoch done", number=epoch, loss=losses[-1])
        print(f"epoch {epoch}: {np.mean(losses):.4f}")


if __name__ == "__main__":
    main()
