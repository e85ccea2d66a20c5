"""The process behind `on_fake_driver`: forks a child for each test it is sent."""

from __future__ import annotations

import contextlib
import importlib
import os
import select
import signal
import sys
import tempfile
import traceback
from typing import IO, Any

from tests.fake_driver.isolated import receive, send


def run_test(module: str, name: str, args: Any, kwargs: Any, settings: dict[str, Any]) -> tuple[str, str]:
    for setting, value in settings.items():
        os.environ[f"FAKE_CUDA_{setting.upper()}"] = str(value)
    try:
        test: Any = importlib.import_module(module)
        for part in name.split("."):
            test = getattr(test, part)
        test.__wrapped__(*args, **kwargs)
    except BaseException as error:
        if type(error).__name__ == "Skipped":
            return "skipped", str(error)
        return "failed", traceback.format_exc()
    return "passed", ""


def in_child(request: tuple[Any, ...], limit_s: float) -> tuple[str, str]:
    """Run one test in a fork; a child that dies or hangs is a failure that says so, with what it printed."""
    with tempfile.TemporaryFile() as printed:
        reader, writer = (os.fdopen(end, mode) for end, mode in zip(os.pipe(), ("rb", "wb"), strict=True))
        child = os.fork()
        if child == 0:
            os.dup2(printed.fileno(), 1)
            os.dup2(printed.fileno(), 2)
            outcome = run_test(*request)
            sys.stdout.flush()
            sys.stderr.flush()
            send(writer, outcome)
            os._exit(0)
        writer.close()
        with reader:
            outcome = _outcome_of(child, reader, limit_s)
        printed.seek(0)
        output = printed.read().decode(errors="replace")
        return outcome[0], outcome[1] + (f"\nprinted:\n{output}" if output and outcome[0] == "failed" else "")


def _outcome_of(child: int, reader: IO[bytes], limit_s: float) -> tuple[str, str]:
    outcome: tuple[str, str]
    if not select.select([reader], [], [], limit_s)[0]:
        os.kill(child, signal.SIGKILL)
        outcome = "failed", f"still running after {limit_s} s"
    else:
        try:
            outcome = receive(reader)
        except EOFError:
            outcome = "failed", "the process died"
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    return outcome if code == 0 else ("failed", f"{outcome[1]} (exit code {code})")


def explain_asserts() -> None:
    """Have pytest rewrite the tests' asserts here too, so that a failure shows both sides."""
    from _pytest.assertion import install_importhook  # no public name for it; without it asserts are merely terse
    from _pytest.config import get_config

    install_importhook(get_config()).mark_rewrite("tests")


def main() -> None:
    # The program's own prints must not get into the answers.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    with contextlib.suppress(Exception):
        explain_asserts()
    importlib.import_module("cuda.bindings.driver")  # imports, but does not yet load the library
    while True:
        try:
            *request, limit_s = receive(sys.stdin.buffer)
        except EOFError:
            return
        send(answers, in_child(tuple(request), limit_s))


if __name__ == "__main__":
    main()
