"""`gpu_time`: the GPU time of a block in a test, held to a baseline that was measured on such a device before.

It measures with `gputrace.EventProfiler`, and compares only what its own error bound lets it tell apart.
"""

from __future__ import annotations

import math
import statistics

import pytest

import gputrace
from gputrace import devices
from gputrace.errors import NoDriver
from gputrace.profiler import EventProfiler
from gputrace.testing import baselines
from gputrace.testing.baselines import BadBaselines, Baseline

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType
    from typing import Any, Final, NoReturn

    from gputrace.measurement import Measurement

#: How long the end of a block waits for the device, in s.
TIMEOUT_S: Final = 60.0
#: How sure the bound on a median is, where there are enough repeats for it.
_CONFIDENCE: Final = 0.95


class GpuTimes:
    """The `gputrace` fixture: `gpu_time`, and every name of the module `gputrace`, which it hides in a test."""

    def __init__(self, item: pytest.Item) -> None:
        self._item = item
        self._names: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(gputrace, name)

    def gpu_time(self, name: str, *, tolerance: float, stream: Any = None) -> GpuTime:
        """A block whose GPU time on ``stream`` (None: the legacy default stream) is compared at its end.

        ``tolerance`` is the share by which it may be slower than its baseline: 0.1 for 10%. Skips the test where there
        is no device. Raises `ValueError` for a tolerance that is not above 0, and for a name used twice in a test.
        """
        if not 0 < tolerance < math.inf:
            raise ValueError(f"tolerance={tolerance!r}: give the share by which a block may be slower, like 0.1")
        if name in self._names:
            raise ValueError(f"gpu_time({name!r}) twice in one test: each needs a name of its own")
        self._names.add(name)
        return GpuTime(self._item, name, tolerance, stream)


class GpuTime:
    """A context manager. What ``for _ in t.repeats(20):`` encloses is measured each time; without it, the whole block
    is, once.

    After the block: ``samples_ns``, their ``median_ns``, and ``uncertainty_ns``, which bounds the median: the events'
    own error, and the median's 95% confidence interval by order statistics (all of the samples, where they are fewer
    than 6; one shows no spread at all). ``baseline`` is what it was compared with, None where it was written.
    """

    def __init__(self, item: pytest.Item, name: str, tolerance: float, stream: Any) -> None:
        self.name = name
        self.tolerance = tolerance
        self.samples_ns: list[int] = []
        self.median_ns = 0
        self.uncertainty_ns = 0
        self.baseline: Baseline | None = None
        self._item = item
        self._stream = stream
        self._profiler: EventProfiler
        self._token: Any = None
        self._measured: list[Measurement] = []
        self._repeated = False

    def __enter__(self) -> GpuTime:
        __tracebackhide__ = True
        try:
            kind, reason = devices.choose(self._item.config.getoption("gputrace_device"), initialise=False)
            if kind == "host":
                raise NoDriver(reason)
            self._profiler = EventProfiler(devices.device_of(kind, self._stream))
        except NoDriver as error:
            self._without_device(error)
        self._token = self._profiler.start(self._stream)
        return self

    def _without_device(self, why: NoDriver) -> NoReturn:
        """Without a device a test is skipped; but fails where one was asked for, or a baseline that is not written."""
        __tracebackhide__ = True
        if self._item.config.getoption("gputrace_update_baselines"):
            pytest.fail(
                f"gpu_time({self.name!r}) wrote no baseline: {why}. Run pytest --gputrace-update-baselines where the"
                " GPU is that the tests are to be held to; without that option this test is skipped here"
            )
        needs = f"gpu_time({self.name!r}) needs a device: {why}"
        if self._item.config.getoption("gputrace_device") == "cuda":
            pytest.fail(needs)
        pytest.skip(needs)

    def repeats(self, count: int, *, warmup: int = 1) -> Iterator[int]:
        """Measure the loop's body ``count`` times, after ``warmup`` times that do not count. Waits for none of them."""
        if count < 1:
            raise ValueError(f"repeats({count}): at least 1")
        self._repeated = True
        self._abandon()
        yield from range(-warmup, 0)
        for number in range(count):
            self._token = self._profiler.start(self._stream)
            yield number
            self._stop()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        __tracebackhide__ = True
        with self._profiler:
            if error is not None:
                return  # the program's own goes first; closing the profiler drops what is open
            if self._repeated:
                self._abandon()  # the loop was left early
            else:
                self._stop()
            if not self._measured:
                pytest.fail(f"gpu_time({self.name!r}): its loop ended before anything was measured")
            self._read()
        try:
            self._judge()
        except BadBaselines as bad:
            pytest.fail(f"gpu_time({self.name!r}): {bad}")

    def _abandon(self) -> None:
        if self._token is not None:
            self._profiler.abandon(self._token)
            self._token = None

    def _stop(self) -> None:
        token, self._token = self._token, None
        self._measured.append(self._profiler.stop(self._stream, token))

    def _read(self) -> None:
        __tracebackhide__ = True
        error_ns = 0
        for each in self._measured:
            try:
                reading = each.result(TIMEOUT_S)
            except TimeoutError as late:
                pytest.fail(f"gpu_time({self.name!r}): {late}")
            if reading.error is not None:
                pytest.fail(f"gpu_time({self.name!r}) could not be measured: {reading.error}")
            self.samples_ns.append(reading.duration_ns)
            error_ns = max(error_ns, reading.duration_uncertainty_ns)
        self.median_ns, spread_ns = median_and_bound(self.samples_ns)
        self.uncertainty_ns = spread_ns + error_ns

    def _judge(self) -> None:
        __tracebackhide__ = True
        device = self._profiler.device.name
        path = self._item.path.with_name(baselines.FILE)
        test = self._item.nodeid.partition("::")[2]
        key = f"{self._item.path.name}::{test} {self.name}"
        update = f"pytest '{self._item.nodeid}' --gputrace-update-baselines"
        repeats = len(self.samples_ns)
        measured = (
            f"gpu_time({self.name!r}) on {device}: measured {_shown(self.median_ns, self.uncertainty_ns, repeats)}"
        )
        writes = self._item.config.getoption("gputrace_update_baselines")
        if not writes:
            self.baseline = baselines.load(path, device, key)
            if self.baseline is None:
                pytest.fail(f"{measured}, and {path.name} has no baseline for it. To write it, run: {update}")
        base = self.baseline or Baseline(self.median_ns, 0, repeats)
        unsure_ns = self.uncertainty_ns + base.uncertainty_ns
        stored = "" if writes else f", baseline {_shown(base.median_ns, base.uncertainty_ns, base.repeats)}"
        if unsure_ns >= self.tolerance * base.median_ns:
            pytest.fail(
                f"{measured}{stored}: too uncertain to tell {self.tolerance:.3g} of it. Put more work or more"
                f" `t.repeats` into the block, quiet the device, or widen tolerance above"
                f" {unsure_ns / max(base.median_ns, 1):.2g}"
                + ("" if self.uncertainty_ns >= base.uncertainty_ns else f"; or measure the baseline anew: {update}")
            )
        if writes:
            baselines.store(path, device, key, Baseline(self.median_ns, self.uncertainty_ns, repeats))
            return
        change = self.median_ns / base.median_ns - 1
        said = f"{measured}{stored}: {change:+.1%}"
        self._item.user_properties.append((f"gpu_time {self.name}", said))
        if change > self.tolerance:
            pytest.fail(f"{said}, and {self.tolerance:.3g} is tolerated. If that is meant, run: {update}")


def median_and_bound(samples_ns: list[int]) -> tuple[int, int]:
    """The median, and how far from it the median of all runs may be: the wider side of its confidence interval.

    The interval lies between the k-th smallest and the k-th largest sample, for the greatest k at which a fair coin
    falls on one side fewer than k times often enough (the sign test's interval). It assumes no distribution.
    """
    ordered, count = sorted(samples_ns), len(samples_ns)
    median_ns = round(statistics.median(ordered))
    outside, k = 0.0, 0
    while k < (count - 1) // 2:
        outside += 2 * math.comb(count, k) / 2**count
        if outside > 1 - _CONFIDENCE:
            break
        k += 1
    k = max(k, 1) - 1
    return median_ns, max(median_ns - ordered[k], ordered[-1 - k] - median_ns)


def _shown(median_ns: int, uncertainty_ns: int, repeats: int) -> str:
    of = "1 repeat" if repeats == 1 else f"the median of {repeats} repeats"
    return f"{median_ns / 1e3:.1f} ± {uncertainty_ns / 1e3:.1f} µs ({of})"
