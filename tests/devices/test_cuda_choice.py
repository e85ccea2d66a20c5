"""What `--device` comes to on a machine with a driver, without one, and with one that will not do."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from gputrace.devices import choose, open_backend, probe_cuda
from gputrace.errors import NoDriver, UsageError
from tests.fake_driver import on_fake_driver


@on_fake_driver(devices=2)
def test_auto_takes_cuda_where_it_is() -> None:
    assert choose("auto") == ("cuda", "cuda: 2 GPUs, driver for CUDA 13.0")
    assert choose("cuda")[0] == "cuda"
    assert open_backend("cuda").kind == "cuda"


@on_fake_driver()
def test_the_probe_does_not_import_the_bindings() -> None:
    sys.modules.pop("cuda.bindings.driver", None)
    assert probe_cuda().found
    assert "cuda.bindings.driver" not in sys.modules


@on_fake_driver(devices=0)
def test_in_a_program_that_is_not_ours_the_driver_is_not_initialised() -> None:
    from tests.fake_driver import control

    assert choose("auto", initialise=False) == ("cuda", "cuda: driver for CUDA 13.0")
    assert control.calls("cuInit") == 0


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"driver_version": 11080}, "CUDA 11.8, and 12.0 is needed"),
        ({"devices": 0}, "sees no GPU"),
        ({"fail": "cuInit:1:999"}, "cuInit returned 999"),
        ({"fail": "cuInit:1:803"}, "different versions"),
        ({"fail": "cuInit:1:34"}, "stub"),
    ],
)
@on_fake_driver()
def test_a_driver_that_will_not_do_is_explained(settings: dict[str, object], reason: str) -> None:
    for name, value in settings.items():  # before the library is loaded, so they take effect
        os.environ[f"FAKE_CUDA_{name.upper()}"] = str(value)
    kind, line = choose("auto")
    assert kind == "host"
    assert reason in line


@on_fake_driver(devices=0)
def test_cuda_asked_for_and_not_there_is_an_error() -> None:
    with pytest.raises(NoDriver, match=r"the device cuda cannot be used: .*sees no GPU"):
        choose("cuda")


def without(modules: str, program: str) -> str:
    """What a program prints where neither a driver nor the named top-level packages can be found."""
    blocked = f"import sys; sys.modules.update(dict.fromkeys({modules.split()!r}))\n"
    env = {key: value for key, value in os.environ.items() if key != "LD_LIBRARY_PATH"}
    done = subprocess.run([sys.executable, "-c", blocked + program], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_no_driver_and_no_bindings_either() -> None:
    if probe_cuda().driver_version:
        pytest.skip("this machine has a driver")
    program = """
from gputrace.devices import choose, open_backend, probe_cuda
from gputrace.errors import NoDriver
print(choose("auto"))
for work in (lambda: choose("cuda"), lambda: open_backend("cuda")):
    try:
        work()
    except NoDriver as error:
        print(error)
"""
    lines = without("cuda", program).splitlines()
    assert lines[0].startswith("('host', 'host spans only: no NVIDIA driver (libcuda.so.1")
    assert lines[1].startswith("the device cuda cannot be used: no NVIDIA driver")
    assert "pip install 'cuda-python>=12.9'" in lines[2]


def test_the_others_need_no_driver() -> None:
    assert choose("simulated")[0] == "simulated"
    assert choose("host")[0] == "host"
    assert open_backend("simulated").kind == "simulated"


def test_an_unknown_device_is_answered_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match="'rocm': use one of auto, cuda, simulated, host"):
        choose("rocm")
    with pytest.raises(UsageError, match="cuda and simulated"):
        open_backend("host")
