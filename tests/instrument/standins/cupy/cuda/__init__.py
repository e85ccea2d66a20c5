from . import nvtx

__all__ = ["nvtx"]
