"""Jobs in parallel on Dask: in processes of this machine, or on a cluster that is there already.

Processes here talk to one another encrypted: any user of the machine could give an open scheduler work to do. Each may
take so much memory; one that takes more is ended, and the job that it was at is told of as failed.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import signal
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from gputrace.errors import GputraceError, UsageError
from gputrace.fleet.job import Done, do_all, size_of
from gputrace.remote import Fetched, Remote, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gputrace.fleet.job import Job

INSTALL = "pip install 'gputrace[fleet]'"
#: A process of Dask's takes some 150 MB before it has read anything.
LEAST_BYTES = 256 << 20

_ANSWERS_WITHIN = "5s"
_WORKERS_WITHIN_S = 60.0
#: So many batches for each thread are on their way at a time: their results are taken in order, and wait for that.
_AHEAD = 4
_MOST_TOGETHER = 16
_TOGETHER_BYTES = 16 << 20


def there() -> bool:
    """Is Dask installed?"""
    return importlib.util.find_spec("distributed") is not None and importlib.util.find_spec("cryptography") is not None


class Pool:
    """A context manager. ``scheduler`` is the address of a cluster; "" starts one process for each CPU here, each of
    ``memory_bytes`` at most, and fewer if they would not fit; 0 shares the machine's memory among them.

    Raises `UsageError` where Dask is not installed, and `GputraceError` where no scheduler answers.
    """

    def __init__(self, scheduler: str, memory_bytes: int, jobs: int) -> None:
        if not there():
            raise UsageError(f"work in parallel needs Dask: {INSTALL}")
        if memory_bytes and memory_bytes < LEAST_BYTES:
            raise UsageError(
                f"--memory-per-worker: a process takes {LEAST_BYTES >> 20}MB and more: give it 1GB or more"
            )
        self._scheduler = scheduler
        self._memory_bytes = memory_bytes
        self._jobs = jobs
        self._stack = contextlib.ExitStack()
        self._client: Any = None

    def __enter__(self) -> Pool:
        import dask
        from distributed import Client

        with self._stack:
            # Results are small and taken at once: nothing is worth writing to a disk. What is given to a process beyond
            # the job that it is at would be lost with it. Nobody is to look on, over HTTP or in a profile.
            settings = {
                "distributed.worker.profile.enabled": False,
                "distributed.scheduler.http.routes": [],
                "distributed.worker.http.routes": [],
                "distributed.worker.memory.target": False,
                "distributed.worker.memory.spill": False,
                "distributed.worker.memory.pause": False,
                "distributed.scheduler.worker-saturation": 1.0,
                "distributed.scheduler.allowed-failures": 0,
            }
            self._stack.enter_context(dask.config.set(settings))
            logging.getLogger("distributed").setLevel(logging.CRITICAL)
            if not self._scheduler:
                cluster = self._local()
                self._client = self._stack.enter_context(Client(cluster, security=cluster.security))
            else:
                try:
                    self._client = self._stack.enter_context(Client(self._scheduler, timeout=_ANSWERS_WITHIN))
                except (OSError, ValueError, TimeoutError) as error:
                    raise GputraceError(
                        f"no Dask scheduler answers at {shown(self._scheduler)} ({error}): is `dask scheduler` running "
                        "there? Without --scheduler, the traces are read by processes of this machine"
                    ) from error
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _local(self) -> Any:
        from distributed import LocalCluster
        from distributed.security import Security
        from distributed.system import MEMORY_LIMIT

        memory_bytes, processes = self._memory_bytes, min(cpus(), self._jobs)
        if memory_bytes:
            processes = max(1, min(processes, MEMORY_LIMIT // memory_bytes))
        else:
            memory_bytes = MEMORY_LIMIT // processes
        self._memory_bytes = memory_bytes
        # Ctrl-C goes to all processes of a terminal's, and is this one's to heed. One that comes in the seconds that
        # this takes is lost; a process that is started later, in place of one that was killed, has the preload.
        with _ctrl_c_ignored():
            cluster = LocalCluster(
                n_workers=processes,
                threads_per_worker=1,
                memory_limit=memory_bytes,
                protocol="tls://",
                dashboard_address="127.0.0.1:0",  # None would be the same port for every run
                scheduler_kwargs={"dashboard": False},
                preload=["gputrace.fleet.preload"],
                silence_logs=logging.CRITICAL,
                security=Security.temporary(),
            )
        return self._stack.enter_context(cluster)

    def map(self, jobs: Sequence[Job]) -> Iterator[Done]:
        """What comes of each, in their order."""
        waiting: deque[tuple[list[Job], Any]] = deque()
        left = _batches(jobs, self._threads())
        while True:
            ahead = _AHEAD * self._threads()
            while len(waiting) < ahead and (batch := next(left, None)) is not None:
                waiting.append((batch, self._submit(batch)))
            if not waiting:
                return
            batch, future = waiting.popleft()
            try:
                found = self._result(future)
            except _killed():
                # One of them was too large. The others were only with it.
                found = [self._alone(job) for job in batch]
            for (file, _), done in zip(batch, found, strict=True):
                yield self._seen_from_there(file, done)

    def of_each(self, ask: Callable[[], Any]) -> list[Any]:
        """What each process answers."""
        return list(self._client.run(ask).values())

    def _threads(self) -> int:
        threads: int = sum(self._client.nthreads().values())
        return max(1, threads)

    def _submit(self, batch: list[Job]) -> Any:
        named = [
            (file if isinstance(file, Remote) else Fetched(file, os.path.abspath(file)), work) for file, work in batch
        ]
        return self._client.submit(do_all, named, pure=False)

    def _result(self, future: Any) -> list[Done]:
        self._wait(future)
        try:
            found: list[Done] = future.result()
        except (ImportError, AttributeError) as error:
            if not self._scheduler:
                raise
            raise GputraceError(
                f"the cluster's processes cannot do this: {error}. They need the gputrace and the Python that are here"
            ) from error
        return found

    def _alone(self, job: Job) -> Done:
        try:
            return self._result(self._submit([job]))[0]
        except _killed():
            if self._scheduler:
                limit = "a worker of the cluster may: their --memory-limit raises it"
            else:
                limit = f"it may, {self._memory_bytes / 2**30:.3g} GB, which --memory-per-worker raises"
            return Done(
                failure=f"{job[0]}: the process that read it was killed; most likely it took more memory than {limit}"
            )

    def _seen_from_there(self, file: str, done: Done) -> Done:
        not_there = "cannot be read: " in done.failure and not isinstance(file, Remote)
        if not_there and self._scheduler and os.path.exists(file):
            done.failure += (
                " (by the cluster: does it see this folder? Give a URL, or a folder that all its hosts share)"
            )
        return done

    def _wait(self, future: Any) -> None:
        """Until it is done. A cluster may have no process to do it."""
        from distributed import TimeoutError as NotYet
        from distributed import wait

        since = time.monotonic()
        while True:
            try:
                wait(future, timeout=1.0)
                return
            except (NotYet, TimeoutError):
                if self._client.nthreads():
                    since = time.monotonic()
                elif time.monotonic() - since > _WORKERS_WITHIN_S:
                    raise GputraceError(
                        f"the Dask scheduler {self._scheduler} has no workers: start some, by "
                        f"`dask worker {self._scheduler}`"
                    ) from None


def cpus() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _batches(jobs: Sequence[Job], threads: int) -> Iterator[list[Job]]:
    """Small traces together, as a job of its own costs a scheduler some ms; and all threads have several to do."""
    most = max(1, min(_MOST_TOGETHER, len(jobs) // (_AHEAD * threads)))
    batch: list[Job] = []
    together = 0
    for job in jobs:
        size = size_of(job[0])
        if batch and (len(batch) >= most or together + size > _TOGETHER_BYTES):
            yield batch
            batch, together = [], 0
        batch.append(job)
        together += size
    if batch:
        yield batch


def _killed() -> type[Exception]:
    from distributed import KilledWorker

    found: type[Exception] = KilledWorker
    return found


@contextlib.contextmanager
def _ctrl_c_ignored() -> Iterator[None]:
    """Processes that are started meanwhile never heed it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
