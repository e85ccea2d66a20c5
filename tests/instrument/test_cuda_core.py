"""What a program enqueues through the real cuda.core is a slice, and a window on its stream as long as the work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.hot.twin import TWINS
from tests.instrument.launching import (
    FAULT,
    POSTLUDE,
    PRELUDE,
    assert_same_and_launched,
    launches,
    plain,
    record,
)

START = """
import inspect, pickle
import cuda.core
from cuda.core import Buffer, Device, LaunchConfig, ObjectCode, Stream, launch, utils
Device().set_current()
first, second = Stream.from_handle(one), Stream.from_handle(two)
"""
#: All that shows, what goes wrong in the program's own words, and what the program may ask of a function.
PROGRAM = """
kernel = ObjectCode.from_cubin(b"any", name="module").get_kernel("add_one")
source, target = (Buffer.from_handle(int(ok(_driver.cuMemAlloc(1 << 20))), 1 << 20) for _ in range(2))
config = LaunchConfig(grid=(2, 3), block=32)
kernel_ns(30_000)
launch(first, config, kernel, 1)
kernel_ns(31_000)
launch(second, config=LaunchConfig(grid=4, block=(8, 8)), kernel=kernel)
control.set(copy_ns=32_000)
print(source.copy_to(target, stream=first) is target, source.copy_from(target, stream=second))
print(source.fill(7, stream=first), utils.copy_batch(first, [source], [target]))
builder = first.create_graph_builder().begin_building()
kernel_ns(20_000)
launch(builder, config, kernel, 1)
launch(builder, config, kernel, 1)
graph = builder.end_building().complete()
print(graph.launch(second), graph.launch(stream=first))
WRONG = (
    lambda: launch(first, "no config", kernel),
    lambda: launch(None, config, kernel),
    lambda: launch(),
    lambda: graph.launch(3),
    lambda: source.copy_to(target),
)
for wrong in WRONG:
    try:
        wrong()
    except Exception as error:
        print(type(error).__name__, error)
print(launch.__name__, launch.__module__, inspect.signature(launch), launch.__doc__)
"""
PICKLED = "print(pickle.loads(pickle.dumps(launch)) is launch, pickle.dumps(launch))\n"
GRID = {"grid": "2x3x1", "block": "32x1x1"}
BYTES = {"bytes": 1 << 20}
CAPTURED = {"gpu": "not recorded: the stream is being captured"}
ERROR = {"error": "TypeError"}
EXPECTED: list[tuple[str, dict[str, Any], int, int]] = [
    ("add_one", GRID, 1, 30_000),
    ("add_one", {"grid": "4x1x1", "block": "8x8x1"}, 2, 31_000),
    ("Buffer.copy_to", BYTES, 1, 32_000),
    ("Buffer.copy_from", BYTES, 2, 32_000),
    ("Buffer.fill", BYTES, 1, 32_000),
    ("copy_batch", {"copies": 1}, 1, 32_000),
    ("add_one", {**GRID, **CAPTURED}, 0, 0),
    ("add_one", {**GRID, **CAPTURED}, 0, 0),
    ("Graph.launch", {}, 2, 40_000),
    ("Graph.launch", {}, 1, 40_000),
    ("add_one", {"grid": "", "block": "", **ERROR}, 1, 0),
    ("add_one", {**GRID, **ERROR}, 0, 0),
    ("Graph.launch", ERROR, 0, 0),
    ("Buffer.copy_to", {**BYTES, **ERROR}, 0, 0),
]


@pytest.mark.parametrize("twin", TWINS)
def test_each_is_there_and_the_program_is_as_without_us(tmp_path: Path, twin: str) -> None:
    assert_same_and_launched(tmp_path, PRELUDE + START + PICKLED + PROGRAM + POSTLUDE, twin, EXPECTED)


def test_nothing_is_left_of_it(tmp_path: Path) -> None:
    program = """
import gputrace
def held():
    places = [(cuda.core, "launch"), (cuda.core._launcher, "launch"), (utils, "copy_batch")]
    places += [(Buffer, "copy_to"), (Buffer, "copy_from"), (Buffer, "fill"), (cuda.core.graph.Graph, "launch")]
    return [vars(owner)[name] for owner, name in places]
before, taken = held(), launch
with gputrace.trace("inside.pftrace", device="cuda"):
    print([a is b for a, b in zip(before, held())], Buffer.copy_to is Buffer.copy_to)
    kept = cuda.core.launch
print(all(a is b for a, b in zip(before, held())), taken is cuda.core.launch, kept is taken)
launch = kept
"""
    stdout = plain(tmp_path, PRELUDE + START + program + PROGRAM + POSTLUDE)
    assert stdout.startswith(f"{[False] * 7} True\nTrue True False\n")


@pytest.mark.parametrize("twin", TWINS)
def test_a_fault_of_ours_ends_the_patch_and_not_the_program(tmp_path: Path, twin: str) -> None:
    stdout, stderr, _ = record(tmp_path, PRELUDE + START + FAULT + PROGRAM + POSTLUDE, twin)
    assert stdout == plain(tmp_path, PRELUDE + START + PROGRAM + POSTLUDE)
    assert stderr.count("cuda.core does not work here and was switched off") == 1
    assert "a fault of ours" in stderr


def test_a_driver_that_does_not_know_its_kernels_names(tmp_path: Path) -> None:
    program = PRELUDE + START + "control.fail('cuKernelGetName', 400, times=-1)\n" + PROGRAM + POSTLUDE
    _, stderr, trace = record(tmp_path, program, "pure")
    assert "does not work" not in stderr
    assert [(each.name, each.args) for each in launches(trace)][:2] == [
        ("launch", GRID),
        ("launch", {"grid": "4x1x1", "block": "8x8x1"}),
    ]


def test_one_that_has_no_launch_yet_is_left_alone(tmp_path: Path) -> None:
    program = "import cuda.core, gputrace\ndel cuda.core.launch\n"
    program += "with gputrace.trace('t.pftrace', 'host') as r: gputrace.instant('x')\n"
    assert plain(tmp_path, program + "print(r.summary.told)") == "[]\n"
