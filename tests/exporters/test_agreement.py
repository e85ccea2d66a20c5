"""Both formats of one recording say the same, to the nanosecond."""

from __future__ import annotations

from gputrace.exporters.chrome import Chrome
from gputrace.exporters.perfetto import Perfetto
from hypothesis import HealthCheck, given, settings

from gputrace.model import Exporter
from tests.engine import Engine
from tests.exporters.recordings import Script, seen, write
from tests.exporters.test_both import scripts


def told(exporter: type[Exporter], script: Script) -> list[tuple[int, int, int, int]]:
    """(ts, dur, depth, number of args) of every slice; names and tracks are where the formats differ."""
    found = seen(exporter, Engine(write(exporter, script)))
    return sorted((s.ts, s.dur, s.depth, len(s.args)) for s in found)


@settings(max_examples=10, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(script=scripts())
def test_both_say_the_same(script: Script) -> None:
    assert told(Perfetto, script) == told(Chrome, script)
