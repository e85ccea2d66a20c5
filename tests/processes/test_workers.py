"""Workers as libraries start them: torch's DataLoader, `torchrun`, `mpirun`. The first two by stand-ins of their shape.

torch itself is too heavy a package for this: what a DataLoader's worker does is a daemonic process of multiprocessing
that takes indices from one queue, puts batches on another and leaves when it is told; what `torchrun` does is to start
each rank as a process of a session of its own, with its rank in the environment, and to end the others when one fails.
"""

from __future__ import annotations

import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from tests.missing import missing
from tests.processes.test_starts import load, recorded
from tests.record.running import PYTHON, WRITTEN, recording, run
from tests.ways.program import SUFFIXES

LOADER = """
import multiprocessing, queue, sys
import gputrace

def worker(indices, batches, done):
    while not done.is_set():
        try:
            n = indices.get(timeout=0.1)
        except queue.Empty:
            continue
        if n is None:
            break
        with gputrace.span("sample", n=n):
            batch = [n] * 4
        batches.put((n, batch))
    if done.is_set():
        batches.cancel_join_thread()
        batches.close()

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    batches, done = context.Queue(), context.Event()
    indices = [context.Queue() for _ in range(2)]
    workers = [context.Process(target=worker, args=(each, batches, done), daemon=True) for each in indices]
    for each in workers:
        each.start()
    with gputrace.span("epoch"):
        for n in range(64):
            indices[n % 2].put(n)
        assert sorted(batches.get()[0] for _ in range(64)) == list(range(64))
    if sys.argv[2] == "are left":  # and killed, as the program ends
        sys.exit()
    done.set()
    for each, its in zip(workers, indices):
        its.put(None)
        each.join(timeout=5)
        if each.is_alive():
            each.terminate()
        assert each.exitcode == 0
"""


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize("way", ["are told", "are left"])
def test_workers_of_the_shape_of_a_data_loader_s(tmp_path: Path, method: str, way: str) -> None:
    (tmp_path / "loader.py").write_text(LOADER)
    for suffix in SUFFIXES:
        found = recorded(tmp_path, PYTHON, "loader.py", method, way, output=f"t{suffix}")
        assert sorted(each.args["n"] for each in found if each.name == "sample") == list(range(64))
        assert len({each.track[0] for each in found}) == 3


RANK = f"""
import gputrace, os, sys, time
rank = int(os.environ["RANK"])
with gputrace.span("rank", rank=rank):
    pass
{WRITTEN}
if sys.argv[1] == "fails":
    if rank:
        while not os.path.exists("written"):  # the other has its span, before it is ended for this one's failure
            time.sleep(0.01)
        os.unlink("written")
        sys.exit(5)
    open("written", "w").close()
    time.sleep(60)
"""
LAUNCHER = """
import os, signal, subprocess, sys
environment = lambda rank: {**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
ranks = [
    subprocess.Popen([sys.executable, "rank.py", sys.argv[1]], env=environment(rank), start_new_session=True)
    for rank in range(2)
]
if sys.argv[1] == "fails":
    code = ranks[1].wait()
    ranks[0].send_signal(signal.SIGTERM)
    ranks[0].wait()
    sys.exit(code)
sys.exit(max(each.wait() for each in ranks))
"""


@pytest.mark.parametrize("way", ["ends", "fails"])
def test_ranks_of_the_shape_of_torchrun_s(tmp_path: Path, way: str) -> None:
    (tmp_path / "rank.py").write_text(RANK)
    (tmp_path / "launcher.py").write_text(LAUNCHER)
    for suffix in SUFFIXES:
        done = run(recording(PYTHON, "launcher.py", way, output=f"t{suffix}"), tmp_path)
        assert done.returncode == (0 if way == "ends" else 5)
        found = load(tmp_path / f"t{suffix}")
        assert sorted(each.args["rank"] for each in found) == [0, 1]
        assert len({each.track[0] for each in found}) == 2


@pytest.mark.slow
def test_mpirun(tmp_path: Path) -> None:
    mpirun = shutil.which("mpirun") or missing("OpenMPI is not here: apt install openmpi-bin")
    (tmp_path / "rank.py").write_text(
        "import gputrace, os\nwith gputrace.span('rank', rank=int(os.environ['OMPI_COMM_WORLD_RANK'])): pass\n"
    )
    command = [mpirun, "--allow-run-as-root", "--oversubscribe", "-n", "3", PYTHON, "rank.py"]
    plain = subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=60)
    assert plain.returncode == 0, plain.stderr
    for suffix in SUFFIXES:
        found = recorded(tmp_path, *command, output=f"t{suffix}")
        assert Counter(each.args["rank"] for each in found) == {0: 1, 1: 1, 2: 1}
        assert len({each.track[0] for each in found}) == 3
