"""What a process uses while it is recorded, read every so often on one thread: memory, CPU, its GPUs by NVML, and what
PyTorch's allocator holds on them.

It knows neither spans nor the trace: it hands values to its owner. Nothing is imported before a GPU is in use, and
PyTorch never.
"""

from __future__ import annotations

import os
import sys
from time import process_time_ns

from gputrace.collector import Collector
from gputrace.descriptors import OwnFile
from gputrace.fence import let_through
from gputrace.hostclock import now_ns

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any, Final

    from gputrace.devices.base import Device

    #: Takes a counter's value: name, host time in ns, value, unit, and the device it is of, None for the process.
    Give = Callable[[str, int, int | float, str, Device | None], None]
    #: A counter of a GPU: name, unit, and what reads it, given the nvml module and the GPU's handle there; None is no
    #: value yet.
    Metric = tuple[str, str, Callable[[Any, Any], int | float | None]]

FORK_DEADLINE_S: Final = 2.0
#: How often a GPU may refuse a counter before it is asked no more: one that it has not, it never has.
REFUSALS: Final = 3
#: The most blocks of PyTorch's allocator that are listed for the largest free one, 1 us each, and the longest that
#: listing them may take: nothing else of the program's Python runs meanwhile.
MOST_BLOCKS: Final = 1000
LONGEST_LIST_NS: Final = 5_000_000
METRICS: Final[list[Metric]] = [
    ("utilisation", "percent", lambda nvml, gpu: nvml.device_get_utilization_rates(gpu).gpu),
    ("memory used", "bytes", lambda nvml, gpu: nvml.device_get_memory_info_v2(gpu).used),
    ("power", "W", lambda nvml, gpu: nvml.device_get_power_usage(gpu) / 1000),
    ("SM clock", "MHz", lambda nvml, gpu: nvml.device_get_clock_info(gpu, nvml.ClockType.CLOCK_SM)),
    ("memory clock", "MHz", lambda nvml, gpu: nvml.device_get_clock_info(gpu, nvml.ClockType.CLOCK_MEM)),
    (
        "temperature",
        "°C",
        lambda nvml, gpu: nvml.device_get_temperature_v(gpu, nvml.TemperatureSensors.TEMPERATURE_GPU),
    ),
    # A set of bits: see nvmlClocksEventReasons in NVML's manual. 1 is an idle GPU, 4 its power cap, 32 and 64 heat.
    ("throttle reasons", "", lambda nvml, gpu: nvml.device_get_current_clocks_event_reasons(gpu)),
    # Each of these takes NVML 20 ms.
    (
        "PCIe sent",
        "KB/s",
        lambda nvml, gpu: nvml.device_get_pcie_throughput(gpu, nvml.PcieUtilCounter.PCIE_UTIL_TX_BYTES),
    ),
    (
        "PCIe received",
        "KB/s",
        lambda nvml, gpu: nvml.device_get_pcie_throughput(gpu, nvml.PcieUtilCounter.PCIE_UTIL_RX_BYTES),
    ),
]

#: NVLink's counters, by NVML's names for them, each with ours.
_NVLINK: Final = (
    ("NVLink sent", "DEV_NVLINK_THROUGHPUT_DATA_TX"),
    ("NVLink received", "DEV_NVLINK_THROUGHPUT_DATA_RX"),
)
_ALL_LINKS: Final = (1 << 32) - 1
#: `nvmlValueType_t` of whole numbers, and the member of the value's union that holds one on Linux.
_MEMBERS: Final = {1: "ui_val", 2: "ull_val", 3: "ull_val"}


class Sampler:
    """Reads on a thread of its own, every ``period_ns``, from `start` to `stop`; with 0, never.

    ``give`` takes the values; ``gpus()`` are the CUDA devices in use; ``wanted()`` says whether anything is recorded
    now; ``tell(text)`` tells the user, once. Methods raise nothing.
    """

    def __init__(
        self,
        period_ns: int,
        give: Give,
        gpus: Callable[[], Iterable[Device]],
        wanted: Callable[[], bool],
        tell: Callable[[str], None],
    ) -> None:
        self._give = give
        self._gpus = gpus
        self._wanted = wanted
        self._tell = tell
        self._thread = Collector(self.sample, period_ns / 1e9) if period_ns else None
        self._memory = ResidentMemory()
        self._torch = TorchMemory(give, tell)
        self._cpu: tuple[int, int] | None = None  # CPU time and host time of the last look, in ns
        self._nvml: Any = None
        self._closed = False  # there is no NVML here
        self._known: dict[str, list[Metric]] = {}  # what each GPU can say, by uuid
        self._handles: dict[str, Any] = {}
        self._refused: dict[tuple[str, str], int] = {}
        self._rates: list[LinkRate] = []

    def start(self) -> None:
        """Have the thread run, unless it does."""
        if self._thread is not None and (not self._thread.running or self._thread.hurry()):
            self._cpu = None
            self._thread.start()

    def stop(self) -> bool:
        """Have no thread here; it ends with what it is reading. False if that takes too long."""
        return self._thread is None or self._thread.stop(FORK_DEADLINE_S)

    def close(self) -> None:
        """The recording is over."""
        if not self.stop():
            return
        self._memory.close()
        if self._nvml is not None:
            try:
                self._nvml.shutdown()
            except Exception:
                pass  # nobody reads it any more
            self._nvml = None

    def sample(self) -> None:
        """Read everything once."""
        if not self._wanted():
            self._cpu = None  # a pause is no part of what is averaged
            for rate in self._rates:
                rate.forget()
            return
        self._sample_process()
        self._torch.sample()
        seen = set()
        for device in self._gpus():
            uuid = str(device.labels.get("uuid", ""))
            if uuid not in seen and self._nvml_is_here():  # one that has two contexts is one GPU
                seen.add(uuid)
                self._sample_gpu(device, uuid)

    def _sample_process(self) -> None:
        try:
            self._give("memory used", now_ns(), self._memory.read_bytes(), "bytes", None)
        except (OSError, ValueError, IndexError):
            pass  # not Linux, or /proc is out of reach
        before, now = self._cpu, (process_time_ns(), now_ns())
        self._cpu = now
        if before is not None and now[1] > before[1]:
            self._give("CPU used", now[1], round(100 * (now[0] - before[0]) / (now[1] - before[1]), 1), "percent", None)

    def _sample_gpu(self, device: Device, uuid: str) -> None:
        if uuid not in self._known:
            self._known[uuid] = self._find(device, uuid)
        for metric in list(self._known[uuid]):
            name, unit, read = metric
            try:
                value = read(self._nvml, self._handles[uuid])
            except Exception:
                count = self._refused[uuid, name] = self._refused.get((uuid, name), 0) + 1
                if count >= REFUSALS:
                    self._known[uuid].remove(metric)
            else:
                if value is not None:
                    self._give(name, now_ns(), value, unit, device)

    def _find(self, device: Device, uuid: str) -> list[Metric]:
        try:
            self._handles[uuid] = self._nvml.device_get_handle_by_uuid(uuid)
        except Exception as error:
            self._tell(f"no counters of GPU {device.ordinal}: NVML does not know it: {error}")
            return []
        links: list[Metric] = []
        for name, field in _NVLINK:
            self._rates.append(LinkRate(field))
            links.append((name, "KiB/s", self._rates[-1]))
        return [*METRICS, *links]

    def _nvml_is_here(self) -> bool:
        """Open NVML the first time. The bindings take 0.2 s to import: nobody pays that before a GPU is in use."""
        if self._nvml is None and not self._closed:
            try:
                nvml: Any = __import__("cuda.bindings.nvml", fromlist=["init_v2"])
                nvml.init_v2()
                self._nvml = nvml
            except Exception as error:  # the binding's own errors have no common base
                self._closed = True
                self._tell(f"no GPU counters: NVML cannot be used: {error}")
        return self._nvml is not None


class LinkRate:
    """Traffic over all NVLinks of a GPU in KiB/s, from one call to the next; None at the first. NVML counts KiB."""

    def __init__(self, field: str) -> None:
        self._field = field
        self._before: tuple[int, int] | None = None  # KiB, and host time in ns

    def forget(self) -> None:
        """What comes before the next call does not count."""
        self._before = None

    def __call__(self, nvml: Any, gpu: Any) -> float | None:
        """Raises LookupError where the GPU has no links, and what NVML raises."""
        value = nvml.FieldValue()
        value.field_id, value.scope_id = getattr(nvml.FieldId, self._field), _ALL_LINKS
        nvml.device_get_field_values(gpu, value)
        now = now_ns()
        if value.nvml_return:
            raise LookupError(f"NVML says {value.nvml_return} of {self._field}")
        total_kib = int(value.value[_MEMBERS[value.value_type]][0])
        before, self._before = self._before, (total_kib, now)
        if before is None or total_kib < before[0] or now <= before[1]:  # less: the links were reset
            return None
        return round((total_kib - before[0]) * 1e9 / (now - before[1]), 1)


class ResidentMemory:
    """How much of this process's memory is in RAM. Linux.

    The file stays open: one opened for every look would each time have the lowest number for a moment, which in a
    program without standard streams is its standard error.
    """

    def __init__(self) -> None:
        self._file: OwnFile | None = None
        self._pid = 0

    def read_bytes(self) -> int:
        """Raises OSError, ValueError or IndexError where the system does not say."""
        if self._file is None or self._pid != os.getpid() or not self._file.ours():
            self.close()
            self._file, self._pid = OwnFile("/proc/self/statm", os.O_RDONLY), os.getpid()
        return int(os.pread(self._file.descriptor, 200, 0).split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            self._file.close()
        self._file = None


class TorchMemory:
    """What PyTorch's caching allocator holds on each GPU that the program has allocated on.

    The allocator answers behind its own lock, and asks the device nothing. So does the "native" one alone.
    """

    def __init__(self, give: Give, tell: Callable[[str], None]) -> None:
        self._give = give
        self._tell = tell
        self._refusals = 0
        self._lists_blocks = True

    def sample(self) -> None:
        """Read it once, if the program has started CUDA by PyTorch. Raises nothing."""
        cuda = getattr(sys.modules.get("torch"), "cuda", None)
        is_initialized = getattr(cuda, "is_initialized", None)  # none while it is half imported
        if cuda is None or is_initialized is None or self._refusals >= REFUSALS:
            return
        try:
            if not is_initialized():
                return
            if cuda.get_allocator_backend() != "native":
                self._refusals = REFUSALS
                self._tell(f"no counters of PyTorch's memory: its allocator is {cuda.get_allocator_backend()}")
                return
            self._read(cuda)
        except Exception as error:
            let_through(error)
            self._refusals += 1
            if self._refusals == REFUSALS:
                self._tell(f"no counters of PyTorch's memory: {type(error).__name__}: {error}")

    def _read(self, cuda: Any) -> None:
        used, blocks = [], 0
        for index in range(cuda.device_count()):
            stats = cuda.memory_stats_as_nested_dict(index)
            now = now_ns()
            reserved = stats["reserved_bytes"]["all"]
            if reserved["peak"]:
                used.append(index)
                allocated = stats["allocated_bytes"]["all"]["current"]
                self._give(f"torch allocated, GPU {index}", now, allocated, "bytes", None)
                self._give(f"torch reserved, GPU {index}", now, reserved["current"], "bytes", None)
                blocks += sum(stats[kind]["all"]["current"] for kind in ("active", "inactive_split", "segment"))
        if used and self._lists_blocks and blocks <= MOST_BLOCKS:
            begin = now_ns()
            segments = cuda.memory_snapshot(include_traces=False)
            now = now_ns()
            if now - begin > LONGEST_LIST_NS:
                self._lists_blocks = False
                self._tell(
                    "PyTorch's largest free block is shown no more: it takes its allocator too long to list them"
                )
            for index in used:
                free = [
                    block["size"]
                    for segment in segments
                    if segment["device"] == index
                    for block in segment["blocks"]
                    if block["state"] == "inactive"
                ]
                self._give(f"torch largest free block, GPU {index}", now, max(free, default=0), "bytes", None)
