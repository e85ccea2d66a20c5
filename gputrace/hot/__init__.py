"""The hot path: what runs inside the program's spans, and once a span in the collector.

One seam: everything above asks this package, never `pure` by name, so that a compiled twin can take its place.
"""

from gputrace.hot.drain import drain, untimed
from gputrace.hot.pure import (
    MOST_SPANS,
    MOST_WINDOWS,
    Pool,
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
    "Pool",
    "Span",
    "StreamQueue",
    "ThreadBuffer",
    "Window",
    "counter",
    "current_tid",
    "drain",
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
    "untimed",
    "use_stream",
    "window",
]
