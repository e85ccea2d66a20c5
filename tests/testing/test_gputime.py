"""`gputrace.gpu_time` in a test: written, compared, refused; and that its error bound is an honest one."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest

from gputrace.testing.baselines import FILE
from gputrace.testing.gputime import median_and_bound
from tests.fake_driver import build
from tests.testing.running import run_pytest

SIMULATED = "--gputrace-device=simulated"
UPDATE = "--gputrace-update-baselines"

MATMUL = """
import os
from gputrace.devices.simulated import default_gpu

def test_it(gputrace):
    stream = default_gpu().stream()
    with gputrace.gpu_time("matmul", tolerance=0.1, stream=stream) as t:
        stream.launch(60_000_000)  # ahead of what is measured, so that the host's pace does not show in it
        for n in t.repeats(9):
            with gputrace.span("matmul"):
                stream.launch(SCALE * 300_000)
    print("took", t.median_ns, t.uncertainty_ns, len(t.samples_ns))
"""


def suite(folder: Path, scale: float = 1.0, text: str = MATMUL) -> Path:
    (folder / "test_it.py").write_text(text.replace("SCALE", str(scale)))
    return folder


def stored(folder: Path) -> Any:
    return json.loads((folder / FILE).read_text())


def test_a_baseline_is_asked_for_written_held_and_broken(tmp_path: Path) -> None:
    missing = run_pytest(suite(tmp_path), SIMULATED)
    assert missing.returncode == 1
    assert b"has no baseline for it" in missing.stdout
    assert b"run: pytest 'test_it.py::test_it' --gputrace-update-baselines" in missing.stdout
    assert not (tmp_path / FILE).exists()

    written = run_pytest(tmp_path, SIMULATED, UPDATE, "-s")
    assert written.returncode == 0, written.stdout
    entry = stored(tmp_path)["Simulated GPU"]["test_it.py::test_it matmul"]
    assert entry["repeats"] == 9
    assert abs(entry["median_ns"] - 300_000) <= entry["uncertainty_ns"] < 30_000
    before = (tmp_path / FILE).read_bytes()

    assert run_pytest(tmp_path, SIMULATED, "--junitxml=out.xml").returncode == 0
    assert "baseline 300.0" in (tmp_path / "out.xml").read_text()
    slower = run_pytest(suite(tmp_path, 1.2), SIMULATED)
    assert slower.returncode == 1
    assert b"+20.0%, and 0.1 is tolerated" in slower.stdout
    assert "measured 360.0 ± ".encode() in slower.stdout
    assert run_pytest(suite(tmp_path, 0.5), SIMULATED).returncode == 0  # faster is no regression
    assert (tmp_path / FILE).read_bytes() == before  # comparing writes nothing


@pytest.mark.parametrize("spread", ["measured", "stored"])
def test_what_is_too_uncertain_is_not_compared(tmp_path: Path, spread: str) -> None:
    scale = "(1, 1, 1, 1, 2, 2, 2, 3, 3)[n % 9]" if spread == "measured" else "1"
    suite(tmp_path, text=MATMUL.replace("SCALE", scale))
    entry = {"median_ns": 300_000, "repeats": 9, "uncertainty_ns": 30_000 if spread == "stored" else 100}
    (tmp_path / FILE).write_text(json.dumps({"Simulated GPU": {"test_it.py::test_it matmul": entry}}))
    done = run_pytest(tmp_path, SIMULATED)
    assert done.returncode == 1
    assert b"too uncertain to tell 0.1 of it" in done.stdout
    assert (b"measure the baseline anew" in done.stdout) == (spread == "stored")
    if spread == "measured":
        (tmp_path / FILE).unlink()
        assert run_pytest(tmp_path, SIMULATED, UPDATE).returncode == 1
        assert not (tmp_path / FILE).exists()


def test_without_a_device_it_skips_and_says_why(tmp_path: Path) -> None:
    done = run_pytest(suite(tmp_path), "--gputrace-device=host", "-rs")
    assert done.returncode == 0
    assert b"1 skipped" in done.stdout
    assert b"gpu_time('matmul') needs a device: host spans only, as asked" in done.stdout


@pytest.mark.parametrize("device", ["host", "cuda"])
def test_a_baseline_that_cannot_be_measured_is_no_pass(tmp_path: Path, device: str) -> None:
    (tmp_path / FILE).write_text("{}")
    nothing = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1"}
    done = run_pytest(suite(tmp_path), f"--gputrace-device={device}", UPDATE, env=nothing)
    assert done.returncode == 1
    told = done.stdout.decode()
    assert "gpu_time('matmul') wrote no baseline: " in told
    assert ("host spans only, as asked" if device == "host" else "the device cuda cannot be used: ") in told
    assert "Run pytest --gputrace-update-baselines where the GPU is" in told
    assert "Traceback" not in told
    assert (tmp_path / FILE).read_text() == "{}"
    without = run_pytest(tmp_path, f"--gputrace-device={device}", env=nothing)
    assert (without.returncode, b"1 skipped" in without.stdout) == ((0, True) if device == "host" else (1, False))


BODIES = """
import pytest

def test_own_error(gputrace):
    with pytest.raises(KeyError), gputrace.gpu_time("a", tolerance=0.1):
        raise KeyError

def test_left_early(gputrace):
    with gputrace.gpu_time("a", tolerance=0.1) as t:
        for _ in t.repeats(3):
            break

def test_no_tolerance(gputrace):
    with pytest.raises(ValueError, match="like 0.1"):
        gputrace.gpu_time("a", tolerance=0)

def test_twice(gputrace):
    gputrace.gpu_time("a", tolerance=1)
    with pytest.raises(ValueError, match="a name of its own"):
        gputrace.gpu_time("a", tolerance=1)

def test_module(gputrace):
    with gputrace.span("a"), gputrace.use_stream(0):
        gputrace.instant("b")
"""


def test_what_a_block_may_do(tmp_path: Path) -> None:
    done = run_pytest(suite(tmp_path, text=BODIES), SIMULATED, "-rf")
    assert b"1 failed, 4 passed" in done.stdout, done.stdout
    assert b"its loop ended before anything was measured" in done.stdout


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", b"is no JSON"),
        ("[1]", b"holds no baselines by device"),
        ('{"Simulated GPU": {"test_it.py::test_it matmul": {"median_ns": "x"}}}', b"measure it anew"),
        ('{"Simulated GPU": {"test_it.py::test_it matmul": 3}}', b"measure it anew"),
    ],
)
def test_a_damaged_file_is_told_by_name_and_kept(tmp_path: Path, text: str, said: bytes) -> None:
    suite(tmp_path)
    (tmp_path / FILE).write_text(text)
    done = run_pytest(tmp_path, SIMULATED)
    assert done.returncode == 1
    assert said in done.stdout
    assert FILE.encode() in done.stdout
    assert (tmp_path / FILE).read_text() == text


def test_workers_that_write_at_once_lose_nothing(tmp_path: Path) -> None:
    text = "import pytest\n@pytest.mark.parametrize('n', range(12))" + MATMUL.replace("(gputrace)", "(gputrace, n)")
    text = text.replace("import os\nfrom gputrace.devices.simulated import default_gpu\n", "").replace(
        "import pytest\n", "import pytest\nfrom gputrace.devices.simulated import default_gpu\n", 1
    )
    done = run_pytest(suite(tmp_path, text=text.replace("for n in", "for _ in")), SIMULATED, UPDATE, "-n3")
    assert done.returncode == 0, done.stdout
    assert len(stored(tmp_path)["Simulated GPU"]) == 12
    assert {path.name for path in tmp_path.iterdir()} <= {FILE, "test_it.py", "__pycache__"}


CUDA = """
from cuda.bindings import driver
from tests.fake_driver import control

def ok(result):
    assert int(result[0]) == 0, result
    return result[1] if len(result) == 2 else result[1:]

def test_it(gputrace):
    ok(driver.cuInit(0))
    ok(driver.cuCtxSetCurrent(ok(driver.cuDevicePrimaryCtxRetain(0))))
    stream = ok(driver.cuStreamCreate(1))
    with gputrace.gpu_time("kernel", tolerance=0.2, stream=stream) as t:
        control.enqueue(stream, 50_000_000)
        for _ in t.repeats(7):
            control.enqueue(stream, 400_000)
    assert control.calls("cuStreamSynchronize") == 0
"""


def test_on_cuda_as_it_ships(tmp_path: Path) -> None:
    build.require()
    environment = build.environment(skew_ppm=50)
    environment["PYTHONPATH"] = str(Path(__file__).parents[2])
    suite(tmp_path, text=CUDA)
    for option in ([UPDATE], []):
        done = run_pytest(tmp_path, *option, env=environment)
        assert done.returncode == 0, done.stdout
    [[entry]] = [each.values() for each in stored(tmp_path).values()]
    assert abs(entry["median_ns"] - 400_000) <= entry["uncertainty_ns"] < 80_000


@pytest.mark.parametrize("count", [6, 9, 20, 51])
def test_the_bound_holds_the_median_as_often_as_it_says(count: int) -> None:
    chance = random.Random(count)
    held = 0
    for _ in range(2000):
        median_ns, bound_ns = median_and_bound([round(1e6 * chance.expovariate(1)) for _ in range(count)])
        held += abs(median_ns - 693_147) <= bound_ns
    assert held >= 0.95 * 2000


def test_few_samples_are_bounded_by_all_of_them() -> None:
    assert median_and_bound([5]) == (5, 0)
    assert median_and_bound([5, 9, 6]) == (6, 3)
    assert median_and_bound([1, 2, 3, 4, 50]) == (3, 47)
