"""What a recording does under load, and what it asks of the program then: many processes at once, many threads at once,
a device that never catches up, a writer that does not keep up.

Nothing may be lost uncounted: where it could be, the spans in the trace and those counted as dropped are compared with
those opened.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from unittest import mock

from gputrace.exporters.perfetto import Perfetto

from gputrace.record.tally import Summary
from tests.benchmarks.figures import ROOT, Row, by_twin, in_child, paired_ratio, print_rows, rows_of

PROCESSES = 200
THREADS = 64
WINDOWS = 1_000_000
BEHIND_S = 5.0
MEMORY_BUDGET_MB = 64.0
SPANS_A_THREAD = 2000
SLOW_FLUSH_S = 1.0
SLOW_PER_S = 50_000
SLOW_BURST = 500

ONE = "import gputrace\nwith gputrace.span('one'): pass"
BURST = f"""
import subprocess, sys
started = [subprocess.Popen([sys.executable, "-c", {ONE!r}]) for _ in range({PROCESSES})]
sys.exit(max(each.wait() for each in started))
"""


def measure(quick: bool = False) -> list[Row]:
    return [
        *burst(1 if quick else 3),
        *rows_of(in_child("load", "threads", str(2 if quick else 5))),
        *rows_of(in_child("load", "behind")),
        *rows_of(in_child("load", "slow", str(5 if quick else 15), null=1)),
    ]


def burst(rounds: int) -> list[Row]:
    """Start processes all at once, in a recording and without one in turns."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "burst.json"
        plain = [sys.executable, "-c", BURST]
        record = ["-m", "gputrace.cli.main", "record", "-q", "--device", "host", "-o", str(trace), "--"]

        def run(command: list[str]) -> Callable[[], object]:
            return lambda: subprocess.run(command, env=environment, check=True)

        ratio = paired_ratio(run([sys.executable, *record, *plain]), run(plain), rounds)
        found = trace.read_text().count('"one"')
    return [
        Row(f"{PROCESSES} processes started at once, over the same without a recording", ratio),
        Row("of them in the trace", found, PROCESSES, "", at_least=True),
    ]


def threads(rounds: int) -> list[Row]:
    """The same spans opened by many threads at once and by one."""
    from tests.benchmarks.program import recorded, spans

    def at_once(number: int) -> Callable[[], None]:
        work = spans(THREADS * SPANS_A_THREAD // number)

        def run() -> None:
            made = [threading.Thread(target=work) for _ in range(number)]
            for each in made:
                each.start()
            for each in made:
                each.join()

        return run

    with recorded("host") as running:
        ratio = paired_ratio(at_once(THREADS), at_once(1), rounds)
    assert running.summary is not None
    opened = 3 * THREADS * SPANS_A_THREAD * rounds
    return [
        Row(f"{THREADS} threads opening spans at once, over one opening as many", ratio),
        balance("of their spans, lost and not counted", opened, running.summary),
    ]


def behind() -> list[Row]:
    """A million windows, opened as fast as the program can, on a device that is up to 5 s behind all the while."""
    from tests.benchmarks.memory import resident_mb
    from tests.benchmarks.program import check, open_gpu, recorded, spans
    from tests.fake_driver import control

    stream = check(open_gpu().cuStreamCreate(1))
    step = 10_000
    run = spans(step, int(stream))
    with recorded() as running:
        for _ in range(10):
            run()
            time.sleep(0.2)
        before = most = resident_mb()
        due = time.monotonic()
        for _ in range(WINDOWS // step):
            if time.monotonic() >= due:
                control.enqueue(stream, round(BEHIND_S * 1e9))
                due = time.monotonic() + BEHIND_S
            run()
            most = max(most, resident_mb())
    summary = running.summary
    assert summary is not None
    opened = WINDOWS + 10 * step
    return [
        Row(f"memory, a million windows with the device {BEHIND_S:g} s behind", most - before, MEMORY_BUDGET_MB, "MB"),
        balance("of their slices, host and GPU, lost and not counted", 2 * opened, summary),
    ]


class SlowPerfetto(Perfetto):
    """Takes a second to hand anything to the operating system, as a disk would that is busy: without the GIL."""

    def flush(self) -> None:
        time.sleep(SLOW_FLUSH_S)
        super().flush()


def slow(seconds: float) -> list[Row]:
    """Spans at a pace that the tracer keeps up with, and its disk does not."""
    from gputrace.record import formats
    from tests.benchmarks.memory import resident_mb
    from tests.benchmarks.program import bare_records, check, open_gpu, recorded, spans

    driver = open_gpu()
    stream = check(driver.cuStreamCreate(1))
    run, bare = spans(SLOW_BURST, int(stream)), bare_records(driver, stream, SLOW_BURST)
    slow_disk = mock.patch.dict(formats._OWN, {".pftrace": f"{__spec__.name}:{SlowPerfetto.__name__}"})
    ratios = []
    with slow_disk, recorded() as running:
        run()
        before = most = resident_mb()
        start = due = time.monotonic()
        while due < start + seconds:
            ratios.append(paired_ratio(run, bare, 1))
            most = max(most, resident_mb())
            due += SLOW_BURST / SLOW_PER_S
            time.sleep(max(0.0, due - time.monotonic()))
    summary = running.summary
    assert summary is not None
    opened = 2 * SLOW_BURST * (len(ratios) + 1)
    what = f"beside a disk that takes {SLOW_FLUSH_S:g} s for every write"
    return [
        Row(f"memory at {SLOW_PER_S // 1000} k spans/s {what}", most - before, MEMORY_BUDGET_MB, "MB"),
        Row("host cost of a span then, in units of two bare records", statistics.median(ratios), by_twin(3.5, 0.75)),
        balance("of the slices then, host and GPU, lost and not counted", opened, summary),
    ]


def balance(what: str, opened: int, summary: Summary) -> Row:
    """What is left of those opened without those that are in the trace, and those that it counts as dropped."""
    kept, dropped = summary.slices, summary.dropped
    return Row(what, opened - kept - dropped, 0, "", aside=f"of {opened:,}: {kept:,} kept, {dropped:,} dropped")


if __name__ == "__main__":
    name, *arguments = sys.argv[1:]
    print_rows({"threads": threads, "behind": behind, "slow": slow}[name](*map(int, arguments)))
