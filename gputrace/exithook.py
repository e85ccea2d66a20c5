"""Runs a function as the interpreter ends, also where a signal's handler raises just then.

A handler runs at the first Python code after its signal. In a program that has nothing left to do that is our hook: the
handler's exception would keep it from its first line, and Python would print it with our hook's name. Without us there
would have been neither. So the hook stands there twice, and callables in C, at which no handler runs, mute what is
printed of it. It knows not what it runs.
"""

from __future__ import annotations

import atexit
import sys
from _operator import attrgetter, methodcaller

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def register(function: Callable[[], None]) -> Callable[[], None]:
    """Call ``function``, which must raise nothing of its own, when the interpreter ends, before what was registered
    earlier; a second time, too, when it has been called. Returns what takes it back.
    """
    name = "unraisablehook"
    before: list[Any] = []
    code = (function.__func__ if hasattr(function, "__func__") else function).__code__

    def mute(unraisable: Any) -> None:
        trace = unraisable.exc_traceback
        if trace is None or trace.tb_frame.f_code is not code:
            before[-1](unraisable)

    # What is registered last is called first.
    hooks = (
        (methodcaller("update", zip((name,), before, strict=False)), vars(sys)),
        (function,),
        (function,),
        (methodcaller("__setitem__", name, mute), vars(sys)),
        (methodcaller("extend", map(attrgetter(name), (sys,))), before),
    )
    for hook in hooks:
        atexit.register(*hook)

    def unregister() -> None:
        for hook in () if before else hooks:  # from within, when the last of them must still come
            atexit.unregister(hook[0])

    return unregister
