"""How much one process has written, and what it could not. It knows nothing of how."""

from __future__ import annotations


class Counts:
    """What one process has written, and what it could not. ``slices`` counts host slices and windows alike."""

    __slots__ = (
        "clamped",
        "clock_violations",
        "failed",
        "out_of_order",
        "slices",
        "unfinished",
        "unreadable",
        "windows",
        "worst_error_ns",
    )

    def __init__(self) -> None:
        self.slices = 0
        self.windows = 0
        self.clamped = 0
        self.out_of_order = 0
        self.failed = 0
        self.unreadable = 0
        self.clock_violations = 0
        self.unfinished = 0
        self.worst_error_ns = 0
