"""The trace processor as a program beside this one, asked over its stdin and stdout: no port that others could reach.

`--stdiod` is in every release since 2023 (Perfetto's src/trace_processor/rpc/stdiod.cc).
"""

from __future__ import annotations

import contextlib
import selectors
import subprocess
import tempfile
from typing import IO

from gputrace.errors import EngineError

# A wrapper of Perfetto's may download the program before it runs it.
START_TIMEOUT_S = 60.0
_END_TIMEOUT_S = 5.0
_SAID_BYTES = 2000


class NativeMachine:
    """A running trace processor. Raises `EngineError` if it cannot be started, does not answer or ends."""

    def __init__(self, program: str, start_timeout_s: float = START_TIMEOUT_S) -> None:
        self.program = program
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed with this
        self._waits_s: float | None = start_timeout_s
        try:
            self._process = subprocess.Popen(
                [program, "--stdiod"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log
            )
        except OSError as error:
            self._log.close()
            raise EngineError(f"the trace processor {program} cannot be started: {error.strerror}") from error

    def exchange(self, request: bytes) -> IO[bytes]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(request)
            self._process.stdin.flush()
        except OSError as error:
            raise EngineError(f"the trace processor ended: {self.why_ended()}") from error
        if self._waits_s is not None:
            self._wait_for_first(self._process.stdout, self._waits_s)
        return self._process.stdout

    def _wait_for_first(self, replies: IO[bytes], timeout_s: float) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(replies, selectors.EVENT_READ)
            if not selector.select(timeout_s):
                self._process.kill()
                raise EngineError(
                    f"the trace processor {self.program} did not answer within {timeout_s:g} s{self._said()}"
                )
        self._waits_s = None

    def why_ended(self) -> str:
        self._end()
        status = self._process.returncode
        how = f"exit status {status}" if status >= 0 else f"signal {-status}"
        return f"{self.program}, which has to know --stdiod (as since 2023), left with {how}{self._said()}"

    def _said(self) -> str:
        self._log.seek(0)
        said = self._log.read().decode("utf-8", "replace").strip()[-_SAID_BYTES:]
        return f": {said.splitlines()[-1]}" if said else ""

    def close(self) -> None:
        """Ends it: it leaves when its stdin does."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        self._process.stdout.close()
        self._end()
        self._log.close()

    def _end(self) -> None:
        try:
            self._process.wait(_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
