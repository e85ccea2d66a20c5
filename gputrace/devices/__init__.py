"""Which devices there are, and how to name one of their streams.

Imports no driver and no bindings, and never fails to import: a program is traced on machines that have neither.
"""

from __future__ import annotations

from gputrace.errors import NoDriver, UsageError
from gputrace.fence import let_through

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from gputrace.devices.base import Backend, Device

#: What `--device` takes.
KINDS = ("auto", "cuda", "simulated", "host")

#: The oldest usable driver, as cuDriverGetVersion says it: 12.0 (see `gputrace.devices.cuda`).
OLDEST_DRIVER = 12000

#: cuInit's result codes that a user can do something about.
INIT_ERRORS = {
    34: "the libcuda.so.1 found is the toolkit's stub, not the driver's: take its folder off LD_LIBRARY_PATH",
    100: "the NVIDIA driver sees no GPU: see nvidia-smi, CUDA_VISIBLE_DEVICES, and --gpus for a container",
    802: "the GPU system is not ready: see the fabric manager's state",
    803: "the NVIDIA driver and its kernel module are of different versions: reboot, or reload the module",
    804: "libcuda.so.1 is of a compatibility package that this GPU does not support: take it off LD_LIBRARY_PATH",
}


class CudaProbe:
    """Whether CUDA can be traced here. ``reason`` is a line for the user: what was found, or why not and what to do."""

    __slots__ = ("devices", "driver_version", "found", "reason")

    def __init__(self, found: bool, reason: str, devices: int = 0, driver_version: int = 0) -> None:
        self.found = found
        self.reason = reason
        self.devices = devices
        self.driver_version = driver_version


def probe_cuda(initialise: bool = True) -> CudaProbe:
    """Look for a usable driver, GPU and bindings. Never raises.

    ``initialise`` is for a process of our own, the launcher. In a program that is not ours cuInit would be felt: the
    program's later forks could no longer use CUDA. Its GPUs are not counted then, and a driver without any is found.

    Asks libcuda itself: importing the bindings would take longer than the launcher may.
    """
    import ctypes

    try:
        library = ctypes.CDLL("libcuda.so.1")
        version, devices = ctypes.c_int(), ctypes.c_int()
        library.cuDriverGetVersion(ctypes.byref(version))
        if version.value < OLDEST_DRIVER:
            major, minor = divmod(version.value // 10, 100)
            why = f"the NVIDIA driver is for CUDA {major}.{minor}, and 12.0 is needed: update it to 525 or later"
            return CudaProbe(False, why, driver_version=version.value)
        code = initialise and (library.cuInit(0) or library.cuDeviceGetCount(ctypes.byref(devices)))
    except OSError as error:
        why = f"no NVIDIA driver ({error}): install one, or start the container with its GPUs"
        return CudaProbe(False, why)
    except AttributeError as error:
        return CudaProbe(False, f"libcuda.so.1 is not an NVIDIA driver: {error}")
    if initialise and code == 0 and devices.value == 0:
        code = 100
    if code:
        why = INIT_ERRORS.get(code, f"the NVIDIA driver does not start: cuInit returned {code}; see nvidia-smi")
        return CudaProbe(False, why, driver_version=version.value)
    if not _bindings_installed():
        why = "an NVIDIA driver is here, but not cuda-python: pip install 'cuda-python>=12.9'"
        return CudaProbe(False, why, devices.value, version.value)
    major, minor = divmod(version.value // 10, 100)
    gpus = {0: "", 1: "1 GPU, "}.get(devices.value, f"{devices.value} GPUs, ")
    return CudaProbe(True, f"{gpus}driver for CUDA {major}.{minor}", devices.value, version.value)


def _bindings_installed() -> bool:
    from importlib.util import find_spec

    try:
        return find_spec("cuda.bindings") is not None
    except (ImportError, ValueError):
        return False


def choose(kind: str, initialise: bool = True) -> tuple[str, str]:
    """The kind of device that `--device KIND` means on this machine, never "auto", and a line that says why.

    ``initialise`` as in `probe_cuda`: False in a program that is not ours. Raises `UsageError` for an unknown kind,
    `NoDriver` for "cuda" where it cannot be used.
    """
    if kind == "simulated":
        return kind, "simulated GPU: its timings are made up"
    if kind == "host":
        return kind, "host spans only, as asked"
    if kind not in KINDS:
        raise UsageError(f"unknown device {kind!r}: use one of {', '.join(KINDS)}")
    probe = probe_cuda(initialise)
    if probe.found:
        return "cuda", f"cuda: {probe.reason}"
    if kind == "cuda":
        raise NoDriver(f"the device cuda cannot be used: {probe.reason}")
    return "host", f"host spans only: {probe.reason}"


def open_backend(kind: str) -> Backend:
    """The driver of a kind of device. Raises `NoDriver`, or `UsageError` for a kind that has none."""
    if kind == "cuda":
        from gputrace.devices.cuda import CudaBackend

        return CudaBackend()
    if kind == "simulated":
        from gputrace.devices.simulated import SimulatedBackend

        return SimulatedBackend()
    raise UsageError(f"no driver for a device of kind {kind!r}: those with one are cuda and simulated")


def device_of(kind: str, stream: Any = None) -> Device:
    """The device of a kind that a stream belongs to; by default, the one of the calling thread's current context.

    Raises `NoDriver`, `DriverError` (no context is current, or no such stream) and `UsageError` (unknown kind).
    """
    return open_backend(kind).stream(stream_handle(stream)).device


#: How libraries name a stream's handle, in the order tried. An object may have several; the protocol's word is first.
STREAM_ATTRIBUTES = (
    "__cuda_stream__",  # cuda.core's protocol: a (version, handle) pair, or a method that returns it
    "cuda_stream",  # torch
    "ptr",  # CuPy
    "handle",  # Numba, cuda.core, the simulated GPU
)
ACCEPTED = "an object with __cuda_stream__, a torch, CuPy or Numba stream, a CUstream, an int handle, or None"


def stream_handle(stream: Any) -> int:
    """The int handle of a stream, whichever library it comes from; None is the legacy default stream, 0.

    Raises `UsageError` for anything that is not a stream.
    """
    if stream is None:
        return 0
    handle = _as_int(stream)
    for name in STREAM_ATTRIBUTES if handle is None else ():
        # Any attribute may be a property that raises: then the object does not say, and the next name is tried.
        try:
            value = getattr(stream, name)
            if name == "__cuda_stream__":
                _, value = value() if callable(value) else value
            handle = 0 if value is None else _as_int(value)
        except Exception as error:
            let_through(error)
            continue
        if handle is not None:
            break
    if handle is None or not 0 <= handle < 2**64:
        shown = type(stream).__name__ if handle is None else f"handle {handle}"
        raise UsageError(f"not a stream: {shown}; pass {ACCEPTED}")
    return handle


def _as_int(value: Any) -> int | None:
    """A handle as one of the types that carry one: int, ctypes.c_void_p, CUstream. None for all others."""
    if isinstance(value, bool | float | str | bytes):
        return None
    if isinstance(value, int):
        return int(value)
    kind = type(value)
    try:
        if kind.__name__ in ("CUstream", "cudaStream_t"):
            return int(value)
        if kind.__module__ == "ctypes" or hasattr(kind, "value"):
            inner = value.value
            return 0 if inner is None else _as_int(inner)
        return int(kind.__index__(value)) if hasattr(kind, "__index__") else None
    except Exception as error:
        let_through(error)
        return None
