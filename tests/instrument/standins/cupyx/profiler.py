import functools

from cupy import cuda


class time_range:
    def __init__(self, message=None, color_id=None, argb_color=None, sync=False):
        self.message = message
        self.color_id = color_id if color_id is not None else -1
        self.argb_color = argb_color

    def __enter__(self):
        if self.argb_color is not None:
            cuda.nvtx.RangePushC(self.message, self.argb_color)
        else:
            cuda.nvtx.RangePush(self.message, self.color_id)
        return self

    def __exit__(self, exc_type, exc_value, traceback):
        cuda.nvtx.RangePop()

    def __call__(self, func):
        @functools.wraps(func)
        def inner(*args, **kwargs):
            with time_range(self.message or func.__name__, self.color_id, self.argb_color):
                return func(*args, **kwargs)

        return inner
