"""`pytest --gputrace FILE`: what the trace shows of each test, and that pytest does as it does without."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.engine import Slice
from tests.hot.twin import in_twin
from tests.record.running import PYTHON, left_behind, recording, run
from tests.testing.running import PLAIN, outcomes, per_test, read, run_pytest

SUITE = """
import os, subprocess, sys
import pytest
import gputrace

@pytest.fixture(scope="module")
def data():
    yield 3

@pytest.fixture
def row(data):
    return data

@pytest.mark.parametrize("n", [1, 2])
def test_ok(row, n):
    with gputrace.span("work", n=n):
        pass

def test_bad():
    raise KeyError("wrong")

def test_skips():
    pytest.skip("not today")

@pytest.mark.xfail
def test_expected():
    assert 0

@pytest.mark.xfail
def test_unexpected():
    pass

@pytest.fixture
def broken():
    raise OSError("no")

def test_setup(broken):
    pass

@pytest.fixture
def leaks():
    yield
    raise ValueError("torn down")

def test_teardown(leaks):
    pass
"""
WANTED = {
    "test_ok[1]": "passed",
    "test_ok[2]": "passed",
    "test_bad": "failed",
    "test_skips": "skipped",
    "test_expected": "xfailed",
    "test_unexpected": "xpassed",
    "test_setup": "error",
    "test_teardown": "error",
}


def wanted() -> dict[str, str]:
    return {f"test_it.py::{name}": outcome for name, outcome in WANTED.items()}


def short(test: Slice) -> str:
    return test.name.removeprefix("test_it.py::")


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    (tmp_path / "test_it.py").write_text(SUITE)
    return tmp_path


def test_each_test_is_a_span_with_its_phases_fixtures_and_outcome(suite: Path) -> None:
    done = run_pytest(suite, "--gputrace", "trace.pftrace", "--gputrace-device", "host")
    assert done.returncode == 1, done.stderr
    assert b"gputrace: wrote trace.pftrace" in done.stderr
    assert left_behind(suite) == []
    found = read(suite / "trace.pftrace")
    assert outcomes(found) == wanted()
    assert [test.name for test, _ in per_test(found)] == [*wanted()]
    shown = {short(test): [(each.depth, each.name) for each in inside] for test, inside in per_test(found)}
    assert shown["test_ok[1]"] == [
        (1, "setup"),
        (2, "fixture data"),
        (2, "fixture row"),
        (2, "fixture n"),
        (1, "call"),
        (2, "work"),
        (1, "teardown"),
        (1, "passed"),
    ]
    assert (2, "fixture data") not in shown["test_ok[2]"]  # the module's has been set up
    assert shown["test_setup"] == [(1, "setup"), (2, "fixture broken"), (1, "teardown"), (1, "error")]
    torn = [(1, "teardown"), (2, "teardown of leaks"), (2, "teardown of data"), (1, "error")]
    assert shown["test_teardown"][-4:] == torn
    errors = {short(test): test.args.get("error") for test, _ in per_test(found)}
    assert errors == dict.fromkeys(WANTED) | {
        "test_bad": "KeyError",
        "test_setup": "OSError",
        "test_teardown": "ValueError",
    }
    assert all(each.dur >= 0 for each in found)
    assert len({each.track for each in found}) == 1


def test_tests_of_one_name_stay_apart(tmp_path: Path) -> None:
    """In a summary, which goes by spans' names, too."""
    ids = [f"{folder}/test_it.py::{test}" for folder in "ab" for test in ("test_it", "TestIt::test_it")]
    for folder in "ab":
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "test_it.py").write_text(
            "def test_it(): pass\nclass TestIt:\n    def test_it(self): pass\n"
        )
    options = ["--gputrace", "trace.pftrace", "--gputrace-device", "host", "--import-mode=importlib"]
    done = run_pytest(tmp_path, *options)
    assert done.returncode == 0, done.stdout
    assert [test.name for test, _ in per_test(read(tmp_path / "trace.pftrace"))] == ids
    told = run([PYTHON, "-m", "gputrace", "summary", "--csv", "trace.pftrace"], tmp_path).stdout.decode()
    assert [told.count(f"{each},") for each in ids] == [1] * 4


ALONE = ["-p", "no:xdist", "-p", "no:terminal"]


@pytest.mark.parametrize("how", [["-n2"], ["-n2", "--dist=loadfile"], ["-n0"], ALONE], ids=" ".join)
def test_workers_land_in_one_file_with_a_process_each(suite: Path, how: list[str]) -> None:
    (suite / "test_other.py").write_text("def test_other(): pass")
    done = run_pytest(suite, "--gputrace", "trace.json.gz", "--gputrace-device", "host", *how)
    assert done.returncode == 1, done.stderr
    assert left_behind(suite) == []
    found = read(suite / "trace.json.gz")
    assert outcomes(found) == wanted() | {"test_other.py::test_other": "passed"}
    names = Counter(track[0].rpartition(" ")[0] for track in {each.track for each in found})
    assert names == ({"pytest gw0": 1, "pytest gw1": 1} if how[0] == "-n2" else {"pytest": 1})


CRASHES = """
import os, signal
import pytest

@pytest.mark.parametrize("n", range(4))
def test_before(n): pass

def test_crash():
    os.kill(os.getpid(), signal.SIGKILL)

@pytest.mark.parametrize("n", range(4))
def test_after(n): pass
"""


@in_twin("compiled")  # the pure one loses what a kill is too quick for
def test_a_worker_that_crashes_leaves_the_test_it_crashed_in(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(CRASHES)
    plain = run_pytest(tmp_path, "-n1")
    done = run_pytest(tmp_path, "-n1", "--gputrace", "trace.pftrace", "--gputrace-device", "host")
    assert done.returncode == plain.returncode == 1
    assert b"1 process ended without cleaning up" in done.stderr
    found = read(tmp_path / "trace.pftrace")
    [crashed] = [each for each in found if short(each) == "test_crash"]
    assert crashed.track[0].startswith("pytest gw0 ")
    assert [(short(each), each.dur) for each in found if each.dur == -1] == [("test_crash", -1), ("call", -1)]
    assert Counter(outcomes(found).values()) == {"passed": 8}
    assert {track[0].rpartition(" ")[0] for track in {each.track for each in found}} == {"pytest gw0", "pytest gw1"}


# What pytest-forked does with each test.
FORKED = """
import os, pickle, tempfile
from _pytest.runner import runtestprotocol

def pytest_runtest_protocol(item, nextitem):
    with tempfile.TemporaryFile() as file:
        pid = os.fork()
        if not pid:
            reports = runtestprotocol(item, log=False)
            file.write(pickle.dumps([item.config.hook.pytest_report_to_serializable(config=item.config, report=each)
                                     for each in reports]))
            file.flush()
            os._exit(0)
        os.waitpid(pid, 0)
        file.seek(0)
        for each in pickle.loads(file.read()):
            report = item.config.hook.pytest_report_from_serializable(config=item.config, data=each)
            item.ihook.pytest_runtest_logreport(report=report)
    return True
"""


@pytest.mark.parametrize("twin", ["compiled", "pure"])
def test_tests_in_forked_children_are_processes_of_their_own(suite: Path, twin: str) -> None:
    (suite / "conftest.py").write_text(FORKED)
    environment = {**os.environ, **({"GPUTRACE_PURE": "1"} if twin == "pure" else {})}
    done = run_pytest(suite, "--gputrace", "trace.pftrace", "--gputrace-device", "host", env=environment)
    assert done.returncode == 1, done.stdout
    found = read(suite / "trace.pftrace")
    parents = [test for test in found if test.depth == 0 and short(test) in WANTED]
    assert [short(test) for test in parents] == [*WANTED]
    calls = [each for each in found if each.name == "setup"]
    assert len({each.track[0] for each in calls}) == len(WANTED)
    assert parents[0].track not in {each.track for each in calls}
    for test in parents:  # its child's phases lie within it
        [setup] = [each for each in calls if each.args["nodeid"] == test.args["nodeid"]]
        assert test.ts <= setup.ts < setup.ts + setup.dur <= test.ts + test.dur


def test_a_program_that_a_test_starts_is_traced_and_the_environment_put_back(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("""
import subprocess, sys
def test_starts():
    subprocess.run([sys.executable, "-c", "import gputrace\\nwith gputrace.span('inner'): pass"], check=True)
""")
    program = """
import os, sys, pytest
before = dict(os.environ)
options = ["-p", "no:cacheprovider", "-p", "no:hypothesispytest", "--gputrace-device", "host", "--gputrace"]
codes = [pytest.main([*options, f"{n}.pftrace"]) for n in "ab"]
after = {name: value for name, value in os.environ.items() if name != "PYTEST_VERSION"}
sys.exit(str((codes, before, after)) if any(codes) or before != after else 0)
"""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = run([PYTHON, "-c", program], tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    for name in "ab":  # twice in one process, too
        found = read(tmp_path / f"{name}.pftrace")
        [test], [inner] = [[e for e in found if short(e) == wanted] for wanted in ("test_starts", "inner")]
        assert test.track[0] != inner.track[0]
        assert test.ts < inner.ts < test.ts + test.dur


@pytest.mark.parametrize("option", [[], ["--gputrace", "own.pftrace"], ["-p", "no:gputrace"]])
def test_under_record_the_tests_are_in_its_trace(suite: Path, option: list[str]) -> None:
    command = [PYTHON, "-m", "pytest", *PLAIN, "-n2", *option]
    done = run(recording(*command), suite)
    assert done.returncode == 1
    assert not (suite / "own.pftrace").exists()
    found = read(suite / "trace.pftrace")
    assert [each.name for each in found].count("work") == 2
    assert outcomes(found) == ({} if "no:gputrace" in option else wanted())
    assert (b"own.pftrace was not written" in done.stderr) == ("own.pftrace" in option)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--gputrace", "nowhere/t.pftrace"], b"the folder"),
        (["--gputrace", "t.docx"], b"--gputrace: "),
        (["--gputrace", "t.pftrace", "--gputrace-device", "tpu"], b"unknown device 'tpu'"),
        (["--gputrace", "."], b"--gputrace: "),
    ],
)
def test_what_cannot_be_recorded_is_refused_before_the_run(suite: Path, options: list[str], said: bytes) -> None:
    done = run_pytest(suite, *options)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert said in done.stderr
    assert b"Traceback" not in done.stderr
    assert b"test session starts" not in done.stdout
    assert {*os.listdir(suite)} <= {"test_it.py", "__pycache__"}


def test_a_trace_that_cannot_be_written_at_the_end_changes_no_exit_code(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    # Renamed first: a folder that is being written into cannot be removed in one go.
    (tmp_path / "test_it.py").write_text(
        "import os, shutil\ndef test_it(): os.rename('out', 'gone'), shutil.rmtree('gone', ignore_errors=True)"
    )
    done = run_pytest(tmp_path, "--gputrace", "out/trace.pftrace", "--gputrace-device", "host")
    assert done.returncode == 0
    assert b"gputrace: " in done.stderr
    assert b"Traceback" not in done.stderr


def test_no_tests_is_what_pytest_says_it_is(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, "--gputrace", "trace.pftrace", "--gputrace-device", "host")
    assert done.returncode == pytest.ExitCode.NO_TESTS_COLLECTED
    assert b"nothing was traced" in done.stderr
    assert left_behind(tmp_path) == []


def test_without_the_option_nothing_of_recording_or_measuring_is_imported(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("def test_it(): pass")
    (tmp_path / "conftest.py").write_text(
        "def pytest_unconfigure():\n import sys\n print([m for m in sys.modules if m.startswith('gputrace')])"
    )
    environment = {name: value for name, value in os.environ.items() if name != "GPUTRACE_RECORD"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"], cwd=tmp_path, env=environment, stdout=-1
    )
    assert done.returncode == 0
    found = set(ast.literal_eval(done.stdout.decode().splitlines()[-1]))
    assert {name for name in found if name.startswith("gputrace.testing.")} == {"gputrace.testing.plugin"}
    assert found.isdisjoint({"gputrace.record.recording", "gputrace.cli", "gputrace.profiler", "gputrace.devices.cuda"})
