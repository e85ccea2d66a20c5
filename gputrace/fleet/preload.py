"""What Dask runs in each of our processes as it starts."""

from __future__ import annotations

import signal


def dask_setup(_: object) -> None:
    """Ctrl-C is whoever's to heed who started us."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
