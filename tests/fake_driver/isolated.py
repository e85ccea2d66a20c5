"""Runs a test in a process of its own that has the fake driver: `@on_fake_driver(devices=2)`.

The loader reads LD_LIBRARY_PATH when a process starts, so the tests' own process cannot use the library. One worker is
started for all of them, imports the bindings once, and forks for each test: a fresh driver, for a few milliseconds.
"""

from __future__ import annotations

import atexit
import functools
import pickle
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, TypeVar

import pytest

from tests.fake_driver import build

Test = TypeVar("Test", bound=Callable[..., None])
ROOT = Path(__file__).parents[2]
LIMIT_S = 60


def on_fake_driver(**settings: object) -> Callable[[Test], Test]:
    """Run the decorated test function under the fake driver, with these settings (see `environment`).

    Its arguments must pickle: parameters do, most fixtures do not. Its failure, skip and output are the test's own.
    """

    def decorate(test: Test) -> Test:
        @functools.wraps(test)
        def run(*args: Any, **kwargs: Any) -> None:
            build.require()
            outcome, text = _worker().run((test.__module__, test.__qualname__, args, kwargs, settings))
            if outcome == "skipped":
                pytest.skip(text)
            if outcome != "passed":
                pytest.fail(text, pytrace=False)

        return run  # type: ignore[return-value]

    return decorate


class Worker:
    """The process that forks, and the pipe to it."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "tests.fake_driver.worker"]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=build.environment(), cwd=ROOT
        )
        atexit.register(self.close)

    def run(self, request: tuple[Any, ...]) -> tuple[str, str]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        send(self.process.stdin, (*request, LIMIT_S))
        outcome: tuple[str, str] = receive(self.process.stdout)
        return outcome

    def close(self) -> None:
        if self.process.stdin is not None:
            self.process.stdin.close()
        self.process.wait()


@functools.cache
def _worker() -> Worker:
    return Worker()


def send(pipe: IO[bytes], message: Any) -> None:
    data = pickle.dumps(message)
    pipe.write(struct.pack("<I", len(data)) + data)
    pipe.flush()


def receive(pipe: IO[bytes]) -> Any:
    """The next message; EOFError when the other end is gone."""
    size = pipe.read(4)
    if len(size) < 4:
        raise EOFError("the fake driver's worker is gone")
    return pickle.loads(pipe.read(struct.unpack("<I", size)[0]))
