"""Marks every test here that uses the GPU `gpu`, and skips it where there is none."""

from __future__ import annotations

import pytest

from tests.gpu.device import GPU, NoGPU, open_gpu


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "gpu" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.gpu)


@pytest.fixture
def gpu() -> GPU:
    try:
        return open_gpu()
    except NoGPU as reason:
        pytest.skip(str(reason))
