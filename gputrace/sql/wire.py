"""The trace processor's messages: a trace in, rows out, whichever way its bytes travel.

A message is a length-prefixed `TraceProcessorRpc` (protos/perfetto/trace_processor/trace_processor.proto); its
descriptors come with the perfetto package. It knows no engine: those are `native` and `wasm`.
"""

from __future__ import annotations

import functools
import importlib.util
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from gputrace.errors import EngineError, InputError, QueryError

#: Bytes of a trace handed over in one message.
PIECE_BYTES = 1 << 20

# What the engine runs in place of a statement that gives nothing, and so calls its last one.
_NO_RESULT = "SELECT 0 WHERE 0"
_PLACE = re.compile(r'File "stdin" line (\d+) col (\d+)\n(.*)\n( *)\^\n')

Value = int | float | str | bytes | None


class Replies(Protocol):
    """Bytes of the engine's answers, in order."""

    def read(self, size: int, /) -> bytes:
        """The next ``size`` bytes; fewer only if there will be no more."""


class Machine(Protocol):
    """A running engine."""

    def exchange(self, request: bytes) -> Replies:
        """Hands over one message. Raises `EngineError` if the engine is gone."""

    def why_ended(self) -> str:
        """Why its answer stopped short, once it did."""

    def close(self) -> None: ...


@dataclass(frozen=True)
class Result:
    """What the last statement of a query gave: names of columns (which may repeat), and its rows.

    Strings with bytes that are no UTF-8 carry U+FFFD for them.
    """

    columns: list[str]
    rows: list[tuple[Value, ...]]


class Engine:
    """One trace, loaded into ``machine``; ``name`` is what errors call it.

    Raises `InputError` for a trace that the engine cannot read, `EngineError` if the engine ends.
    """

    def __init__(self, machine: Machine, pieces: Iterable[bytes], name: str = "the trace") -> None:
        self._machine = machine
        place = 0
        for piece in pieces:
            for reply in self._ask("TPM_APPEND_TRACE_DATA", append_trace_data=piece):
                _raise_if(reply.append_result.error, name, place)
            place += len(piece)
        for reply in self._ask("TPM_FINALIZE_TRACE_DATA"):
            _raise_if(reply.finalize_data_result.error, name, place)

    def query(self, sql: str) -> Result:
        """Runs every statement; the last one's rows. Raises `QueryError` for SQL that the engine refuses."""
        columns: list[str] = []
        cells: list[Value] = []
        for reply in self._ask("TPM_QUERY_STREAMING", query_args=messages()["QueryArgs"](sql_query=sql)):
            result = reply.query_result
            if result.error:
                raise refusal(result.error)
            if result.last_statement_sql != _NO_RESULT:
                columns += result.column_names
            for batch in result.batch:
                cells += _cells(batch)
        width = len(columns) or 1
        return Result(columns, [tuple(cells[i : i + width]) for i in range(0, len(cells), width)])

    def problems(self) -> list[tuple[str, int]]:
        """The engine's own counts of what it could not read or had to drop, by name. Some corruption raises none."""
        counted = self.query(
            "select name, sum(value) from stats where severity in ('error', 'data_loss') and value != 0 group by name"
        )
        return [(str(name), int(count or 0)) for name, count in counted.rows]

    def close(self) -> None:
        self._machine.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, method: str, **payload: Any) -> Iterator[Any]:
        """Every message of the answer; most have one, a query's rows come in several."""
        rpc = messages()["TraceProcessorRpc"]
        request = rpc(request=rpc.TraceProcessorMethod.Value(method), **payload)
        stream = messages()["TraceProcessorRpcStream"]
        replies = self._machine.exchange(stream(msg=[request]).SerializeToString())
        last = False
        while not last:
            body = _next_body(replies)
            if body is None:
                raise EngineError(f"the trace processor ended: {self._machine.why_ended()}")
            reply = rpc.FromString(body)
            if reply.fatal_error:
                raise EngineError(f"the trace processor failed: {reply.fatal_error}")
            last = not reply.HasField("query_result") or any(batch.is_last_batch for batch in reply.query_result.batch)
            yield reply


def refusal(error: str) -> QueryError:
    """The engine's account of SQL that it refused, with the place where it gives one.

    It draws the statement's line, a caret under it, and says why: a traceback through functions and modules, in which
    ``stdin`` is what we passed.
    """
    found = _PLACE.search(error)
    if found is None:
        return QueryError(error)
    line, column, text, indent = found.groups()
    reason = error.rpartition("^\n")[2]
    shift = len(text) - len(text.lstrip())
    return QueryError(
        reason, line=int(line), column=int(column), excerpt=f"{text.strip()}\n{' ' * (len(indent) - shift)}^"
    )


def _raise_if(error: str, name: str, place: int) -> None:
    if error:
        raise InputError(name, place, f"the trace processor cannot read it: {error}")


def _next_body(replies: Replies) -> bytes | None:
    """One message without its frame: a tag, its length as a varint, and so many bytes. None at the end."""
    if not replies.read(1):
        return None
    length = shift = 0
    while True:
        byte = replies.read(1)
        if not byte:
            return None
        length |= (byte[0] & 0x7F) << shift
        shift += 7
        if byte[0] < 0x80:
            break
    body = replies.read(length)
    return body if len(body) == length else None


def _cells(batch: Any) -> Iterator[Value]:
    """One batch of a result: cells of each type lie in a list of their own, in order; strings joined by NULs."""
    joined = batch.string_cells
    strings = iter((joined if isinstance(joined, str) else joined.decode("utf-8", "replace")).split("\0"))
    kinds: dict[int, Iterator[Value]] = {
        batch.CELL_VARINT: iter(batch.varint_cells),
        batch.CELL_FLOAT64: iter(batch.float64_cells),
        batch.CELL_STRING: strings,
        batch.CELL_BLOB: iter(batch.blob_cells),
    }
    for kind in batch.cells:
        yield None if kind == batch.CELL_NULL else next(kinds[kind])


@functools.cache
def messages() -> dict[str, Any]:
    """The wire's messages by name, from the descriptors that the perfetto package ships."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    spec = importlib.util.find_spec("perfetto.trace_processor")
    if spec is None or spec.origin is None:
        raise EngineError("the perfetto package is not whole here: pip install --force-reinstall perfetto")
    data = Path(spec.origin).with_name("trace_processor.descriptor").read_bytes()
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(data).file:
        pool.Add(file)
    names = ("TraceProcessorRpcStream", "TraceProcessorRpc", "QueryArgs")
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"perfetto.protos.{name}")) for name in names
    }
