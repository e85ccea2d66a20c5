from collections import namedtuple

from .. import knobs
from ..backends import backends

KernelMetadata = namedtuple("KernelMetadata", ["name", "num_ctas", "num_stages", "num_warps", "shared"])


class LazyDict:
    def __init__(self, data):
        self.data = data
        self.extras = []

    def get(self):
        for func, args in self.extras:
            self.data = self.data | func(*args)
        self.extras.clear()
        return self.data


class CompiledKernel:
    def __init__(self, src, metadata):
        self.src = src
        self.metadata = metadata
        self.packed_metadata = metadata.num_warps, metadata.num_ctas, metadata.shared
        self.name = metadata.name
        self.function = None
        self._run = None

    @property
    def run(self):
        if self._run is None:
            self._run = backends["nvidia"].driver.active.launcher_cls(self.src, self.metadata)
        return self._run

    def launch_metadata(self, grid, stream, *args):
        return LazyDict({"name": self.name, "function": self.function, "stream": stream})

    def __getitem__(self, grid):
        def runner(*args, stream=None):
            launch_metadata = self.launch_metadata(grid, stream, *args)
            self.run(
                grid[0],
                grid[1],
                grid[2],
                stream,
                self.function,
                self.packed_metadata,
                launch_metadata,
                knobs.runtime.launch_enter_hook,
                knobs.runtime.launch_exit_hook,
                *args,
            )

        return runner
