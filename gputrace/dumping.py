"""When a process asks for its last seconds while it goes on: at SIGUSR2, and when an exception ends one of its threads.

What the program does about either stays its own: a handler is set only where the system's is, a hook calls the one it
found, and whatever the program puts in their place afterwards stays there. It knows nothing of what is written.
"""

from __future__ import annotations

import sys
from _thread import get_ident

from gputrace.fence import let_through

# The builtin part of `signal`, which itself costs a traced program's start the import of enum.
_signal: Any = __import__("_signal")

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


class Dumping:
    """Calls ``ask()``, which must be fit for a signal's handler, from `install` to `remove`. Raises nothing."""

    def __init__(self, ask: Callable[[], None]) -> None:
        self._ask = ask
        self._hooks: list[tuple[Any, str, Any, Any]] = []  # where, name, the one found, ours

    def install(self) -> None:
        """Take what nobody else has taken. For the main thread: elsewhere there is no handler to set."""
        try:
            if _signal.getsignal(_signal.SIGUSR2) == _signal.SIG_DFL:
                _signal.signal(_signal.SIGUSR2, self._on_signal)
        except ValueError:
            pass  # not the main thread
        # Now, for it is not known when the program will: by then a file of its own may have the name.
        import threading

        self._hook(threading, "excepthook", lambda raised: raised.exc_type is not SystemExit)
        self._hook(sys, "excepthook", lambda *_: _others_go_on(threading))

    def remove(self) -> None:
        """Put back what still is as it was left."""
        try:
            if _signal.getsignal(_signal.SIGUSR2) == self._on_signal:
                _signal.signal(_signal.SIGUSR2, _signal.SIG_DFL)
        except ValueError:
            pass
        for owner, name, found, ours in self._hooks:
            if getattr(owner, name, None) is ours:
                setattr(owner, name, found)
        self._hooks.clear()

    def _on_signal(self, *_: object) -> None:
        self._ask()

    def _hook(self, owner: Any, name: str, wanted: Callable[..., bool]) -> None:
        found = getattr(owner, name)

        def hook(*raised: Any) -> Any:
            try:
                if wanted(*raised):
                    self._ask()
            except Exception as error:
                let_through(error)
            return found(*raised)

        self._hooks.append((owner, name, found, hook))
        setattr(owner, name, hook)


def _others_go_on(threading: Any) -> bool:
    """Does the process go on when its main thread has ended? Else all is written at its end, which is near."""
    return any(not thread.daemon and thread.ident != get_ident() for thread in threading.enumerate())
