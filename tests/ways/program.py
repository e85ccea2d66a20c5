"""The program that every way to end is tried on, run with and without `gputrace record`, and what its trace must hold.

    program = Program("os._exit(4)")
    plain = program.plain(folder)                    # how it ends by itself
    done = program.recorded(folder, "t.json")        # and under `record`
    assert_same_end(done, plain)
    assert_holds(folder / "t.json", open_at_end=True, clean=False)

It opens 50 spans named "flushed", each with a window on the GPU, and waits until they are on the disk; opens one named
"left open", around all that follows, and waits for its begin; opens 50 named "tail" and goes on to its end at once.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from gputrace import hot
from tests.engine import Engine, Slice, assert_clean, slices
from tests.recorded import is_gpu

ROOT = Path(__file__).parents[2]
SUFFIXES = [".pftrace", ".json"]
SPANS = 50

#: Nothing that a thread handed over is lost with its process where the hot path writes into a shared map.
KEEPS_ALL = getattr(hot, "TWIN", "pure") == "compiled"
#: What a killed process may lose, where nothing kept its collector from running: its newest host slices and windows.
HOST_LOSS_NS = 0 if KEEPS_ALL else 250_000_000
WINDOW_LOSS_NS = 2_000_000_000

SIMULATED = """
from gputrace.devices.simulated import default_gpu
stream = default_gpu().stream("main")
launch = stream.launch
"""

FAKE_DRIVER = """
from cuda.bindings import driver
from tests.benchmarks.program import check, open_gpu
from tests.fake_driver import control
open_gpu()
stream = check(driver.cuStreamCreate(1))
launch = lambda ns: control.enqueue(stream, ns)
"""

BEGINNING = """
import glob, os, signal, sys, threading, time
import gputrace
{device}
folder = os.environ.get("GPUTRACE_RECORD")

def on_disk(name, times=2):
    '''Wait until a slice is on the disk, on its thread and on its stream.'''
    deadline = time.monotonic() + 30
    while folder:
        shards = [open(path, "rb").read() for path in glob.glob(folder + "/*.shard")]
        if sum(shard.count(name.encode()) for shard in shards) >= times:
            return
        assert time.monotonic() < deadline, f"{{name}} never reached the disk"
        time.sleep(0.01)

def spans(name):
    for n in range({spans}):
        with gputrace.span(name, stream=stream, n=n):
            launch(20_000)

def main():
    spans("flushed")
    with gputrace.span("all of these", stream=stream):
        launch(20_000)
    on_disk("all of these")
    with gputrace.span("left open", stream=stream):
        launch(20_000)
        on_disk("left open")
        spans("tail")
        end()
"""


class Ended:
    """How a run ended: its exit code, what it printed, what of its stderr is not gputrace's, and what is (`said`)."""

    def __init__(self, done: subprocess.CompletedProcess[bytes], folder: Path) -> None:
        self.code = done.returncode
        self.stdout = done.stdout
        lines = done.stderr.decode().replace(str(folder), "FOLDER").splitlines()
        self.stderr = [line for line in lines if not line.startswith("gputrace: ")]
        self.said = [line.removeprefix("gputrace: ") for line in lines if line.startswith("gputrace: ")]


class Program:
    """A program that ends in the way ``end`` says: statements, as the body of a function.

    ``device``: "simulated", or "cuda" on the fake driver. ``before`` are statements before `main`.
    """

    def __init__(self, end: str, *, device: str = "simulated", before: str = "") -> None:
        self.device = device
        beginning = BEGINNING.format(device=SIMULATED if device == "simulated" else FAKE_DRIVER, spans=SPANS)
        body = "".join(f"    {line}\n" for line in end.strip().splitlines())
        self.text = f"{beginning}\ndef end():\n{body}\n{before}\nmain()\n"

    def environment(self) -> dict[str, str]:
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        if self.device == "cuda":
            from tests.fake_driver import environment as with_fake_driver

            environment = with_fake_driver(environment)
        return environment

    def command(self, folder: Path) -> list[str]:
        """Its own command line, once its file is written into ``folder``."""
        path = folder / "program.py"
        path.write_text(self.text)
        return [sys.executable, str(path)]

    def recording(self, folder: Path, output: str) -> list[str]:
        """The command line that records it into a file in ``folder``."""
        record = [sys.executable, "-m", "gputrace.cli.main", "record", "--device", self.device, "-o", output, "--"]
        return record + self.command(folder)

    def plain(self, folder: Path) -> Ended:
        return self.run(self.command(folder), folder)

    def recorded(self, folder: Path, output: str, *wrapped_in: str) -> Ended:
        return self.run([*wrapped_in, *self.recording(folder, output)], folder)

    def run(self, command: list[str], folder: Path) -> Ended:
        done = subprocess.run(
            command, cwd=folder, env=self.environment(), stdin=subprocess.DEVNULL, capture_output=True, timeout=90
        )
        return Ended(done, folder)


def assert_same_end(recorded: Ended, plain: Ended) -> None:
    """The program ended as it does by itself, and printed the same."""
    assert (recorded.code, recorded.stdout, recorded.stderr) == (plain.code, plain.stdout, plain.stderr), recorded.said


def load(trace: Path) -> list[Slice]:
    """What the engine draws of a trace, and it reads all of it."""
    engine = Engine(trace)
    assert_clean(engine)
    return slices(engine)


def merged(folder: Path, shards: Path, output: str, *wrapped_in: str) -> Ended:
    """Recover a recording with `gputrace merge`."""
    command = [*wrapped_in, sys.executable, "-m", "gputrace.cli.main", "merge", str(shards), "-o", output]
    return Ended(subprocess.run(command, cwd=folder, capture_output=True, timeout=60), folder)


def assert_holds(trace: Path, *, open_at_end: bool, clean: bool, in_file: bool = True) -> list[Slice]:
    """The trace has all that was on the disk, and what was open: unfinished if ``open_at_end``. All of the rest too if
    the end was ``clean``, else as much as the twin promises; ``in_file`` is False where its ring cannot be in a file.
    """
    found = load(trace)
    for on_gpu in (False, True):
        drawn = [each for each in found if is_gpu(each) == on_gpu]
        assert numbers(drawn, "flushed") == list(range(SPANS)), on_gpu
        assert all(each.dur >= 0 for each in drawn if each.name in ("flushed", "all of these"))
        assert [each.dur < 0 for each in drawn if each.name == "left open"] == [open_at_end], on_gpu
        tail = numbers(drawn, "tail")
        if clean or (KEEPS_ALL and in_file and not on_gpu):
            assert tail == list(range(SPANS)), on_gpu
        else:
            assert tail == list(range(len(tail))), "a hole"
    return found


def assert_counted(said: str, found: list[Slice]) -> None:
    """A last line's counts are what the trace holds, however its processes ended."""
    windows = sum(map(is_gpu, found))
    is_open = sum(each.dur < 0 for each in found)
    wanted = [_many(len(found), "slice"), _many(windows, "GPU window")]
    wanted += [f"{_many(is_open, 'slice')} still open"] if is_open else []
    facts = said.partition(";")[0].split(", ")
    assert [fact for fact in facts if "slice" in fact or "GPU window" in fact] == wanted, said


def _many(count: int, what: str) -> str:
    return f"{count:,} {what}{'s' if count != 1 else ''}"


def numbers(found: list[Slice], name: str) -> list[int]:
    """The numbers of all slices of a name."""
    return sorted(each.args["n"] for each in found if each.name == name)
