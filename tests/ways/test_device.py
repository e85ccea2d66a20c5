"""Ways to end in which the driver has a part: inside a capture, with the device lost, after the driver is gone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fake_driver import require
from tests.recorded import is_gpu
from tests.ways.program import SPANS, SUFFIXES, Program, assert_holds, assert_same_end, load, numbers

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _driver() -> None:
    require()


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("code", [0, 3])
def test_exit_during_a_capture(tmp_path: Path, suffix: str, code: int) -> None:
    end = f"""
check(driver.cuStreamBeginCapture(stream, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL))
with gputrace.span("captured", stream=stream):
    launch(1000)
captured = check(driver.cuStreamIsCapturing(stream))
print(captured.name, flush=True)
sys.exit({code})
"""
    program = Program(end, device="cuda")
    plain = program.plain(tmp_path)
    assert (plain.code, plain.stdout) == (code, b"CU_STREAM_CAPTURE_STATUS_ACTIVE\n")
    done = program.recorded(tmp_path, f"t{suffix}")
    assert_same_end(done, plain)
    found = assert_holds(tmp_path / f"t{suffix}", open_at_end=False, clean=True)
    (captured,) = [each for each in found if each.name == "captured"]
    assert not is_gpu(captured)
    assert "capture" in captured.args["gpu"]
    # The one around it too: the stream took no event for its end.
    assert "2 left out during graph capture" in done.said[-1]
    (ended,) = [each.args["ended"] for each in found if each.name == "left open" and is_gpu(each)]
    assert "capture" in ended


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_device_lost_midway(tmp_path: Path, suffix: str) -> None:
    end = """
control.lose_device(700)
code, = driver.cuStreamSynchronize(stream)
print(int(code), flush=True)
for n in range(10):
    with gputrace.span("afterwards", stream=stream, n=n):
        pass
sys.exit(int(code) % 256)
"""
    program = Program(end, device="cuda")
    plain = program.plain(tmp_path)
    assert (plain.code, plain.stdout) == (700 % 256, b"700\n")
    done = program.recorded(tmp_path, f"t{suffix}")
    assert_same_end(done, plain)
    found = load(tmp_path / f"t{suffix}")
    host, gpu = ([each for each in found if is_gpu(each) is on_gpu] for on_gpu in (False, True))
    assert numbers(host, "flushed") == numbers(gpu, "flushed") == list(range(SPANS))
    assert numbers(host, "tail") == list(range(SPANS))
    assert numbers(host, "afterwards") == list(range(10))
    assert all("error" in each.args and each.dur == 0 for each in gpu if each.name == "afterwards")
    assert [each.dur < 0 for each in host if each.name == "left open"] == [False]
    (opened,) = [each for each in gpu if each.name == "left open"]
    assert "error" in opened.args or "ended" in opened.args
    assert "failed or could not be read" in done.said[-1]


TEARING_DOWN = {
    "the context destroyed": "check(driver.cuDevicePrimaryCtxReset(0))",
    "every call refused": "control.lose_device(4)",  # CUDA_ERROR_DEINITIALIZED
}


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("how", TEARING_DOWN)
def test_driver_torn_down_before_our_exit_hook(tmp_path: Path, suffix: str, how: str) -> None:
    """The program's own exit hooks run before ours, which was there first."""
    program = Program(
        "sys.exit(5)", device="cuda", before=f"import atexit\natexit.register(lambda: {TEARING_DOWN[how]})"
    )
    plain = program.plain(tmp_path)
    assert plain.code == 5
    done = program.recorded(tmp_path, f"t{suffix}")
    assert_same_end(done, plain)
    found = load(tmp_path / f"t{suffix}")
    host, gpu = ([each for each in found if is_gpu(each) is on_gpu] for on_gpu in (False, True))
    assert numbers(host, "flushed") == numbers(gpu, "flushed") == list(range(SPANS))
    assert numbers(host, "tail") == list(range(SPANS))
    assert [each.dur < 0 for each in host if each.name == "left open"] == [False]
    assert "failed or could not be read" in done.said[-1]
