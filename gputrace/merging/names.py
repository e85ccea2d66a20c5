"""Processes and threads of another host: ids of their own, with the real ones in their names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

from gputrace.merging.plan import Host
from gputrace.reading.sequences import as_text

_TYPES: dict[int, Any] = {43: pb.ProcessDescriptor, 44: pb.ThreadDescriptor, 60: pb.TrackDescriptor}


class Names:
    """Rewrites descriptors for one host. ``on_timeline`` takes a time of the trace's BOOTTIME, in ns."""

    def __init__(self, host: Host, on_timeline: Callable[[int], int]) -> None:
        self._host = host
        self._on_timeline = on_timeline

    def descriptor(self, number: int, body: bytes) -> bytes:
        """A descriptor of any of the three kinds; as it was if it cannot be read."""
        try:
            message = _TYPES[number].FromString(body)
        except Exception:  # protobuf's own error; the engine will say what it thinks of it
            return body
        if number == 43:
            self._process(message)
        elif number == 44:
            self._thread(message)
        else:
            if message.HasField("process"):
                self._process(message.process)
            if message.HasField("thread"):
                self._thread(message.thread)
        return message.SerializeToString()  # type: ignore[no-any-return]

    def _process(self, process: Any) -> None:
        pid = self._host.pid(process.pid)
        if pid != process.pid:
            process.process_name = with_real_id(process.process_name, "pid", process.pid, self._host)
            process.pid = pid
        if process.HasField("start_timestamp_ns"):
            process.start_timestamp_ns = self._on_timeline(process.start_timestamp_ns)

    def _thread(self, thread: Any) -> None:
        tid = self._host.pid(thread.tid)
        if tid != thread.tid:
            thread.thread_name = with_real_id(thread.thread_name, "tid", thread.tid, self._host)
            thread.tid = tid
        thread.pid = self._host.pid(thread.pid)


def with_real_id(name: str | bytes, kind: str, id: int, host: Host) -> str:
    """ "train.py (pid 42 on node1)"; a rank's name says both already."""
    name = as_text(name)
    if name.endswith(f" · {id}"):
        return name
    return f"{name} ({kind} {id}{f' on {host.label}' if kind == 'pid' else ''})".lstrip()
