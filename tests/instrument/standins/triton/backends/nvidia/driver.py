from types import SimpleNamespace

from tests.fake_driver import control


class CudaLauncher:
    def __init__(self, src, metadata):
        self.launch = CudaDriver.active.utils.launch

    def __call__(
        self,
        gridX,
        gridY,
        gridZ,
        stream,
        function,
        kernel_metadata,
        launch_metadata,
        launch_enter_hook,
        launch_exit_hook,
        *args,
    ):
        self.launch(stream, launch_metadata, launch_enter_hook, launch_exit_hook, args)


def launch(stream, launch_metadata, launch_enter_hook, launch_exit_hook, kernel_args):
    if launch_enter_hook is not None:
        launch_enter_hook(launch_metadata)
    control.enqueue(stream, kernel_args[0])
    if launch_exit_hook is not None:
        launch_exit_hook(launch_metadata)


class CudaDriver:
    active = None

    def __init__(self):
        self.utils = SimpleNamespace(launch=launch)
        self.launcher_cls = CudaLauncher

    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return 0


CudaDriver.active = CudaDriver()
