"""What pytest finds by entry point: the options, and the `gputrace` fixture.

pytest imports it in every run, so it imports what records and what measures only once one of them is asked for.
"""

from __future__ import annotations

import pytest

from gputrace import tracer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gputrace.testing.gputime import GpuTimes


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add gputrace's options."""
    group = parser.getgroup("gputrace", "what the GPU did")
    group.addoption(
        "--gputrace",
        dest="gputrace_output",
        metavar="FILE",
        help="Record the run, each test a span, into one trace: .pftrace or .json, and .gz behind either.",
    )
    group.addoption(
        "--gputrace-device",
        default="auto",
        metavar="auto|cuda|simulated|host",
        help="What GPU windows and gpu_time are measured on; host: on none.",
    )
    group.addoption(
        "--gputrace-update-baselines",
        action="store_true",
        help="Write what gpu_time measures as the baseline for this device, in place of comparing.",
    )


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Begin to record, where that is asked for. Raises `pytest.UsageError` where it is not possible."""
    output = config.getoption("gputrace_output")
    if output is not None or tracer.current() is not None:
        from gputrace.testing.recorded import begin

        begin(config, output)


@pytest.fixture
def gputrace(request: pytest.FixtureRequest) -> GpuTimes:
    """The module `gputrace`, and `gpu_time(name, tolerance=...)`, which holds a block's GPU time to a baseline."""
    from gputrace.testing.gputime import GpuTimes

    return GpuTimes(request.node)
