"""Steers the fake driver from inside the process that uses it, and tells what really happened.

Imports nothing of cuda-python, and loads the very library the bindings load: `libcuda.so.1` by name. Only in a process
started with `environment()`.
"""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

KINDS = {"context": 1, "stream": 2, "event": 3, "module": 4, "function": 5, "graph": 6, "exec": 7}


class Stamp(NamedTuple):
    """One event record, as it really happened.

    `number` counts all stamps of the process, `event_record` those of the event (1 is its first). `stream` is the
    handle, 1 and 2 for the legacy and per-thread streams. `call_ns`: CLOCK_MONOTONIC when the record was called;
    `host_ns`: CLOCK_MONOTONIC when the stream reached it; `device_ns`: the device clock then, rounded to its tick.
    """

    number: int
    event: int
    event_record: int
    stream: int
    context: int
    device: int
    call_ns: int
    host_ns: int
    device_ns: int


class _Stamp(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_uint64) for name in Stamp._fields[:6]),
        *((name, ctypes.c_int64) for name in Stamp._fields[6:]),
    ]

    def tuple(self) -> Stamp:
        return Stamp(*(getattr(self, name) for name in Stamp._fields))


_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "fake_set": (ctypes.c_int, [ctypes.c_char_p, ctypes.c_double]),
    "fake_get": (ctypes.c_double, [ctypes.c_char_p]),
    "fake_clock": (None, [ctypes.c_int, ctypes.c_double, ctypes.c_double, ctypes.c_double]),
    "fake_device_time": (ctypes.c_int64, [ctypes.c_int, ctypes.c_int64]),
    "fake_fail": (ctypes.c_int, [ctypes.c_char_p, ctypes.c_int64, ctypes.c_int, ctypes.c_int64, ctypes.c_int]),
    "fake_delay": (ctypes.c_int, [ctypes.c_char_p, ctypes.c_int64]),
    "fake_lose": (None, [ctypes.c_int]),
    "fake_heal": (None, []),
    "fake_calls": (ctypes.c_uint64, [ctypes.c_char_p]),
    "fake_calls_at": (ctypes.c_uint64, [ctypes.c_int]),
    "fake_function": (ctypes.c_char_p, [ctypes.c_int]),
    "fake_reset_calls": (None, []),
    "fake_live": (ctypes.c_int64, [ctypes.c_int]),
    "fake_made": (ctypes.c_int64, [ctypes.c_int]),
    "fake_stream_syncs": (ctypes.c_int64, [ctypes.c_uint64]),
    "fake_enqueue": (ctypes.c_int, [ctypes.c_uint64, ctypes.c_int64]),
    "fake_event": (ctypes.c_int, [ctypes.c_uint64, ctypes.POINTER(_Stamp)]),
    "fake_truth_count": (ctypes.c_uint64, []),
    "fake_truth_dropped": (ctypes.c_uint64, []),
    "fake_truth_read": (ctypes.c_uint64, [ctypes.POINTER(_Stamp), ctypes.c_uint64, ctypes.c_uint64]),
    "fake_truth_reset": (None, []),
    "fake_truth_write": (ctypes.c_int, [ctypes.c_char_p]),
    "fake_counts_write": (ctypes.c_int, [ctypes.c_char_p]),
}


def _load() -> ctypes.CDLL:
    library = ctypes.CDLL("libcuda.so.1")
    if not hasattr(library, "fake_set"):
        raise RuntimeError("this process has another libcuda.so.1: start it with tests.fake_driver.environment()")
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


_library = _load()


def _known(found: int, name: str) -> None:
    if not found:
        raise KeyError(f"the fake driver has no function {name!r}")


def set(**settings: float) -> None:
    """Change settings (see `SETTINGS` in src/fake.h). Device clocks go on from where they are, without a step."""
    for name, value in settings.items():
        if _library.fake_set(name.encode(), value):
            raise KeyError(f"the fake driver has no setting {name!r}")


def get(name: str) -> float:
    return float(_library.fake_get(name.encode()))


def clock(device: int, skew_ppm: float = 0, wander_ppm: float = 0, wander_period_s: float = 10) -> None:
    """Set the clock of one device alone."""
    _library.fake_clock(device, skew_ppm, wander_ppm, wander_period_s)


def device_time_ns(host_ns: int, device: int = 0) -> int:
    """What the device's clock shows at a host time (CLOCK_MONOTONIC), before rounding to its tick."""
    return int(_library.fake_device_time(device, host_ns))


def fail(function: str, code: int, nth: int = 1, times: int = 1, lose_device: bool = False) -> None:
    """The nth call of a function from now, and `times` - 1 after it, return `code`; `times=-1` is for ever.

    A name means every version of it ("cuEventElapsedTime"), a symbol one ("cuEventElapsedTime_v2"). With
    `lose_device` every call of any function then goes on to return the code.
    """
    _known(_library.fake_fail(function.encode(), nth, code, times, lose_device), function)


def delay(function: str, ns: int) -> None:
    """Every call of the function takes `ns` longer (outside the driver's lock)."""
    _known(_library.fake_delay(function.encode(), ns), function)


def lose_device(code: int = 700) -> None:
    """From now on every call that needs the device returns `code`, as after a fault on it."""
    _library.fake_lose(code)


def heal() -> None:
    """Forget every fault and delay, and the lost device."""
    _library.fake_heal()


def calls(function: str) -> int:
    """How often a function has been called since the start or `reset_calls()`, failures included."""
    count = int(_library.fake_calls(function.encode()))
    _known(count != 2**64 - 1, function)
    return count


def all_calls() -> dict[str, int]:
    """Every function called so far, by symbol."""
    counts: dict[str, int] = {}
    index = 0
    while symbol := _library.fake_function(index):
        if count := _library.fake_calls_at(index):
            counts[symbol.decode()] = int(count)
        index += 1
    return counts


def reset_calls() -> None:
    _library.fake_reset_calls()


def live(kind: str) -> int:
    """How many objects of a kind (see `KINDS`) exist; streams that a context simply has are not counted."""
    return int(_library.fake_live(KINDS[kind]))


def made(kind: str) -> int:
    """How many objects of a kind were ever made."""
    return int(_library.fake_made(KINDS[kind]))


def stream_syncs(stream: object) -> int:
    """How often this very stream was synchronised; -1 if it is gone."""
    return int(_library.fake_stream_syncs(int(stream)))  # type: ignore[call-overload]


def enqueue(stream: object, ns: int) -> None:
    """Work of a given duration on a stream, or into its capture, without a module and a launch."""
    code = _library.fake_enqueue(int(stream), ns)  # type: ignore[call-overload]
    if code:
        raise RuntimeError(f"enqueue failed with {code}")


def event(handle: object) -> Stamp:
    """The last record of an event; `host_ns` is 0 if there was none. `number` and `call_ns` are in the log alone."""
    stamp = _Stamp()
    if _library.fake_event(int(handle), ctypes.byref(stamp)):  # type: ignore[call-overload]
        raise KeyError(f"no event {handle}")
    return stamp.tuple()


def truth() -> list[Stamp]:
    """The log of all event records, in the order of their calls. Needs the setting `truth` (how many to keep)."""
    count = int(_library.fake_truth_count())
    stamps = (_Stamp * count)()
    read = _library.fake_truth_read(stamps, 0, count)
    return [stamp.tuple() for stamp in stamps[:read]]


def truth_dropped() -> int:
    """How many records did not fit the log."""
    return int(_library.fake_truth_dropped())


def truth_reset() -> None:
    _library.fake_truth_reset()


def write_truth(path: str) -> None:
    """The log as CSV, as `FAKE_CUDA_TRUTH_FILE` does at exit; "%p" in the name becomes the process id."""
    if _library.fake_truth_write(path.encode()):
        raise OSError(f"cannot write {path}")


def write_counts(path: str) -> None:
    """Counts of calls and objects, as `FAKE_CUDA_COUNTS_FILE` does at exit."""
    if _library.fake_counts_write(path.encode()):
        raise OSError(f"cannot write {path}")
