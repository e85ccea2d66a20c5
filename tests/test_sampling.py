"""Counters of the process and its GPUs: every value read is drawn, in order; what cannot be read is left out."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest

import gputrace
from gputrace import sampling, tracer
from gputrace.devices.cuda import device_facts
from gputrace.errors import UsageError
from gputrace.record.region import counters_options
from gputrace.sampling import LinkRate, ResidentMemory
from tests.engine import Engine, assert_clean, counters, slices
from tests.fake_driver import environment, on_fake_driver, require
from tests.fake_driver.isolated import ROOT
from tests.recorded import EXPORTERS, Run, recording

FAST = {"counters_ns": 10_000_000}
everywhere = pytest.mark.parametrize("suffix", EXPORTERS)

#: Opens a span on a stream of the fake driver and waits for so many readings of each GPU counter.
ON_GPU = """
import time, gputrace
from cuda.bindings import driver
driver.cuInit(0)
context = driver.cuDevicePrimaryCtxRetain(1)[1]
driver.cuCtxSetCurrent(context)
stream = driver.cuStreamCreate(1)[1]
from gputrace import tracer
given = tracer.current().give
def give(name, *rest):
    values.append(name)
    given(name, *rest)
values = []
tracer.current()._sampler._give = give
with gputrace.span("work", stream=stream):
    pass
end_s = time.monotonic() + 60
while values.count(LAST) < 3:
    assert time.monotonic() < end_s
    with gputrace.span("waiting"):
        time.sleep(0.001)
"""


def wait_until(true: Callable[[], bool]) -> None:
    end_s = time.monotonic() + 30
    while not true():
        assert time.monotonic() < end_s
        time.sleep(0.001)


def of(run: Run, name: str) -> list[float]:
    """The values of a counter; JSON has the unit in its name."""
    return [value for track, samples in run.counters.items() if track[-1].startswith(name) for _, value in samples]


@everywhere
def test_the_process_shows_its_memory_and_cpu(tmp_path: Path, suffix: str) -> None:
    with recording(tmp_path, suffix=suffix, options=FAST) as run:
        current = tracer.current()
        assert current is not None
        names: list[str] = []
        given = current.give
        current._sampler._give = lambda name, *rest: (names.append(name), given(name, *rest))[1]
        with gputrace.span("work"):
            before = ResidentMemory().read_bytes()
            kept = bytearray(os.urandom(64 << 20))
            count = names.count("memory used")
            wait_until(lambda: names.count("memory used") > count + 1 and names.count("CPU used") > 2)
        del kept
    memory = of(run, "memory used")
    assert max(memory) > before + (60 << 20)
    assert len(memory) == names.count("memory used")
    assert len(of(run, "CPU used")) == names.count("CPU used")
    assert max(of(run, "CPU used")) > 0
    assert [each.name for each in run.slices] == ["work"]
    assert all(len(each.track) == 2 for each in run.slices)  # the sampler has no row


def test_nothing_is_read_where_nothing_is_recorded(tmp_path: Path) -> None:
    with recording(tmp_path, options=FAST) as run:
        current = tracer.current()
        assert current is not None
        sampler = current._sampler
        assert sampler._thread is not None
        assert not sampler._thread.running  # no span yet
        with gputrace.span("a"):
            wait_until(lambda: bool(current._given) or bool(current._counters))
        gputrace.pause()
        sampler.stop()
        given = len(current._given)
        sampler.sample()
        assert len(current._given) <= given
    assert not sampler._thread.running
    assert [each.name for each in run.slices] == ["a"]


def test_off_is_off(tmp_path: Path) -> None:
    assert counters_options("off") == {}
    with recording(tmp_path) as run, gputrace.span("a"):
        current = tracer.current()
        assert current is not None
        assert current._sampler._thread is None
    assert run.counters == {}


def test_a_fork_finds_no_thread_of_it_and_it_goes_on(tmp_path: Path) -> None:
    with recording(tmp_path, "host", options=FAST) as run:
        current = tracer.current()
        assert current is not None
        thread = current._sampler._thread
        assert thread is not None
        with gputrace.span("before"):
            wait_until(lambda: thread.running)
        current.pause_for_fork()
        assert not thread.running
        current.resume_after_fork()
        with gputrace.span("after"):
            wait_until(lambda: thread.running)
    assert {each.name for each in run.slices} == {"before", "after"}


def test_looks_take_no_number_of_the_programs_descriptors() -> None:
    """A file opened for each look would be a program's standard error for a moment, where it has none."""
    memory = ResidentMemory()
    assert memory.read_bytes() > 1 << 20
    assert memory._file is not None
    kept, opened = memory._file.descriptor, os.open("/dev/null", os.O_RDONLY)
    try:
        assert kept > opened
        for _ in range(100):
            memory.read_bytes()
            assert memory._file.descriptor == kept
        os.dup2(opened, kept)  # the program takes the number
        assert memory.read_bytes() > 1 << 20
        assert os.fstat(kept).st_rdev == os.fstat(opened).st_rdev  # and keeps it
    finally:
        memory.close()
        os.close(opened)
        os.close(kept)


def test_a_forked_child_reads_its_own_memory() -> None:
    """What grows in the child shows there; the file that the parent opened would say the parent's."""
    memory = ResidentMemory()
    memory.read_bytes()
    receiver, sender = os.pipe()
    if not (child := os.fork()):
        try:
            before = memory.read_bytes()
            kept = bytearray(os.urandom(64 << 20))
            os.write(sender, str(memory.read_bytes() - before).encode())
            del kept
        finally:
            os._exit(0)
    os.close(sender)
    with open(receiver, "rb") as told:
        assert int(told.read()) > 48 << 20
    os.waitpid(child, 0)
    memory.close()


@pytest.mark.parametrize("written", ["1ms", "0s"])
def test_too_often_is_refused(written: str) -> None:
    with pytest.raises(UsageError, match=r"is too often: give 10ms or more, or off"):
        counters_options(written)


def test_what_is_no_time_is_refused_where_recording_starts(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^counters 'often' is no time"):
        gputrace.trace(tmp_path / "t.json", "host", counters="often").start()
    assert os.listdir(tmp_path) == []


def record_on_fake(path: Path, output: str, last: str, **settings: str) -> str:
    """Record `ON_GPU` until there are three readings of a counter; what `record` said."""
    require()
    env = environment(devices=2) | {"PYTHONPATH": str(ROOT), **settings}
    command = [sys.executable, "-m", "gputrace.cli.main", "record", "--device", "cuda", "--counters", "10ms"]
    command += ["-o", str(path / output), "--", sys.executable, "-c", ON_GPU.replace("LAST", repr(last))]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.mark.parametrize("suffix", [".pftrace", ".json"])
def test_a_gpus_readings_are_under_its_row_one_by_one(tmp_path: Path, suffix: str) -> None:
    record_on_fake(tmp_path, f"t{suffix}", "PCIe received")
    engine = Engine(tmp_path / f"t{suffix}")
    assert_clean(engine)
    found = {
        track[-1].partition(" value")[0]: [value for _, value in samples]
        for track, samples in counters(engine).items()
        if any(step.startswith("GPU 1") for step in track) or suffix == ".json"
    }
    # Of the second GPU, the nth reading is 2000 + n: none is missing, none is another's.
    for name in ("SM clock", "memory clock", "temperature", "throttle reasons", "PCIe sent", "PCIe received"):
        [values] = [values for title, values in found.items() if title.startswith(name)]
        assert values == [2001 + n for n in range(len(values))], name
        assert len(values) >= 3
    [power] = [values for title, values in found.items() if title.startswith("power")]
    assert power == [(2001 + n) / 1000 for n in range(len(power))]
    [used] = [values for title, values in found.items() if title.startswith("utilisation")]
    assert used == [(1 + n) % 100 for n in range(len(used))]
    for name in ("NVLink sent", "NVLink received"):  # a KiB from one reading to the next
        [rates] = [values for title, values in found.items() if title.startswith(name)]
        assert len(rates) >= 2
        assert all(0 < rate <= 1000 for rate in rates), rates
    assert "work" in {each.name for each in slices(engine)}


def test_a_gpu_without_links_has_no_row_of_them(tmp_path: Path) -> None:
    said = record_on_fake(tmp_path, "t.pftrace", "PCIe received", FAKE_NVML_NO_LINKS="1")
    names = {track[-1] for track in counters(Engine(tmp_path / "t.pftrace"))}
    assert "PCIe received" in names
    assert not [name for name in names if name.startswith("NVLink")]
    assert "NVML" not in said


class Links:
    """NVML's binding, whose fields say what they are told to."""

    class FieldId:
        SENT = 138

    class FieldValue:
        field_id = scope_id = value_type = nvml_return = 0
        value: dict[str, list[int]]

    def __init__(self) -> None:
        self.type, self.member, self.total, self.result = 3, "ull_val", 0, 0

    def device_get_field_values(self, gpu: object, value: FieldValue) -> None:
        assert (value.field_id, value.scope_id) == (138, (1 << 32) - 1)
        value.value_type, value.nvml_return, value.value = self.type, self.result, {self.member: [self.total]}


def test_traffic_is_what_was_counted_by_the_time_it_took() -> None:
    nvml, rate = Links(), LinkRate("SENT")
    with mock.patch.object(sampling, "now_ns", side_effect=itertools.count(10**9, 10**8)):  # a tenth of a second
        found = []
        for nvml.total in (5000, 5000, 6000, 1 << 40, (1 << 40) + 7, 3, 13):  # reset before the last but one
            found.append(rate(nvml, None))
        assert found == [None, 0, 10_000, ((1 << 40) - 6000) * 10, 70, None, 100]
        rate.forget()
        assert rate(nvml, None) is None
        nvml.type, nvml.member, nvml.total = 1, "ui_val", 14
        assert rate(nvml, None) == 10
        for nvml.type, nvml.result in ((3, 3), (0, 0)):
            with pytest.raises(LookupError):
                rate(nvml, None)


@on_fake_driver()
def test_traffic_by_the_binding_itself() -> None:
    from cuda.bindings import driver, nvml

    driver.cuInit(0)
    nvml.init_v2()
    try:
        gpu = nvml.device_get_handle_by_uuid(device_facts(driver, 0)["uuid"])
        rate = LinkRate("DEV_NVLINK_THROUGHPUT_DATA_TX")
        with mock.patch.object(sampling, "now_ns", side_effect=itertools.count(10**9, 10**8)):
            assert [rate(nvml, gpu) for _ in range(4)] == [None, 10, 10, 10]
    finally:
        nvml.shutdown()


def test_what_a_gpu_has_not_is_left_out(tmp_path: Path) -> None:
    refuse = "nvmlDeviceGetPowerUsage;nvmlDeviceGetTemperatureV"
    said = record_on_fake(tmp_path, "t.pftrace", "PCIe received", FAKE_NVML_REFUSE=refuse)
    names = {track[-1] for track in counters(Engine(tmp_path / "t.pftrace"))}
    assert {"SM clock", "PCIe received", "CPU used"} <= names
    assert not {"power", "temperature"} & names
    assert "NVML" not in said


def test_no_nvml_is_told_once_and_the_rest_goes_on(tmp_path: Path) -> None:
    said = record_on_fake(tmp_path, "t.pftrace", "CPU used", FAKE_NVML_REFUSE="nvmlInit_v2")
    assert said.count("no GPU counters: NVML cannot be used") == 1
    engine = Engine(tmp_path / "t.pftrace")
    assert {"memory used", "CPU used"} <= {track[-1] for track in counters(engine)}
    assert "work" in {each.name for each in slices(engine)}


@on_fake_driver()
def test_nothing_is_imported_before_a_gpu_is_in_use() -> None:
    import tempfile

    sys.modules.pop("cuda.bindings.nvml", None)
    with tempfile.TemporaryDirectory() as folder, recording(Path(folder), "cuda", options=FAST):
        current = tracer.current()
        assert current is not None
        with gputrace.span("on the host"):
            wait_until(lambda: bool(current._given) or bool(current._counters))
        assert "cuda.bindings.nvml" not in sys.modules
