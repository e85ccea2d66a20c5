"""A driver that knows the truth: a small `libcuda.so.1` which the real cuda-python package loads. See README.md."""

from __future__ import annotations

from tests.fake_driver.build import NoCompiler, environment, library_path, require
from tests.fake_driver.isolated import on_fake_driver

__all__ = ["NoCompiler", "environment", "library_path", "on_fake_driver", "require"]
