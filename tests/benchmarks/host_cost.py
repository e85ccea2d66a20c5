"""What a span costs the thread that opens it, in units of two bare `cuEventRecord` through cuda-python.

The fake driver's record does nothing here, so the unit is what the bindings cost. Steady: spans come no faster than the
collector reads them, so that pools are warm and spans come back to them.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from tests.benchmarks.figures import Row, by_twin, in_child, median_ns, paired_ratio, print_rows, rows_of

SPANS = 100  # between two looks at the clock
PAUSE_S = 0.003
WARM_UP = 100  # rounds in which the pool fills and the interpreter specialises


def measure(quick: bool = False) -> list[Row]:
    return rows_of(in_child("host_cost", "200" if quick else "800", null=1))


def run(rounds: int) -> list[Row]:
    import gputrace
    from tests.benchmarks.program import bare_records, check, open_gpu, recorded, spans

    driver = open_gpu()
    stream = check(driver.cuStreamCreate(1))
    bare = bare_records(driver, stream, SPANS)
    plain = spans(SPANS)

    def pause() -> None:
        time.sleep(PAUSE_S)

    def warm(subject: Callable[[], None]) -> Callable[[], None]:
        for _ in range(WARM_UP):
            subject()
            pause()
        return subject

    def ratio(subject: Callable[[], None]) -> float:
        return paired_ratio(warm(subject), bare, rounds, pause)

    off_ns = median_ns(warm(plain), rounds, pause)
    with recorded() as running:
        by_handle = ratio(spans(SPANS, int(stream)))
        by_object = ratio(spans(SPANS, stream))
        with gputrace.use_stream(stream):
            current = ratio(spans(SPANS))
        host = ratio(plain)
        on_ns = median_ns(plain, rounds, pause)
    summary = running.summary
    assert summary is not None
    assert not summary.dropped
    assert summary.windows >= 3 * rounds * SPANS
    budget = by_twin(3.5, 0.75)
    return [
        Row("a host+GPU span, its stream by handle", by_handle, budget),
        Row("the same, its stream by `use_stream`", current, budget),
        Row("the same, its stream a `CUstream`", by_object, budget),
        Row("a host-only span", host),
        Row(
            "one host edge: half of what recording adds to a host-only span",
            (on_ns - off_ns) / SPANS / 2,
            unit="ns",
        ),
    ]


if __name__ == "__main__":
    print_rows(run(int(sys.argv[1])))
