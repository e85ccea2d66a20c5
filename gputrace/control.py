"""What a program may say about its own recording: a step is over, record no more, go on, write what there is.

It knows the tracer that records now, and nothing where none does.
"""

from __future__ import annotations

from gputrace import tracer
from gputrace.fence import EXHAUSTED


def step() -> None:
    """A step of the program is over: call it at the end of each, as ``gputrace record --steps`` counts them.

    Steps count from 0 in each process; step 0 ends with the first call. From then on an optimizer's steps, which count
    where nobody calls this, do so no more. An instant named "gputrace.step" marks the end of each on this thread, and
    ``gputrace summary --by step`` tells how long they took. Raises nothing, and does nothing with nothing recording.
    """
    try:
        running = tracer.current()
        if running is not None:
            running.regions.step()
    except EXHAUSTED:
        pass


def pause() -> None:
    """Record nothing more of this process until `resume`. What is open now still closes, and is drawn whole.

    Of all threads, and of children that are forked meanwhile. Raises nothing, and does nothing with nothing recording.
    """
    try:
        running = tracer.current()
        if running is not None:
            running.regions.pause()
    except EXHAUSTED:
        pass


def resume() -> None:
    """Go on after `pause`, within what ``--delay``, ``--duration`` or ``--steps`` asked for. Raises nothing."""
    try:
        running = tracer.current()
        if running is not None:
            running.regions.resume()
    except EXHAUSTED:
        pass


def dump() -> str:
    """Have the last seconds, of all processes of the recording, written now, as ``--last`` keeps them; all goes on.

    Returns the file's path: "trace.1.pftrace" for "trace.pftrace", then "trace.2.pftrace"; where `gputrace record`
    writes it, it is there a moment later. "" where nothing records, or nothing keeps its last seconds, and where a
    finaliser calls this in the middle of gputrace's own work: then it is written behind that. Raises nothing.
    """
    running = tracer.current()
    return "" if running is None else running.dump()
