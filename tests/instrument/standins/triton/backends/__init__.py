from dataclasses import dataclass

from .nvidia.driver import CudaDriver


@dataclass(frozen=True)
class Backend:
    driver: type


backends = {"nvidia": Backend(CudaDriver)}
