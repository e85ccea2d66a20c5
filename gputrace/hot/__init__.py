"""What runs on the program's own threads: spans, their buffers, their events.

One seam: everything above asks this package, never `pure` by name, so that a compiled twin can take its place.
"""

from gputrace.hot.pure import (
    MOST_SPANS,
    MOST_WINDOWS,
    Span,
    StreamQueue,
    ThreadBuffer,
    Window,
    counter,
    current_tid,
    failure,
    forget_everything,
    host_pool,
    instant,
    queues,
    recycle,
    span,
    stats,
    switch_off,
    switch_on,
    take,
    threads,
    use_stream,
    window,
)

__all__ = [
    "MOST_SPANS",
    "MOST_WINDOWS",
    "Span",
    "StreamQueue",
    "ThreadBuffer",
    "Window",
    "counter",
    "current_tid",
    "failure",
    "forget_everything",
    "host_pool",
    "instant",
    "queues",
    "recycle",
    "span",
    "stats",
    "switch_off",
    "switch_on",
    "take",
    "threads",
    "use_stream",
    "window",
]
