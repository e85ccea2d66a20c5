"""One process's host slices where the compiled core does the work: what of it is Python's to say.

The core calls back for tracks; this passes on what it encoded. `gputrace.purehost` is its twin. It knows no device.
"""

from __future__ import annotations

import os
from time import thread_time

from gputrace.hot import _hot, compiled
from gputrace.tracks import Counters

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Final

    from gputrace.counts import Counts
    from gputrace.model import Exporter, Track
    from gputrace.shardfile import ShardFile
    from gputrace.tracks import Tracks

#: Records drawn in one go where the core encodes them itself and the GIL is free meanwhile.
MANY: Final = 1 << 20
#: Where it is not, so long it is held in one go, about: less than the 5 ms after which Python has a thread give it up.
CHUNK_S: Final = 0.002
MOST_CHUNK: Final = 1 << 16
#: `struct stretch` in hot/native/collect.c.
_STRETCH = "<qqqqddddq"
_COUNTS = (
    "slices",
    "windows",
    "clamped",
    "out_of_order",
    "failed",
    "unreadable",
    "clock_violations",
    "worst_error_ns",
)


class Writing:
    """Where the core's output goes: bytes that it encoded, or edges for an exporter in Python.

    ``native`` says which: whether the exporter's format is one that the core knows. ``generation`` is the recording's
    in the core, which refuses what comes of an earlier one: RuntimeError.
    """

    def __init__(self, tracks: Tracks, exporter: Callable[[], Exporter], native: bool) -> None:
        self._tracks = tracks
        self._exporter = exporter
        self.native = native
        self.generation = 0
        self._chunk = 1
        # Now that recording starts, not when a first stream is met: by then, a file of the program's may have the name.
        from struct import Struct

        self.pack = Struct(_STRETCH).pack

    def describe(self, track: Track) -> tuple[int, Track, Any]:
        """A track as the core takes it."""
        return track.id, track, self._exporter().native(track) if self.native else []

    def pass_on(self) -> None:
        """Hand over what the core has drawn. Raises what the exporter raises."""
        if self.native:
            data = _hot.take_encoded(self.generation)
            if data:
                self._exporter().write_native(data)
        else:
            for track, edges in _hot.take_edges(self.generation):
                self._tracks.write(track, edges)

    def batch(self, most: int) -> int:
        """How much to draw at once, ``most`` or more: an exporter in Python holds the GIL meanwhile."""
        return max(most, MANY if self.native else self._chunk)

    def took(self, cpu_s: float) -> None:
        """What was drawn at once took so long: too long if others waited for it, too little if they are asked too often
        to let us go on.
        """
        if cpu_s < CHUNK_S / 2:
            self._chunk = min(self._chunk * 2, MOST_CHUNK)
        elif cpu_s > CHUNK_S * 2:
            self._chunk = max(self._chunk // 2, 1)


class CompiledHostTrace:
    """See `gputrace.purehost.PureHostTrace`. ``ring_path`` is where the newest slices are kept in case of a kill, in at
    most ``most_bytes``; ``process_name`` what to call the process if nobody else can say. ``hurry()`` has the collector
    come at once.
    """

    def __init__(
        self,
        tracks: Tracks,
        writing: Writing,
        wake: Callable[[], None],
        hurry: Callable[[], None],
        thread_ended: Callable[[int], None],
        ring_path: str,
        most_bytes: int,
        process_name: str,
    ) -> None:
        self._tracks = tracks
        self._writing = writing
        self._wake = wake
        self._hurry = hurry
        self._thread_ended = thread_ended
        self._ring_path = ring_path
        self._most_bytes = most_bytes
        self._process_name = process_name
        self._counters = Counters(tracks)

    def begin(self, resolve: Callable[[Any], Any]) -> None:
        """Switch the program's spans on. ``resolve(stream)`` finds or makes a stream's queue. Raises RuntimeError while
        an earlier recording's collector is at work in the core.
        """
        compiled.forget_everything()
        self._writing.generation = _hot.begin(
            os.fsencode(self._ring_path),
            self._most_bytes,
            self._process_name,
            not self._writing.native,
            resolve,
            self._wake_up,
            self._open_thread,
            self._close_thread,
            compiled.current_stream().get,
        )

    def _wake_up(self, filling: bool) -> None:
        self._wake()
        if filling:
            self._hurry()

    def _open_thread(self, number: int, tid: int, name: str) -> tuple[Any, Callable[[int], Any]]:
        track = self._tracks.thread(name, tid)
        return self._writing.describe(track), lambda index: self._writing.describe(self._tracks.lane(track, index))

    def _close_thread(self, number: int, tracks: list[Track]) -> None:
        self._writing.pass_on()
        for track in tracks:
            self._tracks.close(track)
        self._thread_ended(number)

    def wake_next(self) -> None:
        """Have the next span wake the collector."""
        _hot.wake_next()

    def set_hurried(self, hurried: bool) -> None:
        """While the collector is to come to an end soon: its calls are short then."""
        _hot.set_hurried(hurried)

    def forget(self) -> None:
        """In a forked child: `gputrace.hot.forget_everything` has done it."""

    def collect(self, most: int, hurry: Callable[[], bool], pause: Callable[[], None]) -> bool:
        """Draw what was handed over so far. False if ``hurry()`` broke it off."""
        more = anew = True
        while more:
            begun_s = thread_time()
            more, samples = _hot.collect_host(self._writing.generation, self._writing.batch(most), anew)
            anew = False
            self._writing.pass_on()
            if samples:
                self._counters.write(samples)
            if more:
                if hurry():
                    return False
                if not self._writing.native:  # else others had the GIL all the while
                    self._writing.took(thread_time() - begun_s)
                    pause()
        return True

    @property
    def progress(self) -> int:
        """A number that grows while slices are drawn."""
        slices: int = _hot.state()["slices"]
        return slices

    @property
    def open_spans(self) -> int:
        """Slices drawn as begun and not ended."""
        return _hot.open_spans(self._writing.generation)

    def before_flush(self, file: ShardFile) -> None:
        """The shard is about to be written to: what it will hold then need not be kept in the ring."""
        _hot.epoch_pending(self._writing.generation, file.length, self._tracks.highest_id)

    def after_flush(self, file: ShardFile) -> None:
        """The shard was written to, or is kept back for want of a descriptor: then the ring keeps it, too."""
        if not file.kept:
            _hot.epoch_commit(self._writing.generation)

    def finish(self) -> None:
        """All is in the shard."""
        _hot.remove_ring(self._writing.generation)

    def update(self, counts: Counts) -> None:
        """Bring the counts up to date."""
        state = _hot.state()
        for name in _COUNTS:
            setattr(counts, name, state[name])

    @property
    def outlives_a_kill(self) -> bool:
        """Is what was recorded safe at once?"""
        return self.trouble is None

    @property
    def trouble(self) -> str | None:
        """Why a kill would lose the newest slices; None if it would not."""
        trouble: str | None = _hot.state()["ring_trouble"]
        return trouble
