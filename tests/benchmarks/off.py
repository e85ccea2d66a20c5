"""What a span costs where nothing records, so that a library can leave it in: in units of a reused `nullcontext`."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable

from tests.benchmarks.figures import Row, in_child, paired_ratio, print_rows, rows_of

SPANS = 500
BUDGET = 2.5  # of both twins


def measure(quick: bool = False) -> list[Row]:
    return rows_of(in_child("off", "200" if quick else "1000", fake=False))


def run(rounds: int) -> list[Row]:
    import gputrace

    span, nothing = gputrace.span, contextlib.nullcontext()

    def reused() -> None:
        for _ in range(SPANS):
            with nothing:
                pass

    def plain() -> None:
        for _ in range(SPANS):
            with span("step"):
                pass

    def on_stream() -> None:
        for _ in range(SPANS):
            with span("step", stream=7, batch=32):
                pass

    def ratio(subject: Callable[[], None]) -> float:
        subject()
        return paired_ratio(subject, reused, rounds)

    return [
        Row("a span with tracing off", ratio(plain), BUDGET, note="in units of a reused `nullcontext`"),
        Row("the same, with a stream and an arg", ratio(on_stream)),
    ]


if __name__ == "__main__":
    print_rows(run(int(sys.argv[1])))
