"""GPU windows of torch's work on the stream that torch says it is put on: real torch and real bindings, a driver that
keeps the truth, and stand-ins for the three functions that a torch without CUDA lacks.
"""

from __future__ import annotations

import tempfile
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import gputrace
from gputrace.instrument.registry import PATCHES, choose
from gputrace.instrument.site import Site
from gputrace.instrument.torch import streams
from tests.fake_driver import on_fake_driver
from tests.recorded import Run, recording
from tests.test_tracer_cuda import Program, ok

#: How long the device works on what a module or a backward here gives it.
WORK_NS = 105_000


class Torch:
    """torch in a program with two streams on a GPU, where it would be with CUDA."""

    def __init__(self) -> None:
        self.program = Program()
        import torch

        self.torch = torch
        self.current = ok(self.program.driver.cuStreamCreate(1))
        self.memory = ok(self.program.driver.cuMemAlloc(2_000_000))
        self.started = True
        self.device = 0
        torch._C._cuda_getCurrentRawStream = self.raw
        torch._C._cuda_getDevice = lambda: self.device
        torch.cuda.is_initialized = lambda: self.started
        streams.device_of = lambda values: 0 if list(values) else None

    def raw(self, device: int) -> int:
        assert self.started
        assert device == 0
        return int(self.current)

    def work(self) -> None:
        """Keeps the current stream busy."""
        ok(self.program.driver.cuMemsetD8Async(self.memory, 0, 2_000_000, self.current))

    def record(self, work: Any, *names: str) -> Run:
        """What came of the work with all of torch's patches, and those of these names."""
        folder = Path(tempfile.mkdtemp())
        from gputrace.shards import ShardFolder

        create = ShardFolder.create
        chosen = choose(names, ["nvtx"])
        ShardFolder.create = lambda *args, **kwargs: create(*args, **kwargs, instruments=chosen)  # type: ignore[method-assign]
        self.program.begin()
        with recording(folder, "cuda", leaked_events=None) as run:
            work()
        ShardFolder.create = create  # type: ignore[method-assign]
        self.program.unharmed()
        return run


def model_of(torch: Torch) -> Any:
    class Busy(torch.torch.nn.Module):
        def forward(self, x: Any) -> Any:
            torch.work()
            return x * 1.0

    return Busy


def windows(run: Run) -> list[tuple[str, int]]:
    """Each GPU window's name and row, in order."""
    return [(each.name, each.track_id) for each in run.device]


@on_fake_driver(skew_ppm=50)
def test_modules_backward_optimizers_and_ranges_on_the_current_stream() -> None:
    torch = Torch()
    busy = model_of(torch)
    nn = torch.torch.nn
    model = nn.Sequential(busy(), nn.Sequential(nn.Sequential(nn.Sequential(busy()))))
    weight = nn.Parameter(torch.torch.ones(3))
    optimizer = torch.torch.optim.SGD([weight], lr=0.1)

    def work() -> None:
        with torch.torch.profiler.record_function("round"):
            model(weight).sum().backward()
            optimizer.step()

    run = torch.record(work)
    modules = ["Sequential", "Sequential.1", "Sequential.1.0"]
    assert [name for name, _ in windows(run)] == ["round", *modules, "backward", "SGD.step"]
    # One too small for a window, and one too deep.
    assert {each.name for each in run.host} >= {"Sequential.0", "Sequential.1.0.0"}
    assert len({row for _, row in windows(run)}) == 1
    durations = {each.name: each.dur for each in run.device}
    assert durations["Sequential"] >= 2 * WORK_NS
    assert WORK_NS <= durations["Sequential.1.0"] <= durations["Sequential.1"] <= durations["Sequential"]
    assert durations["round"] >= durations["Sequential"] + durations["backward"] + durations["SGD.step"]
    assert run.report["told"] == []

    named = torch.record(lambda: model(weight), "torch.streams=1")
    assert [name for name, _ in windows(named)] == ["Sequential", "Sequential.0", "Sequential.1"]


@on_fake_driver()
def test_the_stream_is_asked_anew_each_time_and_never_before_cuda_is_started() -> None:
    torch = Torch()
    busy = model_of(torch)()
    x = torch.torch.ones(2)
    first, second = torch.current, ok(torch.program.driver.cuStreamCreate(1))

    def work() -> None:
        torch.started = False
        busy(x)
        torch.started = True
        busy(x)
        torch.current = second
        busy(x)
        torch.current = 0  # torch's own default
        busy(x)
        torch.device = 1
        busy(x)  # its device is not the current one: a default stream's handle would mean another
        torch.device, torch.current = 0, first

        def elsewhere() -> None:
            ok(torch.program.driver.cuCtxSetCurrent(torch.program.context))
            busy(x)

        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()

    run = torch.record(work, "torch.streams=0")
    assert len([each for each in run.host if each.name == "Busy"]) == 6
    rows = [each.track[-1] for each in run.device]
    assert len(rows) == 4
    assert len(set(rows)) == 3
    assert rows[0] == rows[3] != rows[1]
    assert rows[2] == "default stream"


@on_fake_driver()
def test_nothing_is_recorded_inside_a_capture_and_a_fault_ends_the_windows_alone() -> None:
    torch = Torch()
    busy = model_of(torch)()
    driver = torch.program.driver

    def work() -> None:
        ok(driver.cuStreamBeginCapture(torch.current, driver.CUstreamCaptureMode(0)))
        busy(torch.torch.ones(2))
        graph = ok(driver.cuStreamEndCapture(torch.current))
        assert int(graph)

    run = torch.record(work, "torch.streams=0")
    assert [each.name for each in run.host] == ["Busy"]
    assert run.device == []
    assert run.report["capture_skipped"] == 1

    # And a fault ends the windows, and not the program.
    def fails(device: int) -> int:
        raise LookupError("made to fail")

    torch.torch._C._cuda_getCurrentRawStream = fails
    x = torch.torch.ones(2)
    run = torch.record(lambda: [busy(x), busy(x)], "torch.streams=0")
    assert [each.name for each in run.host] == ["Busy", "Busy"]
    assert run.device == []
    [told] = run.report["told"]
    assert "torch.streams does not work here" in told
    assert "made to fail" in told


# --- which device ---------------------------------------------------------------------------------------------------


class Tensor:
    def __init__(self, device: int) -> None:
        self.device = device

    @property
    def is_cuda(self) -> bool:
        return self.device >= 0

    def get_device(self) -> int:
        return self.device


class Own(Tensor):
    @property
    def is_cuda(self) -> bool:
        raise AssertionError("asked")


@pytest.fixture
def torch() -> Any:
    """A torch of the shape that is asked, with streams 10 and 11 current on its two GPUs."""
    made = SimpleNamespace(
        Tensor=Tensor,
        nn=SimpleNamespace(Parameter=type("Parameter", (Tensor,), {})),
        mode=False,
        cuda=SimpleNamespace(is_initialized=lambda: True),
        _C=SimpleNamespace(
            _cuda_getCurrentRawStream=lambda device: 10 + device,
            _cuda_getDevice=lambda: 1,
            _get_tracing_state=lambda: None,
            _is_torch_function_mode_enabled=lambda: made.mode,
        ),
    )
    site = Site(PATCHES["torch.streams"], made, None, print, {})
    streams.streams(site)
    yield made
    site.undo()
    assert not streams.are_known()


def test_work_is_on_the_device_of_its_first_tensor_there(torch: Any) -> None:
    parameter = torch.nn.Parameter(1)
    assert streams.of_tensors([3, Tensor(-1), parameter, Tensor(0)]) == 11
    assert streams.of_tensors([Tensor(-1), "x", None]) is None
    assert streams.of_tensors([Own(0)]) is None
    assert streams.of_optimizer(SimpleNamespace(param_groups=[{"params": [Tensor(0), Tensor(1)]}])) == 10
    assert streams.of_optimizer(SimpleNamespace(param_groups=[])) is None
    assert streams.of_optimizer(None) is None
    assert streams.here() == 11


def test_a_module_by_its_arguments_however_they_are_passed(torch: Any) -> None:
    block, leaf = SimpleNamespace(_modules={"0": object()}), SimpleNamespace(_modules={})
    assert streams.of_module(block, "GPT.layers.3", (), {"x": Tensor(0)}) == 10
    assert streams.of_module(block, "GPT.layers.3", (Tensor(1),), {}) == 11
    assert streams.of_module(block, "GPT.layers.3.attn", (Tensor(1),), {}) is None
    assert streams.of_module(leaf, "GPT.norm", (Tensor(1),), {}) is None
    assert streams.of_module(block, "GPT", (), {}) is None


def test_a_default_stream_of_another_device_is_none(torch: Any) -> None:
    torch._C._cuda_getCurrentRawStream = lambda device: 0
    assert streams.of_tensors([Tensor(0)]) == 10  # bound when it was applied
    site = Site(PATCHES["torch.streams"], torch, 7, print, {})
    streams.streams(site)
    assert streams.of_tensors([Tensor(0)]) is None
    assert streams.of_tensors([Tensor(1)]) == streams.here() == 0
    assert streams.of_module(SimpleNamespace(), "a.b.c.d.e", (Tensor(1),), {}) == 0
    site.undo()


def test_tensors_are_not_asked_while_a_mode_looks_on(torch: Any) -> None:
    torch.mode = True
    assert streams.of_tensors([Tensor(0)]) is None


def test_a_torch_without_cuda_has_no_streams() -> None:
    import torch

    site = Site(PATCHES["torch.streams"], torch, None, print, {})
    streams.streams(site)
    assert not streams.are_known()
    assert streams.of_tensors([torch.ones(1)]) is None
    assert gputrace.span("x", streams.here()) is not None
