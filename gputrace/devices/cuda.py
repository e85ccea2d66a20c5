"""CUDA devices through `cuda.bindings.driver`, in a program that is not ours.

It creates no context, retains none and initialises nothing: what the program has not made current or passed a stream
of does not exist here. (`describe` alone calls cuInit; it is for `gputrace doctor`, never for a traced program.)

The bindings are imported by the constructor of `CudaBackend`, not by this module: it takes 160 ms.
"""

from __future__ import annotations

from gputrace.devices.base import AMBIENT_HANDLES, PER_THREAD, Backend, Device, Stream
from gputrace.errors import DriverError, NoDriver
from gputrace.fence import let_through

TYPE_CHECKING = False
if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from types import TracebackType
    from typing import Any

#: The oldest driver that has what is called here: cuStreamGetId and cuCtxGetId came with CUDA 12.0.
OLDEST_DRIVER = 12000

#: Handles are addresses of the process; no 64-bit system gives a process more than 2^57.
ADDRESSES = 1 << 57

# From cuda.h: CUresult, CUevent_flags, CUstream_flags, CUstreamCaptureMode, CUdevice_attribute.
NOT_INITIALIZED = 3
NO_DEVICE = 100
INVALID_CONTEXT = 201
INVALID_HANDLE = 400
NOT_READY = 600
CAPTURE_IMPLICIT = 906
EVENT_DEFAULT = 0  # timing on, spinning wait, not shared between processes
STREAM_NON_BLOCKING = 1
CAPTURE_MODE_RELAXED = 2
PROC_ADDRESS_LEGACY = 1  # CUdriverProcAddress_flags
PROC_ADDRESS_PER_THREAD = 2
#: What the compiled core calls, each with the version of the interface that it calls.
CORE_FUNCTIONS = (
    (b"cuEventRecord", 2000),
    (b"cuStreamIsCapturing", 10000),
    (b"cuEventElapsedTime", 2000),
    (b"cuCtxGetCurrent", 4000),
    (b"cuCtxGetId", 12000),
)
COMPUTE_CAPABILITY_MAJOR = 75
COMPUTE_CAPABILITY_MINOR = 76

HINTS = {
    NOT_INITIALIZED: "the program has not initialised CUDA yet, or this process was forked from one that had",
    INVALID_CONTEXT: "no context of that name is current, or it was destroyed: make the stream's device current first",
    400: "the stream or event was destroyed, or belongs to another context",
    700: "a kernel has failed and taken the context with it; see the program's own error",
    709: "the program has destroyed the context",
    900: "a stream is being captured into a graph, which forbids this call",
    901: "a stream was being captured into a graph, and the capture was broken",
    CAPTURE_IMPLICIT: "the legacy default stream would wait for a stream that is being captured: pass a stream instead",
    907: "the event was recorded during a stream capture: it has no time of its own",
}


def version_text(version: int) -> str:
    """12090 as "12.9"."""
    return f"{version // 1000}.{version % 1000 // 10}"


def call(driver: Any, name: str, *arguments: Any) -> Any:
    """Call a driver function of the bindings; return what comes beside its result code (None, a value, or a tuple).

    Raises `DriverError` for a code that is not success, and for any exception: the bindings raise ValueError for codes
    they do not know and RuntimeError for functions this driver lacks. Where there is no driver at all: `NoDriver`.
    """
    try:
        code, *values = getattr(driver, name)(*arguments)
    except Exception as error:
        let_through(error)
        # Without libcuda: DynamicLibNotFoundError of cuda.pathfinder, or plain RuntimeError in earlier versions. A
        # function that this driver lacks is another subclass of RuntimeError.
        kind = type(error).__name__
        if kind in ("DynamicLibNotFoundError", "RuntimeError"):
            raise NoDriver(f"no NVIDIA driver here: {error}") from error
        raise DriverError(name, -1, kind, str(error)) from error
    if code:
        raise DriverError(name, int(code), getattr(code, "name", ""), HINTS.get(int(code), ""))
    return values[0] if len(values) == 1 else tuple(values) or None


class _Active:
    """A context made current and the thread's capture mode relaxed; both put back, whatever happens between."""

    __slots__ = ("_context", "_driver", "_mode")

    def __init__(self, driver: Any, context: Any) -> None:
        self._driver = driver
        self._context = context

    def __enter__(self) -> None:
        driver = self._driver
        call(driver, "cuCtxPushCurrent", self._context)
        try:
            relaxed = driver.CUstreamCaptureMode(CAPTURE_MODE_RELAXED)
            self._mode = call(driver, "cuThreadExchangeStreamCaptureMode", relaxed)
        except BaseException:
            self._pop()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        failure = None
        try:
            call(self._driver, "cuThreadExchangeStreamCaptureMode", self._mode)
        except DriverError as caught:
            failure = caught
        try:
            self._pop()
        except DriverError as caught:
            failure = failure or caught
        if failure is not None and error is None:
            raise failure

    def _pop(self) -> None:
        # Destroying a context pops it from the thread that destroys it (cuCtxDestroy's manual page). If that happened
        # inside, one more pop would take the program's own context away.
        if int(call(self._driver, "cuCtxGetCurrent")) == int(self._context):
            call(self._driver, "cuCtxPopCurrent")


class CudaDevice(Device):
    """One context of one NVIDIA GPU. Made by `CudaBackend`, one a context.

    Raises `DriverError` if the GPU's name cannot be read.
    """

    kind = "cuda"

    # "A resolution of around 0.5 microseconds", says the manual of cuEventElapsedTime. GPUs of recent years stamp in
    # steps of 32 ns, but nothing promises it, and the bound on a slice's place must hold on all of them.
    tick_ns = 500

    def __init__(self, driver: Any, context: Any, ordinal: int, labels: dict[str, Any]) -> None:
        self._driver = driver
        self._native_context = context
        self._query = driver.cuEventQuery
        self.context = int(context)
        self.ordinal = ordinal
        self.record_raw = driver.cuEventRecord
        self.capturing_raw = driver.cuStreamIsCapturing
        self.elapsed_raw = driver.cuEventElapsedTime
        facts = device_facts(driver, ordinal)
        self.name = facts.pop("name")
        self.labels = {**labels, **facts}

    def __repr__(self) -> str:
        return f"CudaDevice(GPU {self.ordinal}, {self.name!r}, context {self.context:#x})"

    def functions(self) -> tuple[int, int, int, int, int] | None:
        """As the bindings themselves would find them: the default stream is the legacy one unless they were told that
        it is each thread's.
        """
        import os

        per_thread = os.environ.get("CUDA_PYTHON_CUDA_PER_THREAD_DEFAULT_STREAM", "0") not in ("", "0")
        flags = PROC_ADDRESS_PER_THREAD if per_thread else PROC_ADDRESS_LEGACY
        addresses = []
        for name, version in CORE_FUNCTIONS:
            address, found = call(self._driver, "cuGetProcAddress", name, version, flags)
            if not address or int(found):
                return None
            addresses.append(int(address))
        record, capturing, elapsed, context, context_id = addresses
        return record, capturing, elapsed, context, context_id

    def active(self) -> AbstractContextManager[object]:
        return _Active(self._driver, self._native_context)

    def event_create(self) -> Any:
        return call(self._driver, "cuEventCreate", EVENT_DEFAULT)

    def event_destroy(self, event: Any) -> None:
        call(self._driver, "cuEventDestroy", event)

    def event_record(self, event: Any, stream: Any) -> None:
        call(self._driver, "cuEventRecord", event, stream)

    def event_query(self, event: Any) -> bool:
        try:
            (code,) = self._query(event)
        except Exception as error:
            let_through(error)
            raise DriverError("cuEventQuery", -1, type(error).__name__, str(error)) from error
        if code == NOT_READY:
            return False
        if code:
            raise DriverError("cuEventQuery", int(code), code.name, HINTS.get(int(code), ""))
        return True

    def event_wait(self, event: Any) -> None:
        call(self._driver, "cuEventSynchronize", event)

    def elapsed_ms(self, start: Any, end: Any) -> float:
        milliseconds: float = call(self._driver, "cuEventElapsedTime", start, end)
        return milliseconds

    def stream_create(self) -> Any:
        return call(self._driver, "cuStreamCreate", STREAM_NON_BLOCKING)

    def stream_destroy(self, stream: Any) -> None:
        call(self._driver, "cuStreamDestroy", stream)

    def stream_capturing(self, stream: Any) -> bool:
        try:
            return bool(call(self._driver, "cuStreamIsCapturing", stream))
        except DriverError as error:
            if error.code == CAPTURE_IMPLICIT:
                return True
            raise


class CudaBackend(Backend):
    """The CUDA driver, through cuda-python 12.9 or later.

    Raises `NoDriver` where cuda-python is not installed, there is no driver, or it is older than CUDA 12.0.
    """

    kind = "cuda"

    def __init__(self) -> None:
        # Not at import time: see the module's docstring.
        from _thread import allocate_lock
        from importlib import import_module

        try:
            self._driver: Any = import_module("cuda.bindings.driver")
        except ImportError as error:
            raise NoDriver(f"cuda-python is not usable: {error}; pip install 'cuda-python>=12.9'") from error
        version = call(self._driver, "cuDriverGetVersion")
        if version < OLDEST_DRIVER:
            raise NoDriver(
                f"the NVIDIA driver is for CUDA {version_text(version)}, and 12.0 is the oldest that can be traced: "
                "update it to 525 or later"
            )
        self._labels = {"driver": version_text(version), "bindings": bindings_version()}
        self._devices: dict[int, tuple[int, CudaDevice]] = {}
        self._lock = allocate_lock()

    def stream(self, handle: int) -> Stream:
        driver = self._driver
        if not 0 <= handle < ADDRESSES:
            # A made-up number is undefined behaviour in the driver: it takes a handle for the address that it is.
            raise DriverError(
                "cuStreamGetCtx", INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", f"{handle:#x} is no stream's handle"
            )
        native = driver.CUstream(handle)
        if handle in AMBIENT_HANDLES:
            context = call(driver, "cuCtxGetCurrent")
            # The binding's null context is true: only its number tells.
            if not int(context):
                hint = "no context is current on this thread, so it has no default stream"
                raise DriverError("cuCtxGetCurrent", INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", hint)
        else:
            context = call(driver, "cuStreamGetCtx", native)
        device = self._device(context)
        with device.active():
            number = int(call(driver, "cuStreamGetId", native))
        return Stream(device, native, handle, number, _stream_name(handle, number))

    def _device(self, context: Any) -> CudaDevice:
        """The device of a context. A new context may get the address of a destroyed one: its id tells them apart."""
        number = int(call(self._driver, "cuCtxGetId", context))
        with self._lock:
            known = self._devices.get(int(context))
            if known is None or known[0] != number:
                with _Active(self._driver, context):
                    ordinal = int(call(self._driver, "cuCtxGetDevice"))
                known = number, CudaDevice(self._driver, context, ordinal, self._labels)
                self._devices[int(context)] = known
            return known[1]

    def describe(self) -> dict[str, Any]:
        """Keys: ``driver`` and ``bindings``, versions; ``devices``, a list of dicts (see `device_facts`).

        Calls cuInit. Raises `NoDriver` where the driver sees no GPU, `DriverError` where it fails otherwise.
        """
        try:
            call(self._driver, "cuInit", 0)
        except DriverError as error:
            if error.code == NO_DEVICE:
                raise NoDriver("the NVIDIA driver sees no GPU") from error
            raise
        count = call(self._driver, "cuDeviceGetCount")
        devices = [{"ordinal": ordinal, **device_facts(self._driver, ordinal)} for ordinal in range(count)]
        return {**self._labels, "devices": devices}


def device_facts(driver: Any, ordinal: int) -> dict[str, Any]:
    """``name``, ``compute_capability`` ("9.0"), ``memory_bytes`` and ``uuid`` of a GPU. Needs no context."""
    device = call(driver, "cuDeviceGet", ordinal)
    attribute = driver.CUdevice_attribute
    major = call(driver, "cuDeviceGetAttribute", attribute(COMPUTE_CAPABILITY_MAJOR), device)
    minor = call(driver, "cuDeviceGetAttribute", attribute(COMPUTE_CAPABILITY_MINOR), device)
    # The bindings hand back their whole buffer: the driver's C string, its NUL, then padding.
    name = call(driver, "cuDeviceGetName", 128, device).partition(b"\0")[0]
    uuid = call(driver, "cuDeviceGetUuid", device).bytes.hex()
    return {
        "name": name.decode(errors="replace"),
        "compute_capability": f"{major}.{minor}",
        "memory_bytes": int(call(driver, "cuDeviceTotalMem", device)),
        # As nvidia-smi -L prints it.
        "uuid": f"GPU-{uuid[:8]}-{uuid[8:12]}-{uuid[12:16]}-{uuid[16:20]}-{uuid[20:]}",
    }


def bindings_version() -> str:
    """Of cuda.bindings, which the caller has imported."""
    from importlib import import_module

    return str(getattr(import_module("cuda.bindings"), "__version__", "unknown"))


def _stream_name(handle: int, number: int) -> str:
    if handle == PER_THREAD:
        return f"per-thread default stream {number}"
    return "default stream" if handle in AMBIENT_HANDLES else f"stream {number}"
