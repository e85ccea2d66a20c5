"""What a span costs the thread that opens it, in units of two bare `cuEventRecord` through cuda-python.

The fake driver's record does nothing here, so the unit is what the bindings cost. Steady: spans come no faster than the
collector reads them, so that pools are warm and spans come back to them.
"""

from __future__ import annotations

import sys
import time

from tests.benchmarks.figures import Row, in_child, paired_ratio, print_rows, rows_of

SPANS = 100  # between two looks at the clock
PAUSE_S = 0.003
BUDGET = 3.5


def measure(quick: bool = False) -> list[Row]:
    return rows_of(in_child("host_cost", "200" if quick else "800", null=1))


def run(rounds: int) -> list[Row]:
    import gputrace
    from tests.benchmarks.program import bare_records, check, open_gpu, recorded, spans

    driver = open_gpu()
    stream = check(driver.cuStreamCreate(1))
    bare = bare_records(driver, stream, SPANS)

    def ratio(subject: object) -> float:
        assert callable(subject)
        for _ in range(100):  # the pool fills, the interpreter specialises
            subject()
            time.sleep(PAUSE_S)
        return paired_ratio(subject, bare, rounds, lambda: time.sleep(PAUSE_S))

    with recorded() as running:
        by_handle = ratio(spans(SPANS, int(stream)))
        by_object = ratio(spans(SPANS, stream))
        with gputrace.use_stream(stream):
            current = ratio(spans(SPANS))
        host = ratio(spans(SPANS))
    summary = running.summary
    assert summary is not None
    assert not summary.dropped
    assert summary.windows >= 3 * rounds * SPANS
    return [
        Row("host cost of a host+GPU span", by_handle, BUDGET, note="its stream by handle"),
        Row("the same, its stream by `use_stream`", current, BUDGET),
        Row("the same, its stream a `CUstream`", by_object, BUDGET),
        Row("host cost of a host-only span", host),
    ]


if __name__ == "__main__":
    print_rows(run(int(sys.argv[1])))
