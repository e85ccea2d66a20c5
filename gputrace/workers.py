"""Workers of multiprocessing are killed when their work is done: what one recorded is written before what it sends.

`with Pool(...)` terminates its workers as soon as it has their last result, a program that ends its daemonic processes,
torch's persistent DataLoader workers among them. It knows how multiprocessing sends, and nothing of tracing.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def flush_before_sending(flush: Callable[[], None]) -> None:
    """From now on, call ``flush()``, which must not raise, before this process sends to another over multiprocessing's
    pipes and queues. Asked for again, it does nothing; nor does it where they work in another way than so far.
    """
    try:
        connection: Any = sys.modules["multiprocessing.connection"].Connection
        send = connection._send_bytes
    except (AttributeError, KeyError):
        return
    if getattr(send, "__module__", None) == __name__:
        return

    def _send_bytes(self: Any, *arguments: Any) -> Any:
        flush()
        return send(self, *arguments)

    connection._send_bytes = _send_bytes
