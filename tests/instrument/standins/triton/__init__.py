"""Stands in for Triton (3.9)."""

from . import backends, compiler, knobs, runtime
from .runtime.jit import JITFunction, jit

__all__ = ["JITFunction", "backends", "compiler", "jit", "knobs", "runtime"]
