"""Which part of a run to record: what is asked for is recorded, and what cannot be is refused in words."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputrace.errors import UsageError
from gputrace.record.region import calls_options, duration_in_ns, region_options
from gputrace.regions import STEP
from tests.engine import Engine, assert_clean, slices
from tests.record.running import GPUTRACE, PYTHON, recording, run

#: Opens spans before, in and behind the region, waiting for it to begin and to end; says whether it saw a beginning.
PROGRAM = """
import time, gputrace
def records():
    return type(gputrace.span("probe")).__name__ == "Span"
def wait_for(on):
    while records() is not on:
        assert time.monotonic() < end_s
        time.sleep(0.001)
end_s = time.monotonic() + 30
early = records()
with gputrace.span("before"):
    wait_for(True)
with gputrace.span("inside"):
    pass
wait_for(False)
with gputrace.span("behind"):
    pass
print(early)
"""
STEPS = """
import gputrace
for n in range(6):
    with gputrace.span(f"step {n}"):
        pass
    gputrace.step()
"""


@pytest.mark.parametrize(
    ("written", "ns"),
    [
        ("10s", 10**10),
        ("1.5", 15 * 10**8),
        ("500ms", 5 * 10**8),
        ("7 us", 7000),
        ("7µs", 7000),
        ("2m", 12 * 10**10),
        ("1H", 3600 * 10**9),
    ],
)
def test_times_as_people_write_them(written: str, ns: int) -> None:
    assert duration_in_ns(written, "--delay") == ns


@pytest.mark.parametrize("written", ["", "s", "soon", "-1s", "1e3", "1.2.3s", "٣s", "10 parsecs", "nan", "."])
def test_what_is_no_time(written: str) -> None:
    with pytest.raises(UsageError, match=r"--delay .* is no time: write it like 500ms, 10s or 2m"):
        duration_in_ns(written, "--delay")


@pytest.mark.parametrize(
    ("written", "first", "end"), [("10:20", 10, 20), ("10:", 10, None), (":5", 0, 5), ("7:8", 7, 8), (" 1 : 2 ", 1, 2)]
)
def test_steps_as_people_write_them(written: str, first: int, end: int | None) -> None:
    options = region_options(None, None, written)
    assert (options["first_step"], options.get("end_step")) == (first, end)


@pytest.mark.parametrize("written", ["", ":", "a:b", "-1:2", "1:2:3", "1.5:2", "٣:٤", "9" * 16])
def test_what_is_no_range_of_steps(written: str) -> None:
    with pytest.raises(UsageError, match="is no range of steps: write it like 10:20"):
        region_options(None, None, written)


@pytest.mark.parametrize(
    ("written", "meant"),
    [("10", "step 10 alone is 10:11, the first 10 steps are :10"), (" 0", "step 0 alone is 0:1")],
)
def test_a_number_alone_is_asked_which_of_two_it_means(written: str, meant: str) -> None:
    with pytest.raises(UsageError) as refused:
        region_options(None, None, written)
    assert str(refused.value) == f"--steps {written} is no range of steps: {meant}"
    for steps in re.findall(r"\d*:\d+", meant):
        assert region_options(None, None, steps)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("1s", None, "1:2"), "--steps and --delay contradict one another.*Give one of them"),
        ((None, "1s", "1:2"), "--steps and --duration contradict one another.*Give one of them"),
        ((None, "0s", None), "--duration 0s would record nothing"),
        ((None, None, "5:5"), "--steps 5:5 holds no step: the second number must be more"),
        (("9999999h", None, None), "more than a year"),
        ((None, None, "1:2", "nvtx:a"), "--steps and --capture-range contradict one another.*Give one of them"),
        ((None, None, None, "cuda_profiler"), "'cuda_profiler' is none: did you mean cuda-profiler[?]"),
        ((None, None, None, "cudaProfilerApi"), "is none: did you mean cuda-profiler[?]"),
        ((None, None, None, "cuda-profiler:x"), "is none: did you mean cuda-profiler[?]"),
        ((None, None, None, "nvtx"), "'nvtx' is none: did you mean nvtx:NAME, where NAME is the range's[?]"),
        ((None, None, None, "NVTX:step"), "is none: did you mean nvtx:NAME, where NAME is the range's[?]"),
        ((None, None, None, "always"), "'always' is none: there are cuda-profiler and nvtx:NAME"),
        ((None, None, None, ""), "'' is none: there are cuda-profiler and nvtx:NAME"),
    ],
)
def test_what_contradicts_itself(arguments: tuple[str | None, ...], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        region_options(*arguments)


@pytest.mark.parametrize("asked", ["cuda-profiler", "nvtx:step", "nvtx: a range: with colons "])
def test_ranges_to_capture_are_taken_as_they_are(asked: str) -> None:
    assert region_options("5s", None, None, asked) == {
        "delay_ns": 5 * 10**9,
        "capture_range": asked,
        "region": f"--delay 5s --capture-range {asked}",
    }


@given(st.text() | st.from_regex(r"\A[\d.]{1,9} ?[smhu]{0,2}\Z"), st.text() | st.from_regex(r"\A\d{0,9}:?\d{0,9}\Z"))
def test_any_text_is_a_region_or_a_usage_error(time: str, steps: str) -> None:
    for arguments in [(time, time, None), (None, None, steps), (None, None, None, steps)]:
        try:
            assert region_options(*arguments)["region"]
        except UsageError:
            pass


def test_a_contradiction_ends_record_before_the_command_starts(tmp_path: Path) -> None:
    command = [*GPUTRACE, "record", "--delay", "1s", "--steps", "1:2", "--", PYTHON, "-c", "print('ran')"]
    done = run(command, tmp_path)
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"contradict one another" in done.stderr
    assert os.listdir(tmp_path) == []


@pytest.mark.slow
def test_a_delay_and_a_duration_of_a_program_that_goes_on(tmp_path: Path) -> None:
    command = recording(PYTHON, "-c", PROGRAM)
    done = run([*command[:4], "--delay", "1500ms", "--duration", "1.5s", *command[4:]], tmp_path)
    assert done.returncode == 0, done.stderr
    engine = Engine(tmp_path / "trace.pftrace")
    assert_clean(engine)
    late = done.stdout == b"True\n"  # a machine so slow that the delay was over when the program began
    assert [each.name for each in slices(engine)] == ["before"] * late + ["inside"]


@pytest.mark.parametrize("suffix", [".pftrace", ".json"])
def test_steps_of_a_program(tmp_path: Path, suffix: str) -> None:
    command = recording(PYTHON, "-c", STEPS, output=f"t{suffix}")
    done = run([*command[:4], "--steps", "2:4", *command[4:]], tmp_path)
    assert done.returncode == 0, done.stderr
    names = [each.name for each in slices(Engine(tmp_path / f"t{suffix}"))]
    assert names == [STEP, "step 2", STEP, "step 3", STEP]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--delay", "1h"], "a process ended before anything that --delay 1h asks for"),
        (["--steps", "9:"], "a process made 6 steps, so --steps 9: recorded nothing of it"),
    ],
)
def test_an_end_before_the_region_is_told(tmp_path: Path, options: list[str], why: str) -> None:
    command = recording(PYTHON, "-c", STEPS)
    done = run([*command[:4], *options, *command[4:]], tmp_path)
    assert done.returncode == 0
    said = done.stderr.decode()
    assert why in said
    assert "nothing was traced: no process came to what was to be recorded, see above" in said
    assert os.listdir(tmp_path) == []


def test_a_program_that_counts_no_steps_is_told_how(tmp_path: Path) -> None:
    command = recording(PYTHON, "-c", "import gputrace\nwith gputrace.span('x'): pass")
    done = run([*command[:4], "--steps", "1:", *command[4:]], tmp_path)
    said = "a process neither called gputrace.step() nor stepped an optimizer of PyTorch, so --steps 1: recorded"
    assert said in done.stderr.decode()


def test_a_filter_of_calls_needs_calls_to_be_shown() -> None:
    given: dict[str, int | str] = {
        "python_include": "a,b.*",
        "python_exclude": "c",
        "python_depth": 3,
        "python_min_ns": 100_000,
    }
    assert calls_options(True, ("a", "b.*"), ("c",), 3, "100us") == given
    assert calls_options(True, (), (), None, None, True) == {"python_lines": 1}
    assert calls_options(True, (), (), None, None) == calls_options(False, (), (), None, None) == {}
    assert calls_options(True, (), (), None, "0") == calls_options(False, (), (), None, "0") == {}
    with pytest.raises(UsageError, match=r"^--python-depth only says which calls to show: add --python"):
        calls_options(False, (), (), 3, None)
    with pytest.raises(UsageError, match=r"^--python-lines only says which calls to show: add --python"):
        calls_options(False, (), (), None, None, True)
    with pytest.raises(UsageError, match=r"^--python-min only says which calls to show: add --python"):
        calls_options(False, (), (), None, "1ms")
    with pytest.raises(UsageError, match=r"^--python-min 'short' is no time: write it like"):
        calls_options(True, (), (), None, "short")
