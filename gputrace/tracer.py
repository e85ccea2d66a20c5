"""One process's tracing: from the hot path's buffers to one shard, on one background thread.

It owns the collector, the exporter and the devices that streams turned out to belong to; it stops for a fork, starts
anew in the child, and flushes at exit. It knows no command line and joins nothing.
"""

from __future__ import annotations

import os
import sys
from _thread import RLock, get_ident
from time import sleep

from gputrace import exithook, hostclock, hot, instrument, ranks, staying
from gputrace.collector import PERIOD_S, AtWork, Collector, forget_threads, is_at_work, is_left_alone
from gputrace.counts import Counts
from gputrace.errors import UsageError
from gputrace.fence import let_through
from gputrace.instrument.registry import CALLS_SHOWN, MODULES_SEEN
from gputrace.masking import mask
from gputrace.model import Exporter, Process
from gputrace.regions import STEP, Region, Regions
from gputrace.sampling import Sampler
from gputrace.shardfile import ShardFile
from gputrace.tracks import Counters, Tracks
from gputrace.workers import flush_before_sending

# What draws a device's windows is imported with its first stream: most of what starts under a recording meets none.
if hot.TWIN == "compiled":
    from gputrace.compiledhost import CompiledHostTrace, Writing
else:
    from gputrace.purehost import PureHostTrace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable
    from typing import Any, Final

    from gputrace.devices.base import Backend, Device
    from gputrace.devicetrace import DeviceTrace
    from gputrace.dumping import Dumping
    from gputrace.keeping import KeptFile
    from gputrace.shards import ShardFolder

#: Edges handled between two pauses: about 2 ms of Python.
CHUNK: Final = 500
PAUSE_S: Final = 0.0005
EVERYTHING: Final = 1 << 30
REPORT_NS: Final = 250_000_000
# What a report says that is of no use to who reads the trace.
_NOT_IN_TRACE: Final = ("told", "missed", "shard_bytes", CALLS_SHOWN, MODULES_SEEN)
CLOCKS_NS: Final = 10_000_000_000
#: How long a clean exit waits for the device, and a fork for the collector.
EXIT_DEADLINE_S: Final = 10.0
FORK_DEADLINE_S: Final = 2.0
#: How much of what is not written yet the compiled twin keeps at most, unless the recording says otherwise.
RING_BYTES: Final = 32 << 20
#: How much longer an exit waits for a driver or a disk that does not answer at all.
STUCK_S: Final = 5.0
#: So much of a backlog is written at once: until it is, the rings have no room for what is new.
PORTION_BYTES: Final = 1 << 19
#: Values of our own counters that are kept until something else is drawn.
MOST_GIVEN: Final = 1 << 16

if not TYPE_CHECKING:
    from _collections import deque  # the builtin part of `collections`

_current: Tracer | None = None


def current() -> Tracer | None:
    """The tracer that records now; None with tracing off."""
    return _current


class Tracer:
    """Records this process into one shard of a folder, from `start` to `stop`.

    ``device`` is "cuda", "simulated" or "host" (host spans only). ``own`` is a recording that the process itself
    started: no launcher notes the host clocks then, so this does, every 10 s. The constructor raises OSError if the
    folder takes no shard, `UsageError` if this process's clocks are not the recording's, and what importing the
    exporter raises; after that nothing: what goes wrong is told once (`tell`) and the program goes on.
    """

    def __init__(self, folder: ShardFolder, device: str, *, own: bool = False) -> None:
        if not folder.has_our_clocks():
            raise UsageError(
                "its clocks are not the recording's (a time namespace): record it there, and merge the traces"
            )
        self.folder = folder
        self.device = device
        self.own = own
        self.name = ""  # what the process is called in the trace, if it is set before its first slice is written
        # Now, not at the first flush: by then the program's own folder is where modules are looked for first, and a
        # file of its own may have the name of one that this needs.
        self._keep_ns = int(folder.options.get("last_ns", 0))  # type: ignore[arg-type]
        self._format = load_exporter("gputrace.keeping:Keeping" if self._keep_ns else folder.exporter)
        if device == "simulated":
            from gputrace.devices import simulated as simulated
        self.number = folder.claim()
        self.counts = Counts()
        self.told: list[str] = []
        self._facts: dict[str, Any] = {}  # of instruments
        self.pid = os.getpid()
        self._backend: Backend | None = None
        self._devices: dict[int, DeviceTrace] = {}
        self._ambient: dict[tuple[int, int, int], Any] = {}
        self._tracks = Tracks(self._open_exporter)
        self._given: deque[tuple[str, int, int | float, str, Device | None]] = deque(maxlen=MOST_GIVEN)
        self._counters: dict[int, Counters] = {}  # by device; our own
        self.regions = Regions(Region(folder.options, folder.recording.base_ns), _switch, self.give, _mark_step)
        period_ns = int(folder.options.get("counters_ns", 0))  # type: ignore[arg-type]
        self._sampler = Sampler(period_ns, self.give, self._gpus, self._is_recording, self.tell)
        self._exporter: Exporter | None = None
        self._file: ShardFile | KeptFile | None = None
        self._dumping: Dumping | None = None
        if self._keep_ns:
            from gputrace.dumping import Dumping

            self._dumping = Dumping(self._ask_for_dump)
        else:
            self._file = ShardFile(folder.shard_path(self.number))
            # Now, as the program may have no descriptor left by its first span, or no right to the folder.
            self._file.open()
        self._asked_for_dump = False
        #: Writes a dump by its number and time, where no launcher does.
        self.write_dump: Callable[[int, int], object] | None = None
        self._is_forked = False
        self._broken = False
        self._said_begun = False
        self._finished = False
        self._abandoned = False  # finished, but for what did not answer at the end
        self._interrupted = False
        self._with_multiprocessing = False
        self._lock = RLock()  # around what the program's threads do when a stream or a pool is new
        self._cycle_lock = RLock()  # around a collector's cycle: one at a time
        self._collector = Collector(self.cycle)
        #: Held by whoever works on the devices. While the collector waits for the disk, which may take seconds, another
        #: thread reads on for it: it must not take what the collector has not drawn the host's side of, so it reads and
        #: draws nothing.
        self._devices_lock = RLock()
        self._disk_busy = False
        self._flushed_bytes = 0
        self._reader = Collector(self._read_on)
        #: The locks that each fork under way holds, by its thread: other threads may fork too, and a signal's handler
        #: inside a fork's own hooks.
        self._forks: list[tuple[int, list[Any]]] = []
        self._reported_ns = 0
        self._clocks_ns = hostclock.now_ns()
        self._start_ns = hostclock.now_ns()
        self.ring_bytes = folder.ring_bytes or RING_BYTES
        self._host: Any = self._new_host()

    def _new_host(self) -> Any:
        """The host's half, by the twin in use."""
        if hot.TWIN == "compiled":
            self._writing = Writing(self._tracks, self._open_exporter, self._format.native is not Exporter.native)
            path, name = self.folder.ring_path(self.number), _process_name()
            return CompiledHostTrace(
                self._tracks,
                self._writing,
                self._wake,
                self._collector.ring,
                self._thread_ended,
                path,
                self.ring_bytes,
                name,
            )
        return PureHostTrace(self._tracks, self.counts, self._wake, self._thread_ended, self._devices_now)

    def _new_device(self, device: Device) -> DeviceTrace:
        from gputrace.devicetrace import Surroundings

        around = Surroundings(self._tracks, self.counts, self._room, self._wake, self.tell)
        if hot.TWIN == "compiled":
            from gputrace.compileddevice import CompiledDeviceTrace

            return CompiledDeviceTrace(device, around, self._writing)
        from gputrace.puredevice import PureDeviceTrace

        return PureDeviceTrace(device, around)

    # Life.

    def start(self, parent: Tracer | None = None) -> None:
        """Begin to record. The collector's thread starts with the first span. ``parent`` is the tracer of the process
        that forked this one. Raises RuntimeError while an earlier recording, whose end was given up, is still at work,
        and what a signal's handler raises: nothing records then.
        """
        global _current
        self._is_forked = parent is not None
        try:
            self._host.begin(self.resolve)
            _current = self
            staying.stay()
            instrument.start(self.folder.instruments, self.tell, self.folder.options, self.regions, self._facts)
            self.regions.begin(None if parent is None else parent.regions)
            if self._dumping is not None:
                self._dumping.install()
        except BaseException:
            _current = None
            staying.leave()
            instrument.stop()
            self.regions.end()
            hot.switch_off()
            raise

    def stop(self, deadline_s: float = EXIT_DEADLINE_S) -> None:
        """Stop recording, wait at most ``deadline_s`` for the device, and finish the shard.

        Raises what a signal's handler raises meanwhile, once that is done, and nothing else.
        """
        global _current
        if _current is self:
            _current = None
            if self._dumping is not None:
                self._dumping.remove()
            instrument.stop()
            hot.switch_off()
            staying.leave()
        if os.getpid() != self.pid:
            return
        patience_s = deadline_s + STUCK_S
        if not self._collector.finish(lambda: self._end(deadline_s), self._interrupt, self._progress, patience_s):
            self.regions.end()
            self._reader.dismiss()
            self._abandoned = self._finished = True  # whenever the collector comes back, it is no part of what goes on
            self.tell(f"gave up at the end: nothing moved for {patience_s:g} s, and the last slices may be missing")
            self._report()

    def _end(self, deadline_s: float) -> None:
        if not self._finished:
            self.regions.end()
            self._sampler.close()
            self._reader.stop(FORK_DEADLINE_S)
        with self._cycle_lock:
            if self._finished:
                self._let_go()
                return
            self._flush(hostclock.now_ns() + round(deadline_s * 1e9))
            self._finished = True
            self._finish()

    def _let_go(self) -> None:
        """The end was given up and nobody waits any more: give back what is this tracer's alone."""
        try:
            for device in self._devices_now():
                device.close()
        except Exception as error:
            let_through(error)
        if self._file is not None:
            self._file.abandon()

    def _progress(self) -> int:
        """Changes as long as there is any: what is drawn, the rows it is drawn on, and the bytes it comes to."""
        written = 0 if self._file is None else self._file.length
        return int(self._host.progress) + self._tracks.highest_id + written

    def _interrupt(self) -> None:
        """Wait no longer for the device at the end: somebody is in a hurry."""
        self._interrupted = True

    def pause_for_fork(self) -> None:
        """Stop the collector, so that no lock of ours is held and no thread of ours runs while the process forks."""
        held: list[Any] = []
        self._forks.append((get_ident(), held))
        self.regions.stop_timer()
        self._sampler.stop()
        try:
            self._host.set_hurried(True)
            self._collector.stop(FORK_DEADLINE_S)
        finally:
            self._host.set_hurried(False)
        self._reader.stop(FORK_DEADLINE_S)  # last, as it is the collector that starts it
        for lock in (self._cycle_lock, self._devices_lock, self._lock):
            if lock.acquire(timeout=FORK_DEADLINE_S):
                held.append(lock)

    def resume_after_fork(self) -> None:
        """In the parent: the next span starts the collector again."""
        me = get_ident()
        index = max((i for i, (thread, _) in enumerate(self._forks) if thread == me), default=None)
        if index is not None:  # else the recording began within the hooks
            for lock in reversed(self._forks.pop(index)[1]):
                lock.release()
        self.regions.resume_timer()
        self._host.wake_next()
        for device in self._devices.values():
            device.wake_next()

    def forget(self) -> None:
        """In a forked child: let go of everything that is the parent's, touching neither device nor file."""
        self._abandoned = self._finished = True  # a cycle that the fork was asked for in goes on behind it
        self._collector.dismiss()
        self._host.forget()
        for device in self._devices.values():
            device.forget()
        self._devices, self._ambient = {}, {}
        if self._file is not None:
            self._file.abandon()
        if self._dumping is not None:
            self._dumping.remove()

    # The program's side: called by the hot path when something is new.

    def resolve(self, stream: Any) -> Any:
        """The queue of a stream, by any handle; None where it gets no GPU windows. Raises nothing."""
        if self.device == "host":
            return None
        try:
            from gputrace.devices import stream_handle

            handle = stream_handle(stream)
            found = hot.queues().get(handle)
            if found is not None:
                return found
            if self.device != "simulated" and type(stream).__module__ == "gputrace.devices.simulated":
                raise UsageError("it is a simulated GPU's: record with --device simulated to see it")
            with self._lock:
                found = hot.queues().get(handle)
                return found if found is not None else self._new_queue(handle)
        except Exception as error:
            let_through(error)
            self.tell(f"no GPU windows on a stream: {error}")
            return None

    def _new_queue(self, handle: int) -> Any:
        from gputrace.devices import open_backend
        from gputrace.devices.base import AMBIENT_HANDLES, PER_THREAD

        if self._backend is None:
            self._backend = open_backend(self.device)
        stream = self._backend.stream(handle)
        key = id(stream.device)
        device = self._devices.get(key)
        if device is None:
            device = self._devices[key] = self._new_device(stream.device)
        if handle not in AMBIENT_HANDLES:
            queue = hot.queues()[handle] = device.queue(stream)
            try:
                # A binding's stream object hashes as its handle but does not equal it. Others are looked up each time.
                hot.queues()[stream.native] = queue
            except TypeError:
                pass
            return queue
        # Another stream on every context, and the per-thread one on every thread: looked up each time.
        thread = hot.current_number() if handle == PER_THREAD else 0
        ambient = (key, handle, thread)
        if ambient not in self._ambient:
            self._ambient[ambient] = device.queue(stream)
        return self._ambient[ambient]

    def _room(self) -> int:
        # A list: to make a generator's function without memory ends Python 3.12 and 3.13.
        return hot.MOST_WINDOWS - sum([device.in_flight for device in self._devices.values()])

    def _flush_with_multiprocessing(self) -> None:
        """Its children leave by `os._exit`, past atexit, but run its own finalizers first: the last of them is ours."""
        util = sys.modules.get("multiprocessing.util")
        process = sys.modules.get("multiprocessing.process")
        if util is not None and process is not None and process.parent_process() is not None:
            self._with_multiprocessing = True
            util.Finalize(None, _at_exit, exitpriority=-(1 << 20))
            flush_before_sending(_write_now)

    def _wake(self) -> None:
        if not self._with_multiprocessing:
            self._flush_with_multiprocessing()
        if self._forks or self._broken or _current is not self:
            return
        if not (self._said_begun or self._host.outlives_a_kill):
            self._said_begun = True
            try:
                self.folder.add_begun(self.number)  # killed before it wrote anything, it would be taken for idle
            except OSError:
                pass
        if self._collector.running and not self._collector.hurry():
            return
        if self._collector.start():
            self._collector.ring()
            self._sampler.start()

    def give(self, name: str, ts_ns: int, value: int | float, unit: str = "", device: Device | None = None) -> None:
        """A value of a counter of our own, drawn once anything of the program's is. ``device``: of which one; None for
        the process.
        """
        self._given.append((name, ts_ns, value, unit, device))

    def _gpus(self) -> list[Device]:
        """The CUDA devices that the program's spans use, a context each."""
        return [trace.device for trace in self._devices_now() if trace.device.kind == "cuda" and trace.lost is None]

    def _is_recording(self) -> bool:
        return self.regions.on and not self._broken

    def _draw_given(self) -> None:
        for _ in range(len(self._given)):
            name, ts_ns, value, unit, device = self._given.popleft()
            key = id(device)
            if key not in self._counters:
                group = None if device is None else self._devices[key].group_track()
                self._counters[key] = Counters(self._tracks, group)
            self._counters[key].write([(name, ts_ns, value, unit)])

    # The collector's side.

    def cycle(self) -> None:
        """Write what the program handed over and what the devices reached. Raises nothing."""
        while not self._cycle_lock.acquire(timeout=PERIOD_S):
            if self._collector.hurry():
                return  # whoever has it, in `write_now`, may be waiting for this thread's end, to fork
        with self._cycle_lock:
            self._cycle_lock.release()
            if self._finished:
                return
            try:
                self._collect(CHUNK, self._collector.hurry)
                if self._finished:
                    return  # given up meanwhile
                self._write_out(read_on=True)
                if self._asked_for_dump:
                    self._asked_for_dump = False
                    self._dump()
                self._tick_profilers()
                self._report_now_and_then()
                if self._is_forked and is_left_alone():
                    hot.switch_off()
                    self._end(EXIT_DEADLINE_S)
                    self._collector.dismiss()
            except Exception as error:
                self._break(error)

    def write_now(self) -> None:
        """Write what was handed over so far, on the calling thread; within a cycle, that one does. Raises nothing."""
        if is_at_work():
            return
        with self._cycle_lock, AtWork():
            if not self._finished:
                try:
                    self._collect(EVERYTHING, _no_hurry)
                    self._write_out()
                except Exception as error:
                    self._break(error)

    def dump(self) -> str:
        """Have what is kept of the last seconds written. Returns where to, "" if nothing is, and from within a cycle,
        behind which it is done. Raises nothing.
        """
        if not self._keep_ns or self._broken:
            return ""
        if is_at_work():
            self._ask_for_dump()
            return ""
        self.write_now()
        return self._dump()

    def _ask_for_dump(self) -> None:
        """The same on the collector's thread, for a signal's handler."""
        self._asked_for_dump = True
        self._wake()
        self._collector.ring()

    def _dump(self) -> str:
        try:
            now = hostclock.now_ns()
            number = self.folder.ask_for_dump(now)
            if self.write_dump is not None:
                self.write_dump(number, now)
        except Exception as error:  # what is kept is still there, for the next time
            let_through(error)
            self.tell(f"the last seconds could not be written when they were asked for: {error}")
            return ""
        return self.folder.dump_output(number)

    def _collect(self, most: int, hurry: Callable[[], bool], *, last: bool = False) -> None:
        """Take what was handed over, ``most`` edges at a time. Once ``hurry()`` says so, leave the rest for later."""
        with self._devices_lock:
            for device in self._devices_now():
                device.mark()
            if not self._host.collect(most, hurry, lambda: self._pause_on_host(most)):
                return  # a window's beginning may be among what is left: no stream may go on before it
            for device in self._devices_now():
                while device.collect(most, hurry, last=last) and not hurry():
                    self._draw()
                    self._pause(most)

    def _read_on(self) -> None:
        """Beside a disk that keeps the collector waiting: read what the devices reach. Raises nothing."""
        if self._disk_busy and self._devices_lock.acquire(blocking=False):
            try:
                for device in self._devices_now():
                    device.read_on(lambda: not self._disk_busy or self._reader.hurry())
            except Exception as error:
                self._break(error)
            finally:
                self._devices_lock.release()

    def _thread_ended(self, number: int) -> None:
        """A thread that opened spans is gone, and its default streams with it."""
        for key in [key for key in self._ambient if key[2] == number]:
            queue = self._ambient.pop(key)
            for device in self._devices_now():
                device.end(queue)

    def _pause(self, most: int) -> None:
        """Between two chunks of a cycle, let others have the GIL; a flush has no chunks."""
        if most == CHUNK:
            sleep(PAUSE_S)

    def _pause_on_host(self, most: int) -> None:
        """The same between chunks of the host's side. What is drawn of a backlog is written before the rest of it."""
        if self._file is not None and self._file.length - self._flushed_bytes > PORTION_BYTES:
            self._flush_exporter()
        self._pause(most)

    def _draw(self) -> None:
        """Hand what the devices' slices came to to the exporter."""
        for device in self._devices_now():
            device.flush(self._tracks.write)

    def _write_out(self, *, read_on: bool = False) -> None:
        """Write what is drawn. ``read_on``: the devices may be read meanwhile, as nothing more is drawn until the next
        cycle, which takes the host's side of it first.
        """
        with self._devices_lock:
            self._draw()
        if self._exporter is None:
            return
        self._draw_given()
        if read_on and any(device.reads_on for device in self._devices_now()):
            self._reader.start()
        self._disk_busy = read_on
        try:
            self._flush_exporter()
        finally:
            self._disk_busy = False

    def _flush_exporter(self) -> None:
        """Write what it was given, which gives the rings their room back."""
        if self._exporter is not None and self._file is not None:
            self._host.before_flush(self._file)
            self._exporter.flush()
            self._host.after_flush(self._file)
            self._flushed_bytes = self._file.length

    def _devices_now(self) -> list[DeviceTrace]:
        return list(self._devices.values())

    def _tick_profilers(self) -> None:
        profiler = sys.modules.get("gputrace.profiler")
        if profiler is not None:
            # Another thread may be in the middle of importing it.
            for live in list(getattr(profiler, "live_profilers", ())):
                live.tick()

    def _report_now_and_then(self) -> None:
        now_ns = hostclock.now_ns()
        if now_ns - self._reported_ns > REPORT_NS:
            self._reported_ns = now_ns
            self._tell_trouble()
            try:
                self.folder.write_report(self.number, self.report())
                if self.own and now_ns - self._clocks_ns > CLOCKS_NS:
                    self._clocks_ns = now_ns
                    self.folder.add_snapshot(hostclock.snapshot())
            except OSError:
                pass  # a report is worth no trace: the program may have given up its privileges

    # The end.

    def _flush(self, deadline_ns: int) -> None:
        """Write everything, waiting for the device until ``deadline_ns``."""
        try:
            while True:
                self._collect(EVERYTHING, _no_hurry)
                if not any(device.unreached for device in self._devices_now()) or hostclock.now_ns() > deadline_ns:
                    break
                if self._interrupted:
                    self.tell("interrupted while waiting for the device at the end: its last windows may be missing")
                    break
                sleep(0.001)
            self._collect(EVERYTHING, _no_hurry, last=True)
            for device in self._devices_now():
                if device.unread:
                    self.tell(
                        f"gave up on {device.unread} window edges that {device.device.name} had not reached"
                        f" {EXIT_DEADLINE_S:g} s after the end"
                    )
            self._write_out()
        except Exception as error:
            self._break(error)

    def _finish(self) -> None:
        try:
            with self._devices_lock:
                for device in self._devices_now():
                    self.counts.unfinished += device.open_spans
                    device.close()
            self.counts.unfinished += self._host.open_spans
            self._tell_trouble()
            if self._exporter is not None and self._file is not None:
                if not self._broken:
                    self._exporter.metadata({k: v for k, v in self.report().items() if k not in _NOT_IN_TRACE})
                    self._host.before_flush(self._file)
                self._exporter.close()
            if not self._broken:
                self._host.finish()
        except Exception as error:
            self._break(error)
        finally:
            if self._file is not None:
                try:
                    self._file.close()
                except OSError:
                    pass
        if not self._abandoned:  # else that was said, and the counts may be another recording's by now
            self._report()

    def report(self) -> dict[str, int | str | list[str]]:
        """What this process recorded and what it gave up, by name."""
        counts, lost = self.counts, hot.stats()
        self._host.update(counts)
        return {
            "pid": self.pid,
            "slices": counts.slices,
            "windows": counts.windows,
            "dropped": lost.dropped_spans + lost.dropped_windows,
            # The pure twin keeps to a number of spans, which nobody can change.
            "no_room": lost.dropped_spans if hot.TWIN == "compiled" else 0,
            "failed": counts.failed + counts.unreadable + lost.failed,
            "clamped": counts.clamped,
            "out_of_order": counts.out_of_order,
            "capture_skipped": lost.uncaptured,
            "short_calls": lost.short_calls,
            "clock_violations": counts.clock_violations,
            "unfinished": counts.unfinished,
            "worst_uncertainty_ns": counts.worst_error_ns,
            "told": [*self.told, *lost.complaints],
            "missed": self.regions.missed() if self._finished else "",
            "stopped": int(self._broken),
            "shard_bytes": 0 if self._file is None else self._file.written,
            "ended": int(self._finished and not self._abandoned),
            **self._facts,
        }

    def _tell_trouble(self) -> None:
        """Say once why a kill would lose the newest slices, if it would."""
        trouble = self._host.trouble
        if trouble is not None:
            self.tell(f"the newest slices of process {self.pid} were not safe from a kill: {trouble}")

    def tell(self, message: str) -> None:
        """Say something once: the recording's end prints it. Raises nothing."""
        if message not in self.told and len(self.told) < 32:
            self.told.append(message)

    def _break(self, error: Exception) -> None:
        """Writing failed: tracing stops here, and the program goes on."""
        if self._broken or self._abandoned:
            return
        self._broken = True
        hot.switch_off()
        self._collector.dismiss()
        self._reader.dismiss()
        kind = type(error).__name__
        self.tell(f"tracing of process {self.pid} stopped: {kind}: {error}")
        self._report()

    def _report(self) -> None:
        """Say what this process recorded, if it can be said anywhere: the program's own stderr is no place for it."""
        try:
            try:
                self.folder.write_report(self.number, self.report())
            except OSError as error:
                self.folder.add_failure(self.number, error)
        except OSError:
            pass  # the folder is gone with its recording, or out of reach

    def _open_exporter(self) -> Exporter:
        if self._exporter is None:
            if self._keep_ns:
                from gputrace.keeping import KeptFile

                folder, number = self.folder, self.number
                self._file = KeptFile(
                    lambda index: folder.kept_path(number, index), self._keep_ns, self.ring_bytes, self.tell
                )
            assert self._file is not None
            rank = ranks.identity()
            name = (self.name or _process_name()) if rank is None else ranks.process_name(rank, self.pid)
            command_line, order = [*map(str, sys.orig_argv)], None if rank is None else rank.rank
            if not self.folder.unmasked:
                command_line = mask(command_line)
            claim = self.folder.claim
            process = Process(self.number, self.pid, name, command_line, self._start_ns, claim, order)
            self._exporter = self._format(self._file, self.folder.recording, process)
            if rank is not None:
                self._exporter.metadata({**rank.facts(), "program": _process_name()})
        return self._exporter


def _no_hurry() -> bool:
    return False


def _switch(on: bool) -> None:
    if on:
        hot.resume()
    else:
        hot.pause()


def _mark_step(number: int) -> None:
    hot.instant(STEP, number=number)


def start_from_environment() -> Tracer | None:
    """Trace this process if it runs under a recording, and once. Returns the tracer. Raises OSError."""
    path = os.environ.get("GPUTRACE_RECORD")
    if not path or _current is not None:
        return _current
    from gputrace.shards import ShardFolder

    folder = ShardFolder.open(path)
    tracer = Tracer(folder, folder.device)
    tracer.start()
    return tracer


def start_fenced() -> None:
    """`start_from_environment`, for an import that must not fail: a folder that is gone leaves the program untraced."""
    if "GPUTRACE_RECORD" in os.environ:
        try:
            start_from_environment()
        except Exception:
            hot.switch_off()


def load_exporter(path: str) -> type[Exporter]:
    """The class behind "module:Class". Raises what importing it raises."""
    module, _, name = path.partition(":")
    exporter: type[Exporter] = getattr(__import__(module, fromlist=[name]), name)
    return exporter


def _process_name() -> str:
    argv = getattr(sys, "argv", None) or sys.orig_argv
    path = argv[0] if argv and isinstance(argv[0], str) else ""  # a program may put anything there
    name = os.path.basename(path)
    if name == "__main__.py":  # python -m package
        name = os.path.basename(os.path.dirname(path))
    return name if name not in ("", "-c", "-m") else os.path.basename(sys.executable or "python")


# Exit and fork: one hook each, for whichever tracer is current.


def _at_exit() -> None:
    if _current is not None:
        try:
            _current.stop()
        except BaseException:
            pass  # without us, the signal would have found the program at its end


def _write_now() -> None:
    if _current is not None:
        _current.write_now()


def _before_fork() -> None:
    if _current is not None:
        _current.pause_for_fork()


def _after_fork_in_parent() -> None:
    if _current is not None:
        _current.resume_after_fork()


def _after_fork_in_child() -> None:
    """The parent's windows, file, locks and device are the parent's: start anew, on the host alone if it used a GPU."""
    global _current
    parent, _current = _current, None
    hot.switch_off()
    if parent is None:
        return
    hot.forget_everything()
    forget_threads()
    parent.forget()
    instrument.stop()
    staying.leave()
    if parent.own:
        return  # nobody would join what the child writes
    try:
        device = "host" if parent._backend is not None and parent.device == "cuda" else parent.device
        tracer = Tracer(parent.folder, device)
        tracer.start(parent)
    except UsageError as error:
        hot.switch_off()
        try:
            parent.folder.add_note(f"{os.getpid()} {sys.executable}: {error}")
        except OSError:
            pass
    except Exception:
        hot.switch_off()  # the folder is gone: the child runs untraced


exithook.register(_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
