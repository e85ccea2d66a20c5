"""The twin in use, as tests may ask it, and tests that are for one twin: `@in_twin("pure")`.

The suite runs under either twin. What holds for both is asked in neutral words here; a test of one twin's own objects
runs in a process that has that twin, whichever this one has.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

import pytest

import gputrace
from gputrace import hot, tracer

Test = TypeVar("Test", bound=Callable[..., None])
ROOT = Path(__file__).parents[2]
#: Where no extension can be built (not Linux, no compiler) there is only one twin to try.
BUILT = importlib.util.find_spec("gputrace.hot._hot") is not None
TWINS = ("pure", "compiled") if BUILT else ("pure",)
if not BUILT and os.environ.get("CI") == "true":
    raise RuntimeError(
        "the compiled part is needed in CI: is there a C compiler? `pip install -v` says why it is not here"
    )
LIMIT_S = 100
#: Bytes of the compiled twin's ring that a span takes, begun and ended.
SPAN_BYTES = 64


def environment(twin: str) -> dict[str, str]:
    """This process's environment, for a process that has a twin."""
    return {**os.environ, "GPUTRACE_PURE": "1" if twin == "pure" else "", "PYTHONPATH": str(ROOT)}


def run_in(
    twin: str, program: str, *arguments: object, options: Sequence[str] = (), more: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a program in an interpreter that has a twin, with ``more`` in its environment."""
    return subprocess.run(
        [sys.executable, "-X", "faulthandler", *options, "-c", program, *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**environment(twin), **(more or {})},
        timeout=LIMIT_S,
    )


def in_twin(twin: str) -> Callable[[Test], Test]:
    """Run the decorated test under a twin: if not in this process, in a pytest of its own."""

    def decorate(test: Test) -> Test:
        @functools.wraps(test)
        def run(*args: Any, **kwargs: Any) -> None:
            if twin == hot.TWIN:
                return test(*args, **kwargs)
            if twin not in TWINS:
                pytest.skip("no compiled part is built here")
            me = os.environ["PYTEST_CURRENT_TEST"].rpartition(" ")[0]
            command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", me]
            done = subprocess.run(
                command, capture_output=True, text=True, cwd=ROOT, env=environment(twin), timeout=LIMIT_S
            )
            if done.returncode:
                pytest.fail(done.stdout + done.stderr, pytrace=False)
            return None

        return run  # type: ignore[return-value]

    return decorate


def host_threads() -> int:
    """How many threads' buffers the recording keeps."""
    if hot.TWIN == "compiled":
        from gputrace.hot import _hot

        return _hot.threads()[0]
    from gputrace.hot import pure

    return len(pure.threads())


def records() -> bool:
    """Would a span be recorded now?"""
    return type(gputrace.span("probe")).__name__ == "Span"


@contextlib.contextmanager
def room_for(spans: int) -> Iterator[None]:
    """Recordings started inside keep about so many host spans that the collector has not taken, and no more."""
    if hot.TWIN == "compiled":
        with mock.patch.object(tracer, "RING_BYTES", spans * SPAN_BYTES):
            yield
    else:
        from gputrace import purehost
        from gputrace.hot import pure

        with mock.patch.object(purehost, "MOST_SPANS", spans), mock.patch.object(pure, "MOST_SPANS", spans):
            yield
