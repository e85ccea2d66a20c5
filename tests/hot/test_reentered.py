"""What a program's own objects run while they are recorded: spans, and recordings that end and begin inside.

Each kind in a process of its own, as what goes wrong here would end it.
"""

from __future__ import annotations

import pytest

from tests.hot.twin import TWINS, run_in

START = """
import gc, os, sys, tempfile, threading, time
from collections import Counter
from pathlib import Path
import gputrace
from gputrace import hot, tracer
from gputrace.devices.simulated import default_gpu
from tests.engine import Engine, slices

folder = Path(tempfile.mkdtemp(dir=sys.argv[1]))
recordings = []

def anew():
    if recordings:
        recordings.pop().stop()
    recordings.append(gputrace.trace(folder / "t.pftrace", device="simulated").start())

def litter():
    gc.collect()
    return [{i: i for i in range(j)} for j in range(1, 50)]

def drawn():
    recordings.pop().stop()
    return Counter(s.name for s in slices(Engine(folder / "t.pftrace")))

anew()
"""

#: A stream whose hash or equality begins another recording: the streams are then another dict.
STREAM = """
class Stream:
    armed = ""
    def __init__(self, hashed):
        self.hashed = hashed
    def turn(self, what):
        if Stream.armed == what:
            Stream.armed = ""
            anew()
            litter()
    def __hash__(self):
        self.turn("hash")
        return self.hashed
    def __eq__(self, other):
        self.turn("eq")
        return False

streams = [default_gpu().stream(str(n)) for n in range(30)]
for n in range(4):
    for stream in streams:
        with gputrace.span("a", stream):
            pass
    Stream.armed = ("hash", "eq")[n % 2]
    with gputrace.span("x", Stream(hash(next(iter(hot.queues()))))):
        pass
    assert not Stream.armed
with gputrace.span("last"):
    pass
assert drawn()["last"] == 1
"""

#: A name or a value that begins another recording when it is asked what it is.
VALUE = """
class Value:
    def __str__(self):
        anew()
        litter()
        return "v"

for _ in range(2):
    gputrace.instant("m", v=Value())
    with gputrace.span("m", v=Value()):
        pass
    with gputrace.span(Value()):
        pass
    gputrace.counter(Value(), 1.0, Value())
    window = gputrace.window(Value())
    window.failure(Value())
    window.close()
with gputrace.span("last"):
    pass
assert drawn()["last"] == 1
"""

#: A value that takes its time, while another thread ends and begins recordings.
THREADS = """
class Value:
    def __str__(self):
        time.sleep(0.0005)
        return "v" * 50

over = []

def work():
    while not over:
        gputrace.instant("m", v=Value())
        with gputrace.span("s", v=Value()):
            pass

threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads:
    thread.start()
for _ in range(5):
    anew()
    time.sleep(0.002)
over.append(True)
for thread in threads:
    thread.join()
with gputrace.span("last"):
    pass
assert drawn()["last"] == 1
"""

#: Keys and names of a kind of str whose hash records, or whose equality raises later.
KEY = """
class Key(str):
    inside = broken = 0
    def __hash__(self):
        if not Key.inside:
            Key.inside = 1
            with gputrace.span(f"inner {str.__str__(self)}"):
                pass
            Key.inside = 0
        return str.__hash__(self)
    def __eq__(self, other):
        if Key.broken:
            raise ValueError("no")
        return str.__eq__(self, other)

class Text:
    def __init__(self, text):
        self.text = text
    def __str__(self):
        return Key(self.text)

for n in range(200):
    with gputrace.span("a", **{Key(f"k{n}"): n}), gputrace.span(Text(f"name {n}")):
        pass
with gputrace.span("b", **{Key("poison"): 1}):
    pass
Key.broken = 1
for n in range(200):
    with gputrace.span(f"k{n}"), gputrace.span(f"inner k{n}"), gputrace.span(f"name {n}"):
        pass
for _ in range(10):
    with gputrace.span("".join(["poi", "son"])), gputrace.span("c", **{"".join(["poi", "son"]): 1}):
        pass
Key.broken = 0
found = drawn()
assert (found["a"], found["b"], found["c"], found["poison"]) == (200, 1, 10, 10), found
assert all(found[f"k{n}"] == 1 and found[f"name {n}"] == 2 and found[f"inner k{n}"] >= 1 for n in range(200))
"""

#: What left a block has a name that closes the block's span again, and waits until its thread is forgotten.
KIND = """
class Kind:
    def __init__(self, span, last=False):
        self.span, self.last = span, last
    @property
    def __name__(self):
        self.span.__exit__(None, None, None)
        if self.last:
            deadline = time.monotonic() + 20
            while threads() and time.monotonic() < deadline:
                with gputrace.span("meanwhile"):
                    time.sleep(0.001)
        return "kind"

def threads():
    from tests.hot.twin import host_threads, run_in
    return host_threads() > 1

for _ in range(50):
    span = gputrace.span("again")
    span.__enter__()
    span.__exit__(Kind(span), None, None)
opened = []

def work():
    for _ in range(20):
        opened.append(gputrace.span("elsewhere"))
        opened[-1].__enter__()

thread = threading.Thread(target=work)
thread.start()
thread.join()
for span in reversed(opened):
    span.__exit__(Kind(span, span is opened[0]), None, None)
del span
opened.clear()
junk = [bytearray(300) for _ in range(1000)]
with gputrace.span("last"):
    pass
recording = recordings[-1]
found = drawn()
assert (found["again"], found["elsewhere"], found["last"]) == (50, 20, 1), found
assert (recording.summary.unfinished, recording.summary.out_of_order) == (0, 0), recording.summary
"""

#: A thread whose name records, whatever it is that asks for the name first, or begins another recording.
NAME = """
class Named(threading.Thread):
    @property
    def name(self):
        asked.append(self)
        before()
        with gputrace.span("inner"):
            gputrace.instant("inner instant")
        gputrace.counter("inner counter", 1)
        gputrace.window("inner window").close()
        return "its own"

def span():
    with gputrace.span("outer"):
        pass

def nothing():
    pass

asks = [
    (nothing, span),
    (nothing, gputrace.span("outer")(nothing)),
    (nothing, lambda: gputrace.window("outer").close()),
    (nothing, lambda: gputrace.instant("outer")),
    (nothing, lambda: gputrace.counter("outer", 1)),
    (anew, span),
]
sys.setswitchinterval(100)  # a collector that came in between would find the name still missing
for before, first in asks:
    asked = []
    thread = Named(target=lambda: (first(), first(), span()))
    thread.start()
    thread.join()
    assert asked == [thread], len(asked)
    recordings.pop().stop()
    drawn_slices = slices(Engine(folder / "t.pftrace"))
    assert {s.track[1] for s in drawn_slices} == {f"its own {thread.native_id}"}, drawn_slices
    found = Counter(s.name for s in drawn_slices)
    assert (found["inner"], found["inner instant"], found["inner window"]) == (1, 1, 1), found
    assert found["outer"] >= 1, found
    anew()
"""

#: A kind of str of which nothing works once it was passed, and types that do not say what they are.
BROKEN = """
class Broken(str):
    over = False

def broken(name):
    works = getattr(str, name)
    def method(self, *given):
        if Broken.over:
            raise ValueError(name)
        return works(self, *given)
    return method

for name in (
    "__hash__ __eq__ __ne__ __lt__ __len__ __str__ __repr__ __iter__ __getitem__ __contains__ __add__ __mod__ "
    "__format__ encode replace isascii startswith translate"
).split():
    setattr(Broken, name, broken(name))

class Nameless(type):
    @property
    def __name__(self):
        raise ValueError("no name")

class Unknown(metaclass=Nameless):
    def __str__(self):
        raise ValueError("no text")
    __float__ = __str__

class Spoken:
    def __str__(self):
        return Broken("spoken")

class Named(threading.Thread):
    name = Broken("a thread")

def use(stream):
    names = {Broken(f"key {n}"): Broken("value") for n in range(40)}
    shared = gputrace.span(Broken("shared"), stream, **names)
    span, window = gputrace.span(Broken("span"), stream, **names), gputrace.window(Spoken(), stream, **names)
    gputrace.instant(Broken("instant"), unknown=Unknown(), spoken=Spoken(), **names)
    gputrace.counter(Broken("counter"), 1, Broken("bytes"))
    Broken.over = True
    with span:
        shared(lambda: None)()
    try:
        with shared, shared:
            raise type("Error", (Exception,), {"__str__": Spoken.__str__})
    except Exception as error:
        window.failure(error)
        gputrace.failure(error)
    gputrace.failure(Unknown())
    window.failure(Unknown())
    window.close()
    span.__exit__(Unknown(), None, None)
    gputrace.span(Unknown(), value=Unknown()).__enter__().__exit__(Unknown(), None, None)
    gputrace.counter(Unknown(), Unknown(), Unknown())
    tracer.current().write_now()
    Broken.over = False

use(default_gpu().stream("s"))
thread = Named(target=use, args=(None,))
thread.start()
thread.join()
recording = recordings[-1]
found, told = drawn(), recording.summary.told
assert (found["span"], found["spoken"], found["instant"], found["shared"]) == (3, 3, 2, 9), found
assert found["<Unknown>"] == 2, found
assert len(told) == 1 and "got a Unknown that is no number" in told[0], told
"""

PROGRAMS = {
    "name": NAME,
    "broken": BROKEN,
    "stream": STREAM,
    "value": VALUE,
    "threads": THREADS,
    "key": KEY,
    "kind": KIND,
}


@pytest.mark.parametrize("twin", TWINS)
@pytest.mark.parametrize("kind", PROGRAMS)
def test_a_program_s_objects(tmp_path: object, kind: str, twin: str) -> None:
    done = run_in(twin, START + PROGRAMS[kind], tmp_path, more={"PYTHONMALLOC": "debug"})
    assert (done.stderr, done.returncode) == ("", 0)
