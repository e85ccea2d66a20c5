"""`torch.ops` and `torch.copies`: torch's operators as spans, as its own dispatcher tells of them.

Nothing of torch is changed: a patched `Tensor.item` or `Tensor.to` would break the graphs of `torch.compile`, and be
another function than the one that ``__torch_function__`` compares with. What is told is a callback in C++, which is
built for the installed torch the first time that it is asked for, where a compiler is. It knows no module.
"""

from __future__ import annotations

import os
import sys

from gputrace import hot
from gputrace.fence import let_through
from gputrace.instrument.torch import prepare, streams

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Final

    from gputrace.instrument.site import Site

SOURCE: Final = os.path.join(os.path.dirname(os.path.abspath(__file__)), "observer.cpp")
#: Tried in this order behind what CXX names.
COMPILERS: Final = ("c++", "g++", "clang++")
BUILD_TIMEOUT_S: Final = 300
CUDA: Final = "cuda"


def ops(site: Site) -> None:
    """A span for each operator, and a GPU window on the GPU that its first tensor there lies on; they nest."""
    _observe(site, every=True)


def copies(site: Site) -> None:
    """As `ops`, of those alone that move data or have the host wait for a GPU. Nothing where all are shown."""
    if _observed is None:
        _observe(site, every=False)


#: The handle of the callback, while there is one.
_observed: int | None = None


def _observe(site: Site, *, every: bool) -> None:
    global _observed
    torch = site.module
    prepare(site, torch)
    library = load(torch)

    def opened(
        name: str, device: int, waits: int, copied_bytes: int, source: str, target: str, non_blocking: int
    ) -> Any:
        """The span of an operator that begins; None for none. ``device``: the GPU's index, -1 for none."""
        if site.broken:
            return None
        try:
            facts = copy_facts(copied_bytes, source, target, bool(non_blocking)) if target else {}
            if waits and device >= 0:
                facts["waits"] = True
            span: Any = hot.span(name, streams.of_device(device) if device >= 0 else None, **facts)
            span.__enter__()
            return span
        except Exception as error:
            let_through(error)
            site.fail(error)
            return None

    def closed(span: Any) -> None:
        if span is not None:
            span.__exit__(None, None, None)

    if site.on_code is not None:
        for function in (opened, closed):
            site.on_code(function.__code__, wrapper=False)
    handle = _observed = int(library.gputrace_observe(opened, closed, hot.OPERATORS, every))

    def stop() -> bool:
        global _observed
        _observed = None
        library.gputrace_stop(handle)
        return True

    site.undo_with(stop)


def load(torch: Any) -> Any:
    """The callback's library, for ctypes. Raises as `built`."""
    import ctypes

    library = ctypes.PyDLL(built(torch))
    number, nothing = ctypes.c_ulonglong, None
    for name, result, arguments in (
        ("gputrace_observe", number, (ctypes.py_object, ctypes.py_object, ctypes.py_object, ctypes.c_int)),
        ("gputrace_stop", nothing, (number,)),
        ("gputrace_watch_nodes", number, (ctypes.py_object,)),
        ("gputrace_stop_nodes", nothing, (number,)),
        ("gputrace_look_again", nothing, ()),
        ("gputrace_thread", number, ()),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def copy_facts(copied_bytes: int, source: str, target: str, non_blocking: bool) -> dict[str, Any]:
    """The args of a copy between devices, each like "cuda:0". ``waits``: it has the host wait until the GPU is done.

    That is so for each between the host and a GPU that is not asked not to; what memory that is not pinned has the
    driver do beyond that is not known here.
    """
    facts: dict[str, Any] = {"from": source, "to": target, "non_blocking": non_blocking}
    if copied_bytes >= 0:  # -1 where sizes are symbols
        facts = {"bytes": copied_bytes, **facts}
    facts["waits"] = source.startswith(CUDA) != target.startswith(CUDA) and not non_blocking
    return facts


def built(torch: Any) -> str:
    """The path of the callback's library for this torch; built, where it is not there yet.

    Raises `FileNotFoundError` without a compiler, `RuntimeError` where the build fails, and `OSError`.
    """
    import hashlib

    with open(SOURCE, "rb") as file:
        source = file.read()
    root = os.path.dirname(os.path.abspath(torch.__file__))
    told = [torch.__version__, str(torch.version.git_version), root, sys.platform, os.uname().machine]
    key = hashlib.sha256(source + "\0".join(told).encode()).hexdigest()[:16]
    folder = _folder()
    path = os.path.join(folder, f"torch-{torch.__version__}-{key}.so")
    if not os.path.exists(path):
        _build(torch, root, path)
    return path


def was_ever_built() -> bool:
    """Has this user the callback for any torch? Which one a program imports, nobody knows before."""
    try:
        return any(name.startswith("torch-") and name.endswith(".so") for name in os.listdir(_place()))
    except OSError:
        return False


def _place() -> str:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(base, "gputrace")


def _folder() -> str:
    """The user's own folder for what is built, which nobody else can write to."""
    folder = _place()
    os.makedirs(folder, mode=0o700, exist_ok=True)
    found = os.stat(folder)
    if found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise PermissionError(f"{folder} is not this user's alone, so nothing is loaded from it: set XDG_CACHE_HOME")
    return folder


def _build(torch: Any, root: str, path: str) -> None:
    import shutil
    import subprocess

    named = os.environ.get("CXX", "")
    compiler = next(filter(None, map(shutil.which, (named, *COMPILERS) if named else COMPILERS)), None)
    if compiler is None:
        raise FileNotFoundError("it is built for the torch installed here, by a C++ compiler: install one, as g++")
    partial = f"{path}.{os.getpid()}"  # several ranks may build at once: each its own, and the last one stays
    include, library = os.path.join(root, "include"), os.path.join(root, "lib")
    # A RecordFunction has one more member where NDEBUG is not set: it must be set as it was for torch.
    debug = () if torch.version.debug else ("-DNDEBUG",)
    command = [
        *(compiler, "-shared", "-fPIC", "-O1", "-std=c++17", "-w", *debug),
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}",
        *("-isystem", include, "-isystem", os.path.join(include, "torch", "csrc", "api", "include")),
        *(SOURCE, "-o", partial, f"-L{library}", "-lc10", "-ltorch_cpu", f"-Wl,-rpath,{library}"),
    ]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S
        )
        if done.returncode:
            said = [line for line in done.stderr.splitlines() if "error" in line] or [
                f"it ended with {done.returncode}"
            ]
            raise RuntimeError(f"{compiler} cannot build it for torch {torch.__version__}: {said[0].strip()}")
        os.replace(partial, path)
    finally:
        if os.path.exists(partial):
            os.unlink(partial)
