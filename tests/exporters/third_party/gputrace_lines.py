"""A format made by somebody else: one line an edge. It knows gputrace.model and nothing besides."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import IO, TYPE_CHECKING

from gputrace.model import ClockSnapshot, Exporter, Process, Recording, Track

if TYPE_CHECKING:
    from gputrace.model import Edge


class Lines(Exporter):
    @classmethod
    def header(cls, recording: Recording, snapshots: Iterable[ClockSnapshot], metadata: Mapping[str, object]) -> bytes:
        return f"# gputrace {recording.id}\n".encode()

    @classmethod
    def footer(cls) -> bytes:
        return b"# end\n"

    @classmethod
    def whole(cls, shard: IO[bytes]) -> int:
        shard.seek(0)
        return shard.read().rfind(b"\n") + 1

    def __init__(self, file: IO[bytes], recording: Recording, process: Process) -> None:
        self._file = file
        self._base_ns = recording.base_ns
        self._pid = process.pid

    def open_track(self, track: Track) -> None:
        self._file.write(f"{self._pid} {track.id} is {track.kind} {track.name!r}\n".encode())

    def write(self, track: Track, edges: Iterable[Edge]) -> None:
        for ts, kind, name, *_ in edges:
            self._file.write(f"{self._pid} {track.id} {ts - self._base_ns} {kind} {name!r}\n".encode())

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()
