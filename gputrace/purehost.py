"""One process's host slices, in pure Python: from the threads' buffers to the writer.

`gputrace.compiledhost` is its twin. It knows threads, spans and counters, and neither devices nor files.
"""

from __future__ import annotations

from itertools import count

from gputrace.hostclock import now_ns
from gputrace.hot import MOST_SPANS, pure
from gputrace.timeline import HostTimeline
from gputrace.tracks import Counters

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from gputrace.counts import Counts
    from gputrace.devicetrace import DeviceTrace
    from gputrace.hot.pure import Span, ThreadBuffer
    from gputrace.shardfile import ShardFile
    from gputrace.tracks import Tracks


class PureHostTrace:
    """The host's half of one tracer.

    ``outlives_a_kill`` says whether what was recorded is safe at once, ``trouble`` why a kill would lose more than this
    twin may.

    ``wake()`` makes sure the collector runs; ``pause()`` gives others the GIL between two batches;
    ``thread_ended(number)`` is told of threads that are gone; ``devices()`` are those that own GPU spans.
    """

    outlives_a_kill = False
    trouble: str | None = None

    def __init__(
        self,
        tracks: Tracks,
        counts: Counts,
        wake: Callable[[], None],
        thread_ended: Callable[[int], None],
        devices: Callable[[], Iterable[DeviceTrace]],
    ) -> None:
        self._tracks = tracks
        self._counts = counts
        self._wake = wake
        self._thread_ended = thread_ended
        self._devices = devices
        self._counters = Counters(tracks)
        self._threads: list[ThreadBuffer] = []
        self._pool = pure.Pool()
        self._spare: list[Span] = []
        self._made = 0
        self._next_number = count(1).__next__

    def begin(self, resolve: Callable[[Any], Any]) -> None:
        """Switch the program's spans on. ``resolve(stream)`` finds or makes a stream's queue."""
        pure.forget_everything()
        # Held, for the module has another recording's once that has begun, and this one's collector may not be gone.
        self._threads, self._pool = pure.threads(), pure.host_pool()
        pure.switch_on(resolve, self._lend, self._wake, now_ns)

    def _lend(self) -> Span | None:
        """A host-only span where the pool is empty; None where memory's bound is reached."""
        self._wake()
        try:
            return self._spare.pop()
        except IndexError:
            pass
        if self._made - len(self._pool) - len(self._spare) >= MOST_SPANS:
            return None
        self._made += 1
        return pure.Span(self._pool)

    def wake_next(self) -> None:
        """Have the next span wake the collector."""
        self._pool.pour_into(self._spare)

    def set_hurried(self, hurried: bool) -> None:
        """While the collector is to come to an end soon: ``hurry()`` says so here, too, and often enough."""

    def forget(self) -> None:
        """In a forked child: let go of the parent's spans."""
        self._spare.clear()
        self._threads, self._pool = [], pure.Pool()

    def collect(self, most: int, hurry: Callable[[], bool], pause: Callable[[], None]) -> bool:
        """Draw what was handed over so far, ``most`` edges at a time. False if ``hurry()`` broke it off."""
        pure.bury()
        return all(self._collect_thread(thread, most, hurry, pause) for thread in list(self._threads))

    def _collect_thread(
        self, thread: ThreadBuffer, most: int, hurry: Callable[[], bool], pause: Callable[[], None]
    ) -> bool:
        if thread.waiting:
            thread.settle_old(now_ns())
        left = len(thread.edges)  # more may come meanwhile: they are the next cycle's
        ended = thread.ended
        if left and thread.timeline is None:
            track = self._tracks.thread(thread.name, thread.tid)
            thread.timeline = HostTimeline(track, lambda index: self._tracks.lane(track, index), self._counts)
        while left:
            batch = pure.take(thread.edges, min(left, most))
            left -= len(batch)
            done: list[Span] = []
            samples = thread.timeline.add(batch, self._next_number, done)
            del batch
            self._recycle(done)
            if samples:
                self._counters.write((s.name, s.t0, s.value, s.unit) for s in samples)
            thread.timeline.flush(self._tracks.write)
            if left:
                if hurry():
                    return False
                pause()
        if ended and not thread.edges and not (thread.timeline and thread.timeline.open_spans):
            self._threads.remove(thread)  # a window it opened may still be closed by another thread
            if thread.timeline is not None:
                thread.timeline.close(self._tracks.close)
            self._thread_ended(thread.number)
        return True

    def _recycle(self, done: list[Span]) -> None:
        for span in pure.recycle(done):
            owner = next((device for device in self._devices() if device.owns(span)), None)
            if owner is not None:  # a GPU span whose window was not recorded
                owner.drop(span)
            else:
                self._made -= 1

    @property
    def progress(self) -> int:
        """A number that grows while slices are drawn."""
        return self._counts.slices

    @property
    def open_spans(self) -> int:
        """Slices drawn as begun and not ended."""
        return sum(thread.timeline.open_spans for thread in self._threads if thread.timeline is not None)

    def before_flush(self, file: ShardFile) -> None:
        """The shard is about to be written to; a killed process keeps nothing beyond what is in it."""

    def after_flush(self, file: ShardFile) -> None:
        """The shard was written to."""

    def finish(self) -> None:
        """All is in the shard."""

    def update(self, counts: Counts) -> None:
        """Bring the counts up to date; they are, as this twin counts there."""
