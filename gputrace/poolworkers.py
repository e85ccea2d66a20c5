"""A `multiprocessing.Pool` kills its workers when it ends: what one recorded is written before its results leave it.

It knows how a pool's worker sends its results, and nothing of tracing. A pool of another kind than this Python's is
left alone.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def flush_before_results(flush: Callable[[], None]) -> None:
    """If this process is a pool's worker, call ``flush()`` before each result leaves it. For any of its threads; once.

    `with Pool(...) as pool: pool.map(...)` terminates the workers as soon as it has their last result. Raises nothing.
    """
    try:
        worker = sys.modules["multiprocessing.pool"].worker.__code__
        frame: Any = sys._current_frames()[sys.modules["threading"].main_thread().ident]
        while frame is not None and frame.f_code is not worker:
            frame = frame.f_back
        if frame is not None:
            results = frame.f_locals["outqueue"]
            # Its bound method `put` is in the worker's hands already; what that calls is looked up each time.
            results._writer = _Flushing(results._writer, flush)
    except (AttributeError, KeyError):
        pass  # no worker, or one that has become another since Python 3.13


class _Flushing:
    """A pipe's end that flushes first."""

    def __init__(self, pipe: Any, flush: Callable[[], None]) -> None:
        self._pipe = pipe
        self._flush = flush

    def send_bytes(self, *arguments: Any) -> None:
        self._flush()
        self._pipe.send_bytes(*arguments)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pipe, name)
