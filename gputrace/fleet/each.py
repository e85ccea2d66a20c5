"""Decides who works on many traces: this process, where they are few or small, or Dask's."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from gputrace.fleet.job import do, size_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gputrace.fleet.job import Done, Job
    from gputrace.fleet.pool import Pool

#: Below either, Dask would take longer to start than it saves.
FEWEST = 8
LEAST_BYTES = 96 << 20


class Fleet:
    """Where work is done: see `gputrace.fleet.pool.Pool`, which is started when there is enough of it. A context
    manager. ``tell`` is given lines for whoever waits.
    """

    def __init__(
        self, scheduler: str = "", memory_bytes: int = 0, tell: Callable[[str], None] = lambda _: None
    ) -> None:
        self.scheduler = scheduler
        self.memory_bytes = memory_bytes
        self._tell = tell
        self._pool: Pool | None = None
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def each(self, jobs: Sequence[Job]) -> Iterator[Done]:
        """What comes of each job, in their order. A file that cannot be read is told of in its result."""
        if self._pool is None and not (self.scheduler or self._worth([file for file, _ in jobs])):
            yield from (do(file, work) for file, work in jobs)
            return
        from gputrace.fleet.pool import INSTALL, Pool, there

        if self._pool is None and not self.scheduler and not there():
            self._tell(f"{len(jobs):,} traces are read one after another; {INSTALL} has all CPUs read them")
            yield from (do(file, work) for file, work in jobs)
            return
        if self._pool is None:
            self._pool = self._stack.enter_context(Pool(self.scheduler, self.memory_bytes, len(jobs)))
        yield from self._pool.map(jobs)

    def _worth(self, files: Sequence[str]) -> bool:
        if len(files) < FEWEST:
            return False
        return self.memory_bytes > 0 or sum(map(size_of, files)) >= LEAST_BYTES
