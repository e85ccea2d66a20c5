"""A collector that has fallen behind: it gives back room as it goes, so that what is new is not what is dropped."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hot.twin import TWINS, in_twin, run_in

#: The collector is held until nothing more finds room, and again when it has most of that behind it.
PROGRAM = """
import sys, threading, time
import gputrace
from gputrace import hot, keeping, purehost, tracer
from gputrace.hot import pure

output, last = sys.argv[1:]
tracer.RING_BYTES = 2 << 20
purehost.MOST_SPANS = pure.MOST_SPANS = 16_000
first, later, go_on = threading.Event(), threading.Event(), threading.Event()
drawn = []
write = tracer.Tracks.write

def held(tracks, track, edges):
    if not drawn:
        first.set()
        assert go_on.wait(60)
    drawn.extend(edges)
    if len(drawn) > 12_000 and go_on.is_set():
        go_on.clear()
        later.set()
        assert go_on.wait(60)
    write(tracks, track, edges)

tracer.Tracks.write = held
recording = gputrace.trace(output, device="host", last=last or None).start()

def spans(count):
    before = hot.stats().dropped_spans
    for n in range(count):
        with gputrace.span("x", n=n):
            pass
    return hot.stats().dropped_spans - before

spans(1)
assert first.wait(60)
assert spans(30_000)
go_on.set()
assert later.wait(60)
dropped = spans(1000)
go_on.set()
recording.stop()
assert not dropped, dropped
"""


@pytest.mark.parametrize("twin", TWINS)
@pytest.mark.parametrize("last", ["", "60s"], ids=["all", "last"])
def test_what_is_new_finds_room_before_all_that_is_old_is_written(tmp_path: Path, last: str, twin: str) -> None:
    done = run_in(twin, PROGRAM, tmp_path / "t.json", last)
    assert (done.returncode, done.stderr) == (0, "")


@in_twin("compiled")
def test_what_is_taken_at_once_grows_again_after_it_was_slow() -> None:
    from gputrace.compiledhost import CHUNK_S, MOST_CHUNK, Writing

    writing = Writing(None, None, native=False)  # type: ignore[arg-type]
    for _ in range(40):
        writing.took(10 * CHUNK_S)
    assert writing.batch(500) == 500
    for _ in range(40):
        writing.took(CHUNK_S / 10)
    assert writing.batch(500) == MOST_CHUNK
