"""A pytest run as a recording: a span a test, its phases and fixtures inside, and one trace for all processes.

What the tests start is traced as under `gputrace record`, by the environment: xdist's workers among it. The controller
joins what all of them left.
"""

from __future__ import annotations

import inspect
import os
import time

import pytest

from gputrace import hot, tracer
from gputrace.cli.outcome import tell, tell_empty
from gputrace.cli.say import say
from gputrace.errors import GputraceError
from gputrace.instrument.registry import choose
from gputrace.record import environment
from gputrace.record.recording import Session, discard_recording, finish_recording, start_recording

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator
    from typing import Any

_SNAPSHOT_EVERY_S = 10.0
_VARIABLES = ("PYTHONPATH", environment.FOLDER_VARIABLE)


def begin(config: pytest.Config, output: str | None) -> None:
    """Record into ``output`` from now on; where something records this process already, only add the tests to that.

    Raises `pytest.UsageError` if ``output`` cannot be written, or the device that was asked for cannot be used.
    """
    running, recording = tracer.current(), None
    worker = getattr(config, "workerinput", {}).get("workerid")
    if running is None and worker is not None:
        return  # on another host than the controller, or cut off from its environment
    if running is None and output is not None:
        try:
            recording = _Recording(output, config.getoption("gputrace_device"))
        except GputraceError as error:
            raise pytest.UsageError(f"--gputrace: {error}") from None
    elif running is not None and worker is not None:
        running.name = f"pytest {worker}"
    elif running is not None and output is not None:
        who = "gputrace.trace" if running.own else "`gputrace record`"
        running.tell(f"{output} was not written: {who} records this process already")
    config.pluginmanager.register(_Spans(recording, config.get_verbosity() < -1))


class _Recording:
    """This process's recording, and that of all it starts meanwhile. Raises as `start_recording` does."""

    def __init__(self, output: str, device: str) -> None:
        self.session: Session = start_recording(output, device, instruments=choose())
        self._old = os.path.exists(self.session.output)
        self._snapshot_s = time.monotonic()
        try:
            # As a launched process's, not `own`: what it forks is traced too.
            self._tracer = tracer.Tracer(self.session.folder, self.session.device)
        except OSError as error:
            discard_recording(self.session)
            raise GputraceError(f"cannot start to record: {error}") from error
        self._before = {name: os.environ.get(name) for name in _VARIABLES}
        os.environ.update(environment.for_command(os.environ, self.session.folder.path))
        self._tracer.start()
        if self.session.renamed:
            say(self.session.renamed)

    def take_snapshot(self) -> None:
        """Note the host's clocks, now and then."""
        if time.monotonic() - self._snapshot_s > _SNAPSHOT_EVERY_S:
            self._snapshot_s = time.monotonic()
            self.session.take_snapshot()

    def finish(self, quiet: bool) -> None:
        """Write the trace and say what it came to. Raises nothing: the run's exit code is pytest's."""
        try:
            self._tracer.stop()
            self._put_back()
            summary = finish_recording(self.session)
            if summary.path:
                tell(summary, quiet)
            else:
                tell_empty(summary, self.session.output if self._old else "")
        except GputraceError as error:
            say(str(error))
        except (Exception, KeyboardInterrupt) as error:
            why = "interrupted" if isinstance(error, KeyboardInterrupt) else f"{type(error).__name__}: {error}"
            say(f"the trace was not written: {why}. {self.session.how_to_recover()}")

    def _put_back(self) -> None:
        for name, value in self._before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


class _Open:
    """A span from here to `close`. Entered by a plain function: a hook's generator is no task of the program's, and
    pluggy unwinds hooks in order.
    """

    def __init__(self, name: str, **args: str) -> None:
        self._span = hot.span(name, **args)
        self._span.__enter__()

    def close(self, error: BaseException | None = None) -> None:
        """End it; an ``error`` other than a skip is named in its args."""
        failed = error is not None and not isinstance(error, pytest.skip.Exception | pytest.xfail.Exception)
        self._span.__exit__(type(error) if failed else None, None, None)


class _Spans:
    """The hooks. ``recording`` is None where another process, or the program, joins what is recorded here."""

    def __init__(self, recording: _Recording | None, quiet: bool) -> None:
        self._recording = recording
        self._quiet = quiet
        self._pid = os.getpid()
        self._outcomes: dict[str, tuple[str, BaseException | None]] = {}
        self._named = False

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        opened = _Open(item.nodeid, nodeid=item.nodeid)  # a name alone may be of tests in other files, too
        if not self._named:  # so that a first test that crashes is of a process with a name
            self._named = True
            _write_now()
        outcome: tuple[str, BaseException | None] = ("interrupted", None)
        try:
            result = yield
            outcome = self._outcomes.pop(item.nodeid, ("unknown", None))
            return result
        except BaseException as error:
            outcome = ("interrupted", error)
            raise
        finally:
            # What a span's args say is fixed where it opens, so the outcome is a mark inside, at its end.
            hot.instant(outcome[0], nodeid=item.nodeid, outcome=outcome[0])
            opened.close(outcome[1])

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, Any, Any]:
        self._outcomes.pop(item.nodeid, None)
        return (yield from _inside("setup", nodeid=item.nodeid))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, Any]:
        return (yield from _inside("call", nodeid=item.nodeid))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, Any, Any]:
        return (yield from _inside("teardown", nodeid=item.nodeid))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
    ) -> Generator[None, Any, Any]:
        facts = {"fixture": fixturedef.argname, "scope": str(fixturedef.scope)}
        if not (inspect.isgeneratorfunction(fixturedef.func) or inspect.isasyncgenfunction(fixturedef.func)):
            return (yield from _inside(f"fixture {fixturedef.argname}", **facts))
        # Finalizers run last in, first out: these two stand around the fixture's own.
        opened: list[_Open] = []
        fixturedef.addfinalizer(lambda: opened.pop().close() if opened else None)
        result = yield from _inside(f"fixture {fixturedef.argname}", **facts)
        fixturedef.addfinalizer(lambda: opened.append(_Open(f"teardown of {fixturedef.argname}", **facts)))
        return result

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[Any]) -> Generator[None, Any, Any]:
        report: pytest.TestReport = yield
        outcome, _ = self._outcomes.get(item.nodeid, ("passed", None))
        if report.outcome != "passed" or hasattr(report, "wasxfail") or outcome == "passed":
            error = call.excinfo.value if report.failed and call.excinfo else None
            self._outcomes[item.nodeid] = (_outcome(report), error)
        if report.when == "teardown" and os.getpid() != self._pid:
            _write_now()  # a forked child: whoever forked it leaves by os._exit
        return report

    def pytest_runtest_logreport(self) -> None:
        if self._recording is not None and os.getpid() == self._pid:
            self._recording.take_snapshot()

    def pytest_unconfigure(self) -> None:
        if os.getpid() != self._pid:
            return  # a forked child came here: the recording is its parent's
        if self._recording is not None:
            self._recording.finish(self._quiet)
        else:
            _write_now()  # a worker that does not end when it is told to is killed


def _inside(name: str, **args: str) -> Generator[None, Any, Any]:
    """A span around the rest of a hook."""
    opened, raised = _Open(name, **args), None
    try:
        return (yield)
    except BaseException as error:
        raised = error
        raise
    finally:
        opened.close(raised)


def _outcome(report: pytest.TestReport) -> str:
    """A report's outcome in the words of pytest's last line, in the singular."""
    if hasattr(report, "wasxfail"):
        return "xfailed" if report.skipped else "xpassed"
    return "error" if report.failed and report.when != "call" else report.outcome


def _write_now() -> None:
    running = tracer.current()
    if running is not None:
        running.write_now()
