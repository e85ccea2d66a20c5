"""What `multiprocessing` starts is traced to its end: its children leave by `os._exit`, past every exit handler."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.engine import Engine, assert_clean, slices

PROGRAM = """
import concurrent.futures, multiprocessing, sys
import gputrace

def work(number):
    with gputrace.span("task", number=number):
        return number

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    if sys.argv[2] == "executor":
        with concurrent.futures.ProcessPoolExecutor(2, mp_context=context) as pool:
            list(pool.map(work, range(6)))
    elif sys.argv[2] == "pool":
        pool = context.Pool(2)
        pool.map(work, range(6))
        pool.close()
        pool.join()
    elif sys.argv[2] == "terminated pool":
        with context.Pool(2) as pool:
            pool.map(work, range(6))
    else:
        processes = [context.Process(target=work, args=(number,)) for number in range(3)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
            assert process.exitcode == 0
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["executor", "pool", "terminated pool", "processes"])
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_every_span_of_every_child(tmp_path: Path, method: str, kind: str) -> None:
    program, output = tmp_path / "program.py", tmp_path / "t.pftrace"
    program.write_text(PROGRAM)
    command = [sys.executable, "-m", "gputrace.cli.main", "record", "--device", "host", "-o", str(output), "--"]
    done = subprocess.run(
        [*command, sys.executable, str(program), method, kind],
        capture_output=True,
        text=True,
        timeout=100,
        cwd=Path(__file__).parents[1],
    )
    assert done.returncode == 0, done.stderr
    engine = Engine(output)
    assert_clean(engine)
    numbers = sorted(each.args["number"] for each in slices(engine) if each.name == "task")
    assert numbers == list(range(3 if kind == "processes" else 6))
    assert f", {len(numbers)} slices" in done.stderr, "the count is of all processes, those that were killed among them"
