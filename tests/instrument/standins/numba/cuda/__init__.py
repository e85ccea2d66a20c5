"""Stands in for Numba's CUDA part (numba-cuda 0.30)."""

from cuda.core import Stream

from .dispatcher import CUDADispatcher


def jit(function):
    return CUDADispatcher(function)


def external_stream(ptr):
    return Stream.from_handle(ptr)
