"""gputrace: what the GPU did, on the host's own timeline, beside what the CPU did.

Instrument with `span`, `window`, `use_stream`, `instant`, `counter` and `failure`: no-ops until something records, so a
library can leave them in. Record with ``gputrace record -- COMMAND``, or with `trace` from inside. Measure with
`EventProfiler`. Read a trace, of any tool, with `read`.
"""

from __future__ import annotations

from gputrace import sourcetree as _sourcetree
from gputrace import tracer as _tracer
from gputrace.hot import counter, failure, instant, span, use_stream, window

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gputrace.annotation import annotate
    from gputrace.api import device, trace
    from gputrace.control import dump, pause, resume, step
    from gputrace.measurement import Measurement, Placement, Reading, TimingMethod
    from gputrace.profiler import EventProfiler, TimestampProfiler
    from gputrace.table.read import read

# pytest means to rewrite the asserts of every package that has a plugin, and warns where it comes too late: a recording
# imports this one before it. It asks the docstring whether to leave it alone; assigned, so that -OO keeps it.
__doc__ = f"{__doc__ or ''}\nPYTEST_DONT_REWRITE\n"

__version__ = "0.1.0"

__all__ = [
    "EventProfiler",
    "Measurement",
    "Placement",
    "Reading",
    "TimestampProfiler",
    "TimingMethod",
    "annotate",
    "counter",
    "device",
    "dump",
    "failure",
    "instant",
    "pause",
    "read",
    "resume",
    "span",
    "step",
    "trace",
    "use_stream",
    "window",
]

_LATER = {
    "EventProfiler": "gputrace.profiler",
    "TimestampProfiler": "gputrace.profiler",
    "Measurement": "gputrace.measurement",
    "Placement": "gputrace.measurement",
    "Reading": "gputrace.measurement",
    "TimingMethod": "gputrace.measurement",
    "annotate": "gputrace.annotation",
    "device": "gputrace.api",
    "read": "gputrace.table.read",
    "trace": "gputrace.api",
    "dump": "gputrace.control",
    "pause": "gputrace.control",
    "resume": "gputrace.control",
    "step": "gputrace.control",
}


def __getattr__(name: str) -> object:
    """What a program that only opens spans need not pay for."""
    module = _LATER.get(name)
    if module is None:
        raise AttributeError(f"module 'gputrace' has no attribute {name!r}")
    value = getattr(__import__(module, fromlist=[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER})


_sourcetree.find_exporters(__path__)

# Under `gputrace record` the boot module has done this; not where the program was started with -I, -E or -S.
_tracer.start_fenced()
