from cuda.core import LaunchConfig, ObjectCode, launch


class _Kernel:
    def __init__(self, py_func):
        code = ObjectCode.from_cubin(b"any", name="module")
        self.kernel = code.get_kernel(f"_ZN6cudapy8{py_func.__name__}")

    def launch(self, args, griddim, blockdim, stream=0, sharedmem=0):
        config = LaunchConfig(grid=griddim, block=blockdim, shmem_size=sharedmem)
        launch(stream, config, self.kernel, *args)


class _LaunchConfiguration:
    def __init__(self, dispatcher, griddim, blockdim, stream, sharedmem):
        self.dispatcher = dispatcher
        self.griddim = griddim
        self.blockdim = blockdim
        self.stream = stream
        self.sharedmem = sharedmem

    def __call__(self, *args):
        return self.dispatcher.call(args, self)


class ForAll:
    def __init__(self, dispatcher, ntasks, tpb, stream, sharedmem):
        self.dispatcher = dispatcher
        self.ntasks = ntasks
        self.thread_per_block = tpb
        self.stream = stream
        self.sharedmem = sharedmem

    def __call__(self, *args):
        blocks = -(-self.ntasks // self.thread_per_block)
        return self.dispatcher[blocks, self.thread_per_block, self.stream, self.sharedmem](*args)


class CUDADispatcher:
    def __init__(self, py_func):
        self.py_func = py_func
        self.kernel = None

    def __getitem__(self, args):
        griddim, blockdim, stream, *sharedmem = args
        return _LaunchConfiguration(self, griddim, blockdim, stream, *(sharedmem or [0]))

    def forall(self, ntasks, tpb=0, stream=0, sharedmem=0):
        return ForAll(self, ntasks, tpb, stream, sharedmem)

    def call(self, args, launch_config):
        if not all(isinstance(each, int) for each in args):
            raise TypeError("cannot determine Numba type")
        if self.kernel is None:
            self.kernel = _Kernel(self.py_func)
        config = launch_config
        self.kernel.launch(args, config.griddim, config.blockdim, config.stream, config.sharedmem)
