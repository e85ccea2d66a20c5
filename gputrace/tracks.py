"""The rows of one process's trace: numbered, named, announced to the exporter before their first edge.

It knows what a trace looks like, and neither windows nor clocks.
"""

from __future__ import annotations

from gputrace.model import COUNTER, COUNTER_TRACK, GROUP, LANE, STREAM, THREAD, Track

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from gputrace.devices.base import Device
    from gputrace.model import Args, Edge, Exporter

#: Counters sort after the streams of their device.
_AFTER_STREAMS = 1 << 16


class Tracks:
    """Makes tracks and passes edges on. ``exporter()`` opens the shard the first time it is asked.

    ``taken`` is the highest id in use already: new rows come behind those.
    """

    def __init__(self, exporter: Callable[[], Exporter], taken: int = 0) -> None:
        self._exporter = exporter
        self._next_id = taken + 1
        self._contexts: dict[tuple[str, int], list[int]] = {}
        self._threads = self._counters = taken

    @property
    def highest_id(self) -> int:
        """No track has a higher id."""
        return self._next_id - 1

    def write(self, track: Track, edges: list[Edge]) -> None:
        self._exporter().write(track, edges)

    def thread(self, name: str, tid: int) -> Track:
        self._threads += 1
        return self._open(THREAD, name or f"thread {tid}", tid=tid, order=self._threads)

    def lane(self, thread: Track, index: int) -> Track:
        """One more lane for host slices that cannot nest on their thread's own track."""
        return self._open(LANE, "tasks", parent=thread, merge_key="tasks", order=index)

    def group(self, device: Device) -> Track:
        """A device's row; a second context of the same device says so in its name."""
        contexts = self._contexts.setdefault((device.kind, device.ordinal), [])
        contexts.append(device.context)
        name = f"GPU {device.ordinal} · {device.name}"
        if len(contexts) > 1:
            name += f" · context {len(contexts)}"
        labels: Args = {
            key: value for key, value in device.labels.items() if isinstance(value, (str, int, float, bool))
        }
        return self._open(GROUP, name, order=device.ordinal, labels=labels)

    def stream(self, group: Track, name: str, order: int) -> Track:
        """A stream's row, or one more lane of it."""
        return self._open(STREAM, name, parent=group, merge_key=f"{name} {order}", order=order)

    def counter(self, name: str, unit: str, group: Track | None = None) -> Track:
        self._counters += 1
        return self._open(
            COUNTER_TRACK, name or "unnamed", parent=group, unit=unit, order=_AFTER_STREAMS + self._counters
        )

    def close(self, track: Track) -> None:
        self._exporter().close_track(track)

    def _open(self, kind: str, name: str, **more: Any) -> Track:
        """Make a track and announce it. ``more`` is as `Track` takes it."""
        track = Track(self._next_id, kind, name, **more)
        self._next_id += 1
        self._exporter().open_track(track)
        return track


class Counters:
    """The rows of counters: one a name, whichever thread gave the value, in order of time. ``group`` holds them; None:
    the process.
    """

    def __init__(self, tracks: Tracks, group: Track | None = None) -> None:
        self._tracks = tracks
        self._group = group
        self._rows: dict[str, tuple[Track, list[int]]] = {}

    def write(self, samples: Iterable[tuple[str, int, int | float, str]]) -> None:
        """Draw samples: (name, host time in ns, value, unit)."""
        edges: dict[str, list[Edge]] = {}
        for name, ts, value, unit in samples:
            if name not in self._rows:
                self._rows[name] = (self._tracks.counter(name, unit, self._group), [0])
            last = self._rows[name][1]
            last[0] = max(last[0], ts)
            edges.setdefault(name, []).append((last[0], COUNTER, value, None, 0, 0))
        for name, values in edges.items():
            self._tracks.write(self._rows[name][0], values)
