"""A pool of processes: results in order, what kills a process told and survived, and clusters that cannot help."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from distributed import KilledWorker, LocalCluster

from gputrace.errors import GputraceError, UsageError
from gputrace.fleet import pool
from gputrace.fleet.each import Fleet
from gputrace.fleet.job import Done, do
from gputrace.model import SLICE
from gputrace.remote import Fetched
from tests.exporters.recordings import Script
from tests.merging.making import Host, write_trace

MEMORY = 512 << 20


@pytest.fixture(scope="module")
def processes() -> Iterator[pool.Pool]:
    with pool.Pool("", MEMORY, 2) as made:
        yield made


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Twenty traces of one slice to twenty, named as in the folder that this process is in, and no other."""
    monkeypatch.chdir(tmp_path)
    for k in range(20):
        script = Script()
        script.add(script.thread(), *((10 * n, SLICE, "work", None, 0, 10 * n + 5) for n in range(k + 1)))
        write_trace(tmp_path / f"{k:02}.pftrace", Host("node0"), script, number=k)
    return [f"{k:02}.pftrace" for k in range(20)]


def count(trace: Any) -> tuple[str, int]:
    return trace.path, len(trace.slices)


def slow_at_first(trace: Any) -> tuple[str, int]:
    if trace.path == "00.pftrace":
        time.sleep(0.3)  # the others are done first
    return count(trace)


def kill(trace: Any) -> tuple[str, int]:
    """One ends its process, and one takes twice the memory that there is for it."""
    if trace.path == "07.pftrace":
        os.kill(os.getpid(), signal.SIGKILL)
    elif trace.path == "12.pftrace":
        taken = bytearray(2 * MEMORY)
        threading.Event().wait(60)
        del taken
    return count(trace)


def test_results_come_in_the_order_of_the_files(processes: pool.Pool, files: list[str]) -> None:
    found = list(processes.map([(file, slow_at_first) for file in files]))
    assert found == [Done((file, k + 1)) for k, file in enumerate(files)]


def test_what_cannot_be_read_says_the_same_as_here(processes: pool.Pool, files: list[str]) -> None:
    Path("words.json").write_text("once upon a time")
    Path("torn.pftrace").write_bytes(Path("19.pftrace").read_bytes()[:-70])
    jobs = [(file, count) for file in ["words.json", *files, "gone.json", "torn.pftrace"]]
    found = list(processes.map(jobs))
    assert found == [do(file, work) for file, work in jobs]
    assert found[0].failure.startswith("words.json: is not a trace")
    assert found[-2].failure == "gone.json: cannot be read: No such file or directory"
    assert found[-1].told


@pytest.mark.slow
def test_what_kills_a_process_costs_that_trace_alone(processes: pool.Pool, files: list[str]) -> None:
    found = list(processes.map([(file, kill) for file in files]))
    told = "the process that read it was killed; most likely it took more memory than it may, 0.5 GB, which"
    for k, (file, done) in enumerate(zip(files, found, strict=True)):
        if k in (7, 12):
            assert done == Done(failure=f"{file}: {told} --memory-per-worker raises")
        else:
            assert done == Done((file, k + 1))


def test_what_the_work_raises_is_raised_here(processes: pool.Pool, files: list[str]) -> None:
    with pytest.raises(ZeroDivisionError):
        list(processes.map([(file, lambda trace: 1 // 0) for file in files]))


def test_processes_share_the_memory_that_there_is() -> None:
    with pytest.raises(UsageError, match="--memory-per-worker: a process takes 256MB and more: give it 1GB or more"):
        pool.Pool("", 1 << 20, 2)


def test_few_or_small_traces_are_read_here(files: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("a pool was started")

    monkeypatch.setattr(pool, "Pool", refuse)
    with Fleet() as fleet:
        assert len(list(fleet.each([(file, count) for file in files]))) == 20  # small
    with Fleet(memory_bytes=MEMORY) as fleet:
        assert len(list(fleet.each([(file, count) for file in files[:7]]))) == 7  # few
        with pytest.raises(AssertionError):
            list(fleet.each([(file, count) for file in files]))


def test_without_dask_they_are_read_here_and_that_is_told(files: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "there", lambda: False)
    told: list[str] = []
    jobs = [(file, count) for file in files]
    with Fleet(memory_bytes=MEMORY, tell=told.append) as fleet:
        assert [done.result for done in fleet.each(jobs)] == [(file, k + 1) for k, file in enumerate(files)]
    assert told == ["20 traces are read one after another; pip install 'gputrace[fleet]' has all CPUs read them"]
    with Fleet("tcp://127.0.0.1:1") as fleet, pytest.raises(UsageError, match=r"pip install 'gputrace\[fleet\]'"):
        list(fleet.each(jobs))


def test_no_scheduler_answers(files: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "_ANSWERS_WITHIN", "0.2s")
    told = r"no Dask scheduler answers at tcp://127\.0\.0\.1:1 .*is `dask scheduler` running"
    with pytest.raises(GputraceError, match=told), pool.Pool("tcp://127.0.0.1:1", 0, 1):
        pass


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    """In threads of this process. It has no workers yet."""
    with LocalCluster(n_workers=0, processes=False, protocol="tcp://", dashboard_address="127.0.0.1:0") as made:
        yield made


def test_a_cluster_that_is_there(cluster: LocalCluster, files: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "_WORKERS_WITHIN_S", 0.1)
    jobs = [(file, count) for file in files]
    told = "has no workers: start some, by `dask worker tcp://"
    with pool.Pool(cluster.scheduler_address, 0, 20) as clients, pytest.raises(GputraceError, match=told):
        list(clients.map(jobs))
    cluster.scale(2)
    with pool.Pool(cluster.scheduler_address, 0, 20) as clients:
        assert [done.result for done in clients.map(jobs)] == [(file, k + 1) for k, file in enumerate(files)]


def test_a_folder_that_the_cluster_does_not_see(
    cluster: LocalCluster, files: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.scale(1)
    monkeypatch.setattr(pool, "Fetched", lambda file, path: Fetched(file, f"/elsewhere{path}"))
    with pool.Pool(cluster.scheduler_address, 0, 20) as clients:
        [done] = clients.map([(files[3], count)])
    assert done.failure == (
        "03.pftrace: cannot be read: No such file or directory (by the cluster: does it see this folder? "
        "Give a URL, or a folder that all its hosts share)"
    )


def test_what_kills_a_worker_of_a_cluster(
    cluster: LocalCluster, files: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: Any) -> None:
        raise KilledWorker("do_all-1", None, 0)

    monkeypatch.setattr(pool.Pool, "_result", killed)
    with pool.Pool(cluster.scheduler_address, 0, 20) as clients:
        [done] = clients.map([(files[3], count)])
    assert done.failure.startswith("03.pftrace: the process that read it was killed; most likely it took more memory")
    assert done.failure.endswith("than a worker of the cluster may: their --memory-limit raises it")


def test_batches_keep_all_threads_at_work(files: list[str], tmp_path: Path) -> None:
    jobs = [(file, count) for file in files]
    batches = list(pool._batches(jobs, 2))
    assert [job for batch in batches for job in batch] == jobs
    assert {len(batch) for batch in batches} == {2}  # four and more for each of two threads
    assert [len(batch) for batch in pool._batches(jobs * 100, 1)] == [16] * 125
    for name in ("a", "b", "c"):
        with open(name, "wb") as file:
            file.truncate(9 << 20)
    large = [(name, count) for name in ("a", "b", "c")] * 10
    assert {len(batch) for batch in pool._batches(large, 1)} == {1}
