"""`gputrace.trace`: recording from inside a program, and refusing to."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import gputrace
from gputrace import tracer
from gputrace.devices.simulated import default_gpu
from gputrace.errors import NoDriver, OutputError, UsageError
from tests.engine import Engine, Slice, assert_clean, slices
from tests.recorded import recording

ROOT = Path(__file__).parents[1]


def load(path: Path) -> list[Slice]:
    data = path.read_bytes()
    engine = Engine(gzip.decompress(data) if path.suffix == ".gz" else data)
    assert_clean(engine)
    return slices(engine)


@pytest.fixture(autouse=True)
def nothing_records_afterwards() -> Any:
    yield
    running = tracer.current()
    assert running is None


@pytest.mark.parametrize("name", ["t.pftrace", "t.pftrace.gz", "t.json", "t.json.gz", "T.PFTRACE", "ünï 'q\" .json"])
def test_a_recording(tmp_path: Path, name: str) -> None:
    output = tmp_path / name
    with gputrace.trace(output, device="simulated") as trace:
        assert trace.summary is None
        stream = default_gpu().stream("compute")
        with gputrace.span("outer", stream, step=1):
            stream.launch(1_000_000)
            gputrace.instant("here")
        gputrace.counter("loss", 0.5)
    summary = trace.summary
    assert summary is not None
    assert (summary.path, summary.size) == (str(output), output.stat().st_size)
    assert (summary.slices, summary.windows, summary.processes) == (2, 1, 1)
    assert (summary.dropped, summary.failed, summary.unfinished, summary.told) == (0, 0, 0, [])
    assert 0 < summary.worst_uncertainty_ns < 10_000_000
    drawn = load(output)
    assert sorted(s.name or "" for s in drawn) == ["here", "outer", "outer"]
    assert os.listdir(tmp_path) == [name]


def test_times_are_of_this_machine(tmp_path: Path) -> None:
    """Trace time is CLOCK_BOOTTIME: as another tool's trace of the same moment has it."""
    output = tmp_path / "t.pftrace"
    with gputrace.trace(str(output), device="host"):
        before = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        with gputrace.span("x"):
            pass
        after = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    (s,) = load(output)
    assert before - 1000 <= s.ts <= s.ts + s.dur <= after + 1000


def test_start_and_stop(tmp_path: Path) -> None:
    trace = gputrace.trace(tmp_path / "t.pftrace", device="host")
    with pytest.raises(UsageError, match="call start"):
        trace.stop()
    assert trace.start() is trace
    with gputrace.span("x"):
        pass
    summary = trace.stop()
    assert trace.stop() is summary
    assert trace.summary is summary
    assert summary.slices == 1


def test_twice_in_one_process(tmp_path: Path) -> None:
    """The second is clean of the first: slices, counts, tracks."""
    trace = gputrace.trace(tmp_path / "one.pftrace", device="simulated")
    kept = None
    for n, name in enumerate(["one", "two", "three"]):
        trace = gputrace.trace(tmp_path / f"{name}.pftrace", device="simulated")
        with trace:
            stream = default_gpu().stream()
            for _ in range(n + 1):
                with gputrace.span(name, stream):
                    pass
            gputrace.counter("c", n)
            if kept is not None:
                kept.__exit__(None, None, None)
            kept = gputrace.span("left open")
            kept.__enter__()
        assert trace.summary is not None
        assert trace.summary.windows == n + 1
        assert trace.summary.unfinished == 1
        drawn = load(tmp_path / f"{name}.pftrace")
        assert [s.name for s in drawn if s.name != "left open"] == [name] * (2 * (n + 1))
        assert len([s for s in drawn if s.name == "left open"]) == 1


def test_one_object_twice(tmp_path: Path) -> None:
    trace = gputrace.trace(tmp_path / "t.pftrace", device="host")
    for n in range(2):
        with trace:
            for _ in range(n + 1):
                with gputrace.span("x"):
                    pass
        assert trace.summary is not None
        assert trace.summary.slices == n + 1
    assert len(load(tmp_path / "t.pftrace")) == 2


def test_a_recording_inside_another_is_refused(tmp_path: Path) -> None:
    with gputrace.trace(tmp_path / "t.pftrace", device="host") as outer:
        with gputrace.span("before"):
            pass
        inner = gputrace.trace(tmp_path / "inner.pftrace", device="host")
        with pytest.raises(UsageError, match="already"):
            inner.start()
        with pytest.raises(UsageError, match="already"), outer:
            pytest.fail("entered")
        with pytest.raises(UsageError):
            inner.stop()
        with gputrace.span("after"):
            pass
    assert [s.name for s in load(tmp_path / "t.pftrace")] == ["before", "after"]
    assert os.listdir(tmp_path) == ["t.pftrace"]


def test_an_error_inside(tmp_path: Path) -> None:
    class Error(Exception):
        pass

    raised = Error("mine")
    trace = gputrace.trace(tmp_path / "t.pftrace", device="host")
    with pytest.raises(Error) as caught, trace, gputrace.span("x"):
        raise raised
    assert caught.value is raised
    assert not getattr(raised, "__notes__", [])
    assert trace.summary is not None
    assert [(s.name, s.args) for s in load(tmp_path / "t.pftrace")] == [("x", {"error": "Error"})]


@pytest.mark.parametrize(
    ("output", "error", "says"),
    [
        ("nowhere/t.pftrace", OutputError, "does not exist"),
        ("file/t.pftrace", OutputError, "file"),
        ("folder.pftrace", OutputError, "folder"),
        ("t.txt", UsageError, ".pftrace, .json"),
        ("t", UsageError, "suffix"),
        ("t.gz", UsageError, "suffix"),
        ("t.pftrace.zip", UsageError, ".zip"),
        ("", UsageError, "suffix"),
    ],
)
def test_an_output_that_cannot_be(tmp_path: Path, output: str, error: type[Exception], says: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder.pftrace").mkdir()
    before = sorted(os.listdir(tmp_path))
    with pytest.raises(error, match=says):
        gputrace.trace(tmp_path / output if output else "", device="host").start()
    assert sorted(os.listdir(tmp_path)) == before
    with gputrace.span("tracing is off"):
        pass


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_an_output_without_permission(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(OutputError, match="Permission denied"):
            gputrace.trace(tmp_path / "t.pftrace", device="host").start()
    finally:
        tmp_path.chmod(0o700)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"last": "soon"}, "last 'soon' is no time"),
        ({"last": "10ms"}, "last 10ms is too short"),
        ({"counters": "soon"}, "counters 'soon' is no time"),
        ({"counters": "1ms"}, "counters 1ms is too often"),
        ({"max_size": "much"}, "max_size"),
        ({"path": "%q.pftrace"}, "%q stands for nothing"),
    ],
)
def test_an_error_is_of_what_the_program_said(tmp_path: Path, wrong: dict[str, str], told: str) -> None:
    """And not of a command line that there is not."""
    with pytest.raises(UsageError) as failure:
        gputrace.trace(**{"path": str(tmp_path / "t.pftrace"), "device": "host", **wrong}).start()  # type: ignore[arg-type]
    assert told in str(failure.value)
    assert " -o" not in f" {failure.value}"
    assert not str(failure.value).startswith("-")


def test_a_rank_is_told_what_its_file_is_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with gputrace.trace(tmp_path / "t.pftrace", device="host") as trace, gputrace.span("x"):
        pass
    assert trace.summary is not None
    [told] = trace.summary.told
    assert told.startswith(f"rank 1 writes {tmp_path / 't.rank1.pftrace'}, as every rank was given the output ")


def test_an_unknown_device(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="auto, cuda, simulated, host"):
        gputrace.trace(tmp_path / "t.pftrace", device="gpu").start()
    with pytest.raises(UsageError):
        gputrace.device("gpu")
    assert os.listdir(tmp_path) == []


def test_no_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`cuda` is refused, `auto` records the host and says why, and neither invents GPU data."""
    import ctypes

    from gputrace import devices

    def none(name: str) -> Any:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", none)
    with pytest.raises(NoDriver, match="no NVIDIA driver"):
        gputrace.trace(tmp_path / "t.pftrace", device="cuda").start()
    assert os.listdir(tmp_path) == []
    assert devices.choose("auto")[0] == "host"
    trace = gputrace.trace(tmp_path / "t.pftrace")
    with trace, gputrace.span("x", stream=0x7000), gputrace.use_stream(0x7000), gputrace.span("y"):
        pass
    assert trace.summary is not None
    assert (trace.summary.slices, trace.summary.windows) == (2, 0)


def test_an_existing_file_is_replaced_only_by_a_whole_one(tmp_path: Path) -> None:
    output = tmp_path / "t.pftrace"
    output.write_text("old")
    output.chmod(0o640)
    with gputrace.trace(output, device="host"):
        with gputrace.span("x"):
            pass
        assert output.read_text() == "old"
    assert len(load(output)) == 1
    assert output.stat().st_mode & 0o777 == 0o640


def test_nothing_traced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Somebody looks for the file: the summary says why there is none. What the program prints stays its own."""
    with gputrace.trace(tmp_path / "t.pftrace", device="host") as trace:
        pass
    assert trace.summary is not None
    assert (trace.summary.slices, trace.summary.path) == (0, "")
    [told] = trace.summary.told
    assert told.startswith(f"{tmp_path / 't.pftrace'} was not written: nothing was traced: one Python process ran and ")
    assert capsys.readouterr().err == ""
    assert [name for name in os.listdir(tmp_path) if name != "t.pftrace"] == []


def test_stopped_by_another_thread(tmp_path: Path) -> None:
    trace = gputrace.trace(tmp_path / "t.pftrace", device="host").start()
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            with gputrace.span("x"):
                pass

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    with gputrace.span("main"):
        pass
    stopper = threading.Thread(target=trace.stop)
    stopper.start()
    stopper.join()
    stop.set()
    for thread in threads:
        thread.join()
    assert trace.summary is not None
    assert [s.name for s in load(tmp_path / "t.pftrace") if s.name != "x"] == ["main"]


def run(program: str, *arguments: object, options: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *options, "-c", program, *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def test_a_program_that_ends_without_stopping(tmp_path: Path) -> None:
    """Its trace is written at exit, as it would be by the block's end."""
    done = run(
        """
import sys, gputrace
trace = gputrace.trace(sys.argv[1], device="host")
trace.start()
with gputrace.span("x"):
    sys.exit(3)
""",
        tmp_path / "t.pftrace",
    )
    assert (done.returncode, done.stdout, done.stderr) == (3, "", "")
    assert [s.name for s in load(tmp_path / "t.pftrace")] == ["x"]
    assert os.listdir(tmp_path) == ["t.pftrace"]


def test_threads_that_outlive_the_main_one(tmp_path: Path) -> None:
    done = run(
        """
import sys, threading, time, gputrace
trace = gputrace.trace(sys.argv[1], device="host")
trace.start()
def work():
    main = threading.main_thread()
    while main.is_alive():
        time.sleep(0.001)
    with gputrace.span("late"):
        pass
threading.Thread(target=work).start()
""",
        tmp_path / "t.pftrace",
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert [s.name for s in load(tmp_path / "t.pftrace")] == ["late"]


def test_spans_in_exit_handlers_and_finalisers(tmp_path: Path) -> None:
    """Shutdown is the worst time to start a thread or import anything."""
    done = run(
        """
import atexit, sys, gputrace
class Last:
    def __del__(self):
        with gputrace.span("finaliser", a=object()):
            gputrace.counter("c", 1)
        gputrace.window("w").close()
last = Last()
def handler():
    with gputrace.span("handler"):
        pass
with gputrace.trace(sys.argv[1], device="host"):
    pass
trace = gputrace.trace(sys.argv[1], device="host").start()
atexit.register(handler)
@gputrace.span("decorated")
def f(): pass
atexit.register(f)
""",
        tmp_path / "t.pftrace",
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert {s.name for s in load(tmp_path / "t.pftrace")} == {"handler", "decorated"}


def test_the_file_says_what_was_recorded(tmp_path: Path) -> None:
    with gputrace.trace(tmp_path / "t.json", device="simulated"), gputrace.span("x", default_gpu().stream()):
        pass
    events = json.loads((tmp_path / "t.json").read_text())
    facts: dict[str, Any] = {}
    for event in events:
        if event.get("name") == "gputrace.metadata":
            facts |= event["args"]
    assert facts["gputrace_version"] == gputrace.__version__
    assert facts["device"] == "simulated"
    assert facts["windows"] == 1
    assert facts["command_line"]
    assert not any("PATH" in str(value) and os.environ["PATH"] in str(value) for value in facts.values())


# --- tracing off --------------------------------------------------------------------------------------------------

#: What `import gputrace` may add to an interpreter that has nothing. Add to it with care: every process of a traced
#: program pays.
STANDARD = """
    __future__ _bisect _collections _collections_abc _contextvars _functools _heapq _operator _stat atexit
    bisect collections contextlib errno fcntl functools genericpath itertools keyword operator os os.path
    posixpath reprlib stat types
"""


def test_importing_it_imports_nothing_else() -> None:
    done = run(
        """
import sys
sys.path.insert(0, sys.argv[1])
before = set(sys.modules)
import gputrace
with gputrace.span("x", a=1):
    pass
gputrace.counter("c", 1); gputrace.instant("i"); gputrace.failure("f"); gputrace.window("w").close()
with gputrace.use_stream(5):
    pass
print(*sorted(m for m in set(sys.modules) - before if not m.startswith("gputrace")))
print(*sorted(m for m in set(sys.modules) - before if m.startswith("gputrace")))
""",
        ROOT,
        options=("-I", "-S"),
    )
    assert done.returncode == 0, done.stderr
    others, ours = (set(line.split()) for line in done.stdout.splitlines())
    assert others <= {*STANDARD.split()}
    assert not ours & {"gputrace.api", "gputrace.profiler", "gputrace.measurement", "gputrace.exporters"}
    assert not any(m.startswith(("gputrace.record", "gputrace.cli", "gputrace.devices.cuda")) for m in ours)


def test_tracing_off_is_nothing(tmp_path: Path) -> None:
    ran = []
    with gputrace.span("x", stream=object(), a=object()) as span:
        ran.append(span)
    assert ran
    assert gputrace.span("x") is gputrace.span("x"), "no object is made for a plain span"
    window = gputrace.window("w", 5)
    window.abandon()
    window.failure(1)
    window.close()
    with gputrace.use_stream("nonsense"):
        pass
    gputrace.counter("c", "no number")  # type: ignore[arg-type]
    gputrace.failure(object(), "nonsense")
    with pytest.raises(KeyError), gputrace.span("x"):
        raise KeyError
    assert tracer.current() is None


def test_names_that_are_there() -> None:
    for name in gputrace.__all__:
        assert getattr(gputrace, name) is not None
        assert name in dir(gputrace)
    with pytest.raises(AttributeError, match="nothing_like_it"):
        _ = gputrace.nothing_like_it


def test_a_window_closes_with_its_block(tmp_path: Path) -> None:
    with recording(tmp_path) as run:
        stream = run.stream()
        with gputrace.window("w", stream=stream) as window:
            stream.launch(1_000_000)
        window.close()
        with pytest.raises(KeyError), gputrace.window("failed", stream=stream):
            raise KeyError("x")
    assert sorted(s.name for s in run.slices) == ["failed", "failed", "w", "w"]
    assert all(s.dur >= 0 for s in run.slices)
    assert {s.args.get("error") for s in run.named("failed")} == {"KeyError: 'x'"}


def test_a_program_that_records_itself_under_record(tmp_path: Path) -> None:
    """Whoever records from outside has it all: the program runs as it would, and its own trace is not written."""
    inside, outside = tmp_path / "inside.pftrace", tmp_path / "outside.pftrace"
    program = f"""
import gputrace
with gputrace.trace({str(inside)!r}, device="host") as trace:
    with gputrace.span("x"):
        pass
assert trace.summary.path == ""
"""
    command = [sys.executable, "-m", "gputrace.cli.main", "record", "--device", "host", "-o", str(outside), "--"]
    done = subprocess.run(
        [*command, sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=100,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    assert f"{inside} was not written" in done.stderr
    assert outside.exists()
    assert not inside.exists()


def test_profilers_by_kind() -> None:
    stream = default_gpu().stream()
    for kind in (gputrace.EventProfiler, gputrace.TimestampProfiler):
        profiler = kind("simulated")
        token = profiler.start(stream)
        stream.launch(200_000)
        assert profiler.stop(stream, token).result(10).duration_ns >= 200_000
        profiler.close()
    with pytest.raises(UsageError, match="simulated"):
        gputrace.EventProfiler("rocm")


def test_two_threads_that_start_at_once(tmp_path: Path) -> None:
    """One records, the other is refused; nobody loses a span to the other."""
    barrier = threading.Barrier(2)
    outcomes: list[Any] = []

    def work(number: int) -> None:
        barrier.wait()
        try:
            recorder = gputrace.trace(tmp_path / f"{number}.json", device="host").start()
        except UsageError as error:
            outcomes.append(error)
            return
        for _ in range(10):
            with gputrace.span("x"):
                pass
        barrier.wait()
        outcomes.append(recorder.stop().slices)

    for _ in range(5):
        outcomes.clear()
        threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        while not outcomes:
            time.sleep(0.001)  # the refused one has come back: the other may stop
        barrier.wait()
        for thread in threads:
            thread.join()
        refused, slices_of_other = sorted(outcomes, key=lambda each: isinstance(each, int))
        assert isinstance(refused, UsageError)
        assert slices_of_other == 10


def test_a_window_that_two_threads_close_at_once(tmp_path: Path) -> None:
    """One of them does: a second end would be taken for a begin."""
    with recording(tmp_path) as run:
        stream = run.stream()
        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        try:
            for number in range(300):
                window = gputrace.window("w", stream=stream)
                barrier = threading.Barrier(2)

                def close(how: str, window: Any = window, barrier: threading.Barrier = barrier) -> None:
                    barrier.wait()
                    getattr(window, how)()

                others = ("close", "abandon") if number % 2 else ("close", "close")
                threads = [threading.Thread(target=close, args=(how,)) for how in others]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
        finally:
            sys.setswitchinterval(interval)
    assert len(run.host) == 300
    assert run.report["unfinished"] == 0


def test_a_url_is_refused_and_says_what_takes_one() -> None:
    with pytest.raises(OutputError, match=r"s3://bucket/t\.pftrace: .* gputrace record -o write it, which takes URLs"):
        gputrace.trace("s3://bucket/t.pftrace", device="host").start()
