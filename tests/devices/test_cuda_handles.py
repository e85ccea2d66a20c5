"""One int for a stream, whichever library it comes from."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest

from gputrace.devices import stream_handle
from gputrace.errors import UsageError


class Protocol:
    """As cuda.core's streams."""

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, 0x70


class ProtocolAsValue:
    __cuda_stream__ = (0, 0x71)


class Torch(Protocol):
    """Newer torch streams have both."""

    cuda_stream = 0x70


class BrokenProtocol:
    """Its first way of telling raises; the second works."""

    @property
    def __cuda_stream__(self) -> tuple[int, int]:
        raise RuntimeError("not initialised")

    ptr = 0x72


class NumbaHandle:
    """Numba's own: no ctypes, but a value."""

    value = 0x73


@pytest.mark.parametrize(
    ("stream", "handle"),
    [
        (None, 0),
        (0, 0),
        (2, 2),
        (0x7F0000000000, 0x7F0000000000),
        (Protocol(), 0x70),
        (ProtocolAsValue(), 0x71),
        (Torch(), 0x70),
        (SimpleNamespace(cuda_stream=0x90), 0x90),
        (SimpleNamespace(ptr=0x91), 0x91),
        (SimpleNamespace(handle=0x92), 0x92),
        (SimpleNamespace(handle=ctypes.c_void_p(0x93)), 0x93),
        (SimpleNamespace(handle=ctypes.c_void_p(None)), 0),
        (SimpleNamespace(handle=None), 0),
        (SimpleNamespace(handle=NumbaHandle()), 0x73),
        (ctypes.c_void_p(0x94), 0x94),
        (BrokenProtocol(), 0x72),
    ],
)
def test_handles(stream: Any, handle: int) -> None:
    assert stream_handle(stream) == handle


def test_the_bindings_streams() -> None:
    from cuda.bindings import driver

    assert stream_handle(driver.CUstream(0x1234)) == 0x1234
    assert stream_handle(driver.CUstream()) == 0
    assert stream_handle(SimpleNamespace(handle=driver.CUstream(0x1235))) == 0x1235


def test_numpys_ints() -> None:
    import numpy

    assert stream_handle(numpy.int64(7)) == 7


def test_the_simulated_stream() -> None:
    from gputrace.devices.simulated import default_gpu

    stream = default_gpu().stream_create()
    assert stream_handle(stream) == stream.handle


@pytest.mark.parametrize(
    "stream", ["7", 7.0, True, b"7", object(), [], -1, 2**64, SimpleNamespace(handle="7"), SimpleNamespace(ptr=1.5)]
)
def test_what_is_no_stream_is_refused_with_the_list_of_what_is(stream: Any) -> None:
    with pytest.raises(UsageError, match=r"__cuda_stream__.*torch, CuPy or Numba.*int handle, or None"):
        stream_handle(stream)


def test_an_object_whose_every_attribute_raises() -> None:
    class Hostile:
        def __getattr__(self, name: str) -> Any:
            raise KeyError(name)

    with pytest.raises(UsageError, match="Hostile"):
        stream_handle(Hostile())
