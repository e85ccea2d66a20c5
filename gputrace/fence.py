"""Telling the program's exceptions from ours, where a fence catches both.

A signal's handler runs between any two lines, ours too, and what it raises is the program's: a timeout must fire. It
knows nothing of spans. Nothing here runs unless something was raised.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Final

# The builtin part of `signal`, which itself imports enum.
_signal: Any = __import__("_signal")


#: What any call of ours may raise at the program's last depth, or with its last memory: there a hook does nothing, by
#: no further call. A RecursionError is a RuntimeError: this goes before what catches those.
EXHAUSTED: Final = (RecursionError, MemoryError)


def let_through(error: BaseException) -> None:
    """Raise the error again if a signal's handler raised it; return if it is the fence's to deal with."""
    traceback = error.__traceback__
    if traceback is None or traceback.tb_next is None:
        return  # raised by what this very frame called in C: no handler has been in between
    handlers: list[Any] = []
    try:  # with no frame but this one: a handler that raised in what our caller called had that much room, too
        for number in _signal.valid_signals():
            try:
                handler = _signal.getsignal(number)
            except ValueError:
                continue
            if callable(handler):
                function = getattr(handler, "__func__", handler)
                if not hasattr(function, "__code__"):
                    function = getattr(type(handler).__call__, "__func__", type(handler).__call__)
                code = getattr(function, "__code__", None)
                if code is not None:
                    handlers.append(code)
        while traceback.tb_next is not None:
            traceback = traceback.tb_next
            if traceback.tb_frame.f_code in handlers:
                raise error
    except RecursionError:
        if type(error) not in EXHAUSTED:
            raise error from None
    except MemoryError:
        pass
