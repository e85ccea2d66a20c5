"""A Jupyter kernel that records itself: what its cells do, and what is left when it is interrupted, restarted, killed.

A real ipykernel, asked by jupyter_client as a notebook asks it. Its cells are tasks of its own event loop, and what it
does at a signal and at its end is its own.
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import KernelManager

from tests.engine import Slice
from tests.hot.twin import TWINS, environment
from tests.recorded import assert_nested, is_gpu
from tests.ways.program import SUFFIXES, load, merged, numbers

pytestmark = [pytest.mark.slow, pytest.mark.parametrize("twin", TWINS), pytest.mark.parametrize("suffix", SUFFIXES)]

LIMIT_S = 60.0
IMPORTS = """
import asyncio, time
import gputrace
from gputrace.devices.simulated import default_gpu
stream = default_gpu().stream("main")
"""
RECORD = 'recording = gputrace.trace({output!r}, device="simulated").start()'
WORK = """
for n in range(50):
    with gputrace.span({name!r}, stream=stream, n=n):
        stream.launch(20_000)
"""


class Failed(Exception):
    """A cell raised: the exception's name."""


class Notebook:
    """A kernel of a twin, at work in a folder, and what a notebook does to it."""

    def __init__(self, folder: Path, twin: str, sockets: str) -> None:
        self.folder = folder
        # The one beside this Python, whatever the user has installed; and no port that another test may take.
        kernels = KernelSpecManager(kernel_dirs=[])
        self._manager = KernelManager(kernel_spec_manager=kernels, transport="ipc", ip=f"{sockets}/kernel")
        self._manager.connection_file = f"{sockets}/connection.json"
        self._manager.shutdown_wait_time = LIMIT_S  # from half of it on, a kernel at its end is killed
        own = {"IPYTHONDIR": f"{sockets}/ipython", "JUPYTER_RUNTIME_DIR": sockets}
        self._manager.start_kernel(cwd=str(folder), env=environment(twin) | own)
        self._client = self._manager.blocking_client()
        self._client.start_channels()
        self._imports()

    def _imports(self) -> None:
        """What the first cell of a notebook does."""
        self._client.wait_for_ready(timeout=LIMIT_S)
        self.run(IMPORTS)

    def run(self, cell: str) -> str:
        """Run a cell; what it printed. Raises `Failed`."""
        return self.result_of(self.begin(cell))

    def begin(self, cell: str) -> str:
        """Ask for a cell and wait for nothing; its id."""
        return str(self._client.execute(cell, stop_on_error=False))  # else one that fails takes the next with it

    def wait_for_print(self, cell: str) -> str:
        """The next that a cell prints while it runs."""
        while True:
            message = self._client.get_iopub_msg(timeout=LIMIT_S)
            if message["parent_header"].get("msg_id") == cell and message["msg_type"] == "stream":
                return str(message["content"]["text"])

    def result_of(self, cell: str) -> str:
        """Wait for a cell's end; what it printed that nobody waited for. Raises `Failed`."""
        printed = ""
        while True:
            message = self._client.get_iopub_msg(timeout=LIMIT_S)
            kind, content = message["msg_type"], message["content"]
            if message["parent_header"].get("msg_id") != cell:
                continue
            if kind == "stream":
                printed += content["text"]
            elif kind == "error":
                raise Failed(content["ename"])
            elif kind == "status" and content["execution_state"] == "idle":
                return printed

    def interrupt(self) -> None:
        self._manager.interrupt_kernel()

    def restart(self) -> None:
        """Interrupt the kernel, ask it to end, and start another."""
        self._manager.restart_kernel()
        self._imports()

    def kill(self) -> None:
        """Kill the kernel, as the system does, before anybody asks it to end; then start another."""
        os.kill(self._pid, signal.SIGKILL)
        self._manager.restart_kernel(now=True)
        self._imports()

    @property
    def _pid(self) -> int:
        provisioner: Any = self._manager.provisioner  # of a kernel on this machine
        return int(provisioner.pid)

    def close(self) -> None:
        self._client.stop_channels()
        self._manager.shutdown_kernel(now=True)

    def shards(self, suffix: str) -> list[Path]:
        """The hidden folders of recordings that nobody finished."""
        return sorted(self.folder.glob(f".nb{suffix}.*"))

    def wait_until_written(self, suffix: str, name: str, times: int) -> None:
        """Wait until a name is on the disk so often."""
        end_s = time.monotonic() + LIMIT_S
        while True:
            written = [shard.read_bytes() for folder in self.shards(suffix) for shard in folder.glob("*.shard")]
            if sum(each.count(name.encode()) for each in written) >= times:
                return
            assert time.monotonic() < end_s, f"{name} was never written"
            time.sleep(0.01)


@pytest.fixture
def notebook(tmp_path: Path, twin: str) -> Iterator[Notebook]:
    with tempfile.TemporaryDirectory() as sockets:  # a socket's path has to be short
        made = Notebook(tmp_path, twin, sockets)
        try:
            assert made.run("from gputrace import hot; print(hot.TWIN)") == f"{twin}\n"
            yield made
        finally:
            made.close()


AWAITS = """
async def part(n):
    with gputrace.span("part", stream=stream, n=n):
        stream.launch(300_000)
        await asyncio.sleep(0.01)

with gputrace.span("awaits", stream=stream):
    stream.launch(100_000)
    await asyncio.gather(part(0), part(1))
"""
RAISES = """
with gputrace.span("raises", stream=stream):
    stream.launch(100_000)
    raise LookupError("on purpose")
"""
BACKGROUND = """
go_on = asyncio.Event()

async def background():
    with gputrace.span("background", stream=stream):
        stream.launch(100_000)
        await go_on.wait()

task = asyncio.create_task(background())
await asyncio.sleep(0)  # it begins
transfer = gputrace.window("transfer", stream=stream)
"""
INTERRUPTED = """
with gputrace.span("interrupted", stream=stream):
    stream.launch(100_000)
    with gputrace.span("asleep"):
        print("asleep", end="", flush=True)
        time.sleep(60)
"""
#: Names of spans with a window on the GPU, in the order in which they began, and how often each is there.
WINDOWS = {"forward": 50, "awaits": 1, "part": 2, "raises": 1, "background": 1, "transfer": 1, "later": 50}
WINDOWS |= {"interrupted": 1, "last": 50}


def test_every_span_of_every_cell(notebook: Notebook, suffix: str) -> None:
    notebook.run(RECORD.format(output=f"nb{suffix}"))
    with pytest.raises(Failed, match="UsageError"):
        notebook.run(RECORD.format(output=f"nb{suffix}"))  # the same cell again, by mistake: the first goes on
    notebook.run(WORK.format(name="forward"))
    notebook.run(AWAITS)
    with pytest.raises(Failed, match="LookupError"):
        notebook.run(RAISES)
    notebook.run(BACKGROUND)
    notebook.run(WORK.format(name="later"))
    notebook.run("go_on.set()\nawait task\ntransfer.close()")
    cell = notebook.begin(INTERRUPTED)
    assert notebook.wait_for_print(cell) == "asleep"
    notebook.interrupt()
    with pytest.raises(Failed, match="KeyboardInterrupt"):
        notebook.result_of(cell)
    notebook.run(WORK.format(name="last"))
    notebook.run("summary = recording.stop()")
    found = load(notebook.folder / f"nb{suffix}")
    said = notebook.run("print(summary.slices, summary.windows, summary.unfinished, summary.out_of_order)")
    assert said.split() == [str(len(found)), str(sum(WINDOWS.values())), "0", "0"]
    assert notebook.run("print(summary.told)") == "[]\n"
    assert notebook.shards(suffix) == []
    check_cells(found)


def check_cells(found: list[Slice]) -> None:
    assert all(each.dur >= 0 for each in found)
    assert_nested(found)
    host, device = ([each for each in found if is_gpu(each) == on_gpu] for on_gpu in (False, True))
    asleep = named(host, "asleep")
    assert len(host) == len(device) + len(asleep) == len(device) + 1
    assert all(any(step.startswith("tasks") for step in each.track) for each in host)
    by_id = {each.id: each for each in device}
    for name, times in WINDOWS.items():
        spans, windows = named(host, name), named(device, name)
        assert len(spans) == len(windows) == times, name
        # An arrow from each span to its own window, which starts later.
        led_to = [by_id[each.flows_to[0]] for each in spans if len(each.flows_to) == 1]
        assert sorted(each.id for each in led_to) == sorted(each.id for each in windows), name
        for span, window in zip(spans, led_to, strict=True):
            assert (window.name, window.args.get("n")) == (name, span.args.get("n"))
            assert window.ts >= span.ts
        if times > 2:
            assert numbers(host, name) == numbers(device, name) == list(range(times))
    # Cells ran one after another; what was left open in one closed in another, around the cell between.
    order = [each.name for each in host if each.name not in ("part", "asleep")]
    assert list(dict.fromkeys(order)) == [name for name in WINDOWS if name != "part"]
    for around, within in (
        ("awaits", "part"),
        ("background", "later"),
        ("transfer", "later"),
        ("interrupted", "asleep"),
    ):
        (outer,) = named(host, around)
        for inner in named(host, within):
            assert outer.ts <= inner.ts, (around, within)
            assert inner.ts + inner.dur <= outer.ts + outer.dur, (around, within)
    first, second = named(host, "part")
    assert second.ts < first.ts + first.dur, "they were awaited together"


def named(found: list[Slice], name: str) -> list[Slice]:
    return [each for each in found if each.name == name]


def test_restarted_and_then_killed_while_it_records(notebook: Notebook, suffix: str) -> None:
    """Restarted, it has written its trace. Killed, it left shards, which the next kernel leaves alone."""
    notebook.run(RECORD.format(output=f"nb{suffix}"))
    notebook.run(WORK.format(name="first"))
    notebook.run("transfer = gputrace.window('transfer', stream=stream)")
    notebook.wait_for_print(notebook.begin(INTERRUPTED))
    notebook.restart()
    assert notebook.shards(suffix) == []
    found = load(notebook.folder / f"nb{suffix}")
    for on_gpu in (False, True):
        drawn = [each for each in found if is_gpu(each) == on_gpu]
        assert numbers(drawn, "first") == list(range(50))
        (transfer,) = named(drawn, "transfer")
        assert transfer.dur < 0, "nobody closed it"
        (interrupted,) = named(drawn, "interrupted")
        assert interrupted.dur >= 0, "a restart interrupts the cell that runs"

    notebook.run(RECORD.format(output=f"nb{suffix}"))
    notebook.run(WORK.format(name="flushed"))
    cell = notebook.begin(INTERRUPTED)
    notebook.wait_for_print(cell)
    notebook.wait_until_written(suffix, "interrupted", 2)
    notebook.kill()
    (shards,) = notebook.shards(suffix)
    notebook.run(RECORD.format(output=f"nb{suffix}"))
    notebook.run(WORK.format(name="third"))
    notebook.run("recording.stop();")
    assert numbers(load(notebook.folder / f"nb{suffix}"), "third") == sorted([*range(50)] * 2)
    assert notebook.shards(suffix) == [shards]
    done = merged(notebook.folder, shards, f"killed{suffix}")
    assert done.code == 0, done.said
    found = load(notebook.folder / f"killed{suffix}")
    for on_gpu in (False, True):
        drawn = [each for each in found if is_gpu(each) == on_gpu]
        assert numbers(drawn, "flushed") == list(range(50))
        assert all(each.dur >= 0 for each in named(drawn, "flushed"))
        assert [each.dur < 0 for each in named(drawn, "interrupted")] == [True]
    assert notebook.shards(suffix) == []
