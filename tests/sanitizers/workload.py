"""Everything the core allocates for, some thousands of times: whatever is still allocated and lost then is a leak."""

from __future__ import annotations

import asyncio
import os
import tempfile
import threading
from pathlib import Path
from typing import Any

import gputrace
from gputrace.devices.simulated import default_gpu

ROUNDS = 2_000


def spans(stream: Any) -> None:
    for n in range(ROUNDS):
        with gputrace.span("host", n=n, text="x" * (n % 50), real=0.5, yes=True, wide=1 << 80):
            with gputrace.span("gpu", stream, n=n), gputrace.use_stream(stream):
                gputrace.instant("i", n=n)
            gputrace.counter(f"c{n % 7}", n, "bytes")
        with gputrace.span(f"a name of its own {n}" + "y" * 1100):
            pass
        try:
            with gputrace.span("fails", stream):
                raise ValueError(n)
        except ValueError:
            pass
        window = gputrace.window("window", stream, n=n)
        if n % 3 == 0:
            window.failure("on purpose")
        if n % 2:
            window.close()
        else:
            window.abandon()
    gputrace.failure("all of them")


async def tasks(stream: Any) -> None:
    async def one(n: int) -> None:
        with gputrace.span("task", stream, n=n):
            await asyncio.sleep(0)

    for _ in range(20):
        await asyncio.gather(*(one(n) for n in range(50)))


def recording(path: Path, stream: Any) -> None:
    with gputrace.trace(path, "simulated"):
        threads = [threading.Thread(target=spans, args=(stream,)) for _ in range(3)]
        for thread in threads:
            thread.start()
        spans(stream)
        asyncio.run(tasks(stream))
        for thread in threads:
            thread.join()
        for _ in range(200):  # threads that come and go
            thread = threading.Thread(target=lambda: gputrace.span("short").__enter__())
            thread.start()
            thread.join()


def main() -> None:
    stream = default_gpu().stream("main")
    with tempfile.TemporaryDirectory() as folder:
        for suffix in ("pftrace", "json", "pftrace"):
            recording(Path(folder, f"t.{suffix}"), stream)
            if not os.fork():  # and a child that leaves at once
                with gputrace.span("child"):
                    os._exit(0)
            os.wait()


if __name__ == "__main__":
    main()
