"""Stands in for CuPy (14.2): its ranges alone."""

from . import cuda

__all__ = ["cuda"]
