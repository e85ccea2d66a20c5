from .. import knobs
from ..backends import backends
from ..compiler import CompiledKernel, KernelMetadata


class JITFunction:
    def __init__(self, fn):
        self.fn = fn
        self.kernels = {}

    def __getitem__(self, grid):
        return lambda *args, **kwargs: self.run(*args, grid=grid, warmup=False, **kwargs)

    def run(self, *args, grid, warmup, num_warps=4, num_stages=3):
        driver = backends["nvidia"].driver.active
        stream = driver.get_current_stream(driver.get_current_device())
        key = num_warps, num_stages
        if key not in self.kernels:
            metadata = KernelMetadata(self.fn.__name__, 1, num_stages, num_warps, 0)
            self.kernels[key] = CompiledKernel(self, metadata)
        kernel = self.kernels[key]
        if not warmup:
            grid = (*grid, 1, 1)[:3]
            launch_metadata = kernel.launch_metadata(grid, stream, *args)
            kernel.run(
                *grid,
                stream,
                kernel.function,
                kernel.packed_metadata,
                launch_metadata,
                knobs.runtime.launch_enter_hook,
                knobs.runtime.launch_exit_hook,
                *args,
            )
        return kernel


def jit(fn):
    return JITFunction(fn)
