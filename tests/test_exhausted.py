"""At the program's last depths, and with its last memory, no exception of ours reaches it, and its own do."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hot.twin import TWINS, run_in

START = """
import gc, sys
from collections import Counter
from pathlib import Path
import gputrace
from gputrace import tracer
from gputrace.devices.simulated import default_gpu
from tests.engine import Engine, slices

class Said:
    def __str__(self):
        return "said"
    def __float__(self):
        return 1.0

class Own(Exception):
    pass

class Room:
    def __init__(self):
        pass

def room():
    yield Room()

def nothing():
    for _ in room():
        pass

said, own, stream = Said(), Own(), default_gpu().stream("s")

def plain():
    with gputrace.span("plain"):
        pass

def args():
    with gputrace.span("args", stream, n=1, said=said):
        pass

def named():
    with gputrace.span(said):
        pass

def raising():
    try:
        with gputrace.span("raising", stream):
            raise own
    except Own:
        return None
    return "its own exception was lost"

def unknown():
    with gputrace.span("unknown", said):
        pass

def again():
    with shared:
        with shared:
            pass

def items():
    with gputrace.span("generator"):
        yield 1

def generator():
    for _ in items():
        pass

def moment():
    gputrace.instant("moment", said=said)

def value():
    gputrace.counter("value", said)

def window():
    opened = gputrace.window("window", stream)
    opened.failure(own)
    opened.close()

def abandoned():
    gputrace.window("abandoned", stream).abandon()

def failure():
    gputrace.failure(own, stream)

def use():
    with gputrace.use_stream(stream):
        pass

def part():
    gputrace.pause()
    gputrace.resume()
    gputrace.step()

@gputrace.span("decorated", stream, said=said)
def decorated():
    pass

def decorate():
    gputrace.span(nothing)

ignored = []
sys.unraisablehook = ignored.append
sys.setswitchinterval(100)  # the collector has its own share of what is left
recording = gputrace.trace(Path(sys.argv[1], "t.pftrace"), device="simulated").start()
shared = gputrace.span("shared", stream)
HOOKS = [plain, args, named, raising, unknown, again, generator, moment, value, window, abandoned, failure]

def warm(hooks):
    for hook in hooks:
        for _ in range(3):
            hook()
    tracer.current().write_now()

def check(wrong):
    gputrace.resume()
    gc.collect()
    with gputrace.span("last"):
        pass
    summary = recording.stop()
    found = Counter(s.name for s in slices(Engine(Path(sys.argv[1], "t.pftrace"))))
    assert not wrong, wrong
    assert not ignored, ignored
    assert found["last"] == 1, found
    assert all(found[name] >= 4 for name in ("plain", "args", "raising", "moment", "window")), found
    assert not summary.cut_short, summary
"""

DEPTH = """
def dive(depth, hook):
    if depth:
        return dive(depth - 1, hook)
    try:
        return hook()
    except RecursionError as error:
        return error

def deepest():
    for depth in range(sys.getrecursionlimit(), 0, -1):
        try:
            if dive(depth, nothing) is None:
                return depth
        except RecursionError:
            pass

HOOKS += [use, part, decorated, decorate]
warm(HOOKS)
last, wrong = deepest(), []
for hook in HOOKS:
    for depth in range(last, last - 25, -1):
        said_instead = dive(depth, hook)
        if said_instead is not None:
            wrong.append((hook.__name__, last - depth, said_instead))
check(wrong)
"""

#: One allocation fails, or several on end. What the interpreter takes for the program's own lines may fail, too: such
#: an exception comes from none of our frames. A lock of Python's may stay held where there is no memory to leave its
#: block, so what takes one in the program's stead, a stream met for the first time, is left out.
MEMORY = """
from _testcapi import remove_mem_hooks, set_nomemory

HOOKS.remove(unknown)
HOOKS.remove(again)

def tried(hook, first, failing):
    set_nomemory(first, first + failing)
    try:  # in a short function: handling an exception far down in a long one takes memory
        return hook()
    except MemoryError as error:
        return error
    finally:
        remove_mem_hooks()

def frames(error):
    trace = error.__traceback__ if isinstance(error, MemoryError) else None
    while trace is not None:
        yield trace.tb_frame.f_code
        trace = trace.tb_next

warm(HOOKS)
wrong = []
for hook in HOOKS:
    for failing in (1, 25):
        for first in range(40):
            came = tried(hook, first, failing)
            ours = [code.co_name for code in frames(came) if code.co_filename != "<string>"]
            if ours or isinstance(came, str):
                wrong.append((hook.__name__, failing, first, ours or came))
check(wrong)
"""


@pytest.mark.parametrize("twin", TWINS)
@pytest.mark.parametrize("program", [DEPTH, MEMORY], ids=["depth", "memory"])
def test_nothing_of_ours_is_raised(tmp_path: Path, program: str, twin: str) -> None:
    done = run_in(twin, START + program, tmp_path)
    assert (done.stderr, done.returncode) == ("", 0)
