"""Whose suspension can leave a span open: what a span may nest in.

Code that runs straight down its thread closes its spans in the order that the stack unwinds. A generator, a coroutine,
a task or a greenlet can be suspended with a span open while others go on, so its spans nest only in its own. It knows
frames and schedulers, and no span.
"""

from __future__ import annotations

import sys

from gputrace.fence import let_through

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Final

#: The scope of code that runs straight down its thread.
PLAIN: Final = 0
# inspect.CO_GENERATOR, CO_COROUTINE and CO_ASYNC_GENERATOR; importing inspect costs 10 ms.
_GENERATOR: Final = 0x20 | 0x200
_COROUTINE: Final = 0x80
#: Flags of code whose frame can be suspended.
SUSPENDABLE: Final = _GENERATOR | _COROUTINE
#: Functions that enter a span for whoever wrote the ``with``.
ENTERS: Final = frozenset(("enter_context", "__enter__", "__aenter__"))

_modules = sys.modules


def find_scope(frame: Any) -> int:
    """Whose suspension can leave a span open that is opened in this frame: a generator's or a coroutine's identity, the
    running task's, or `PLAIN`.

    A generator that contextlib is driving, contextlib's own functions and ``__enter__`` methods run straight down their
    caller: what counts is whoever wrote the ``with``. A coroutine is its task's; without asyncio, its outermost one's.
    """
    try:
        while frame is not None:
            flags = frame.f_code.co_flags
            caller = frame.f_back
            if not is_contextlib(frame) and frame.f_code.co_name not in ENTERS:
                if flags & _GENERATOR and not is_contextlib(caller):
                    return id(frame)
                if flags & _COROUTINE:
                    return task_scope() or id(_outermost_coroutine(frame))
                if not flags & _GENERATOR:
                    return task_scope()
            frame = caller
    except Exception as error:
        let_through(error)  # else a frame of an unheard-of kind: the span is taken for plain
    return task_scope()


def is_contextlib(frame: Any) -> bool:
    """Is it a frame of contextlib's own functions?"""
    return frame is not None and frame.f_globals.get("__name__") == "contextlib"


def _outermost_coroutine(frame: Any) -> Any:
    while frame.f_back is not None and frame.f_back.f_code.co_flags & _COROUTINE:
        frame = frame.f_back
    return frame


def task_scope() -> int:
    """The running asyncio task's or greenlet's identity, `PLAIN` outside any."""
    if "_asyncio" in _modules:
        loop = running_loop[0]()
        task = None if loop is None else _current_task(loop)
        if task is not None:
            return id(task)
    if "greenlet" in _modules:
        try:
            current = _modules["greenlet"].getcurrent()
            return PLAIN if current.parent is None else id(current)
        except Exception as error:  # half imported
            let_through(error)
            return PLAIN
    return PLAIN


def _find_running_loop() -> Any:
    """Find asyncio's C functions, without importing asyncio, and ask once. Python 3.11 has a dict of tasks by loop
    instead. None while asyncio is half imported.
    """
    global _current_task
    try:
        module = _modules["_asyncio"]
        _current_task = getattr(module, "current_task", None) or module._current_tasks.get
        running_loop[0] = module._get_running_loop
        return running_loop[0]()
    except Exception as error:
        let_through(error)
        return None


#: In a list of one: what tells the running asyncio loop, None where none runs. Asked only once `_asyncio` is imported.
running_loop: list[Callable[[], Any]] = [_find_running_loop]
_current_task: Callable[[Any], Any]
