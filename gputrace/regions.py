"""Which part of a process's recording is recorded: by the clock, by steps or ranges, or as the program says.

It knows no trace and no twin: it says "record" and "do not", and has its owner draw what it said as a counter.
"""

from __future__ import annotations

from _thread import RLock

from gputrace.collector import Collector
from gputrace.hostclock import now_ns

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, Final

#: The name of the counter that shows what was recorded: 1 while it was, 0 while it was not.
RECORDED: Final = "gputrace recorded"
#: The name of the instant at the end of each step that was counted; its arg "number" says of which.
STEP: Final = "gputrace.step"
#: The longest that the clock is not looked at while a region is awaited.
LONGEST_WAIT_S: Final = 3600.0
FORK_DEADLINE_S: Final = 2.0


class Region:
    """The part asked for. All of it, by default.

    ``begin_ns`` and ``end_ns`` are on the host's clock, 0 where there is no such end; ``first_step`` and
    ``end_step`` count the program's steps from 0, the second is the first one that is not recorded; None where steps do
    not count, or do not end. ``by_range``: only inside ranges that the program opens. ``asked`` is how the user wrote
    it.
    """

    __slots__ = ("asked", "begin_ns", "by_range", "end_ns", "end_step", "first_step")

    def __init__(self, options: Mapping[str, Any], base_ns: int) -> None:
        """From a recording's options; ``base_ns`` is when the recording began."""
        delay_ns, duration_ns = options.get("delay_ns", 0), options.get("duration_ns", 0)
        self.begin_ns = base_ns + delay_ns if delay_ns else 0
        self.end_ns = base_ns + delay_ns + duration_ns if duration_ns else 0
        self.first_step: int | None = options.get("first_step")
        self.end_step: int | None = options.get("end_step")
        self.by_range = bool(options.get("capture_range", ""))
        self.asked = str(options.get("region", ""))

    @property
    def by_clock(self) -> bool:
        return bool(self.begin_ns or self.end_ns)

    def holds(self, now: int, step: int) -> bool:
        """Is this moment, in this step, part of it?"""
        if now < self.begin_ns or (self.end_ns and now >= self.end_ns):
            return False
        return self.first_step is None or (step >= self.first_step and (self.end_step is None or step < self.end_step))

    def next_change_ns(self, now: int) -> int | None:
        """When the clock changes the answer next; None where it does so no more."""
        return next((edge for edge in (self.begin_ns, self.end_ns) if edge > now), None)


class Regions:
    """Decides for one process. ``switch(on)`` is called when the answer changes, and at most one call runs at a time;
    ``draw(name, host time in ns, value)`` takes the counter, ``mark(number)`` the end of a step, on this thread.
    Methods raise nothing of their own.
    """

    def __init__(
        self,
        region: Region,
        switch: Callable[[bool], None],
        draw: Callable[[str, int, int], None],
        mark: Callable[[int], None],
    ) -> None:
        self.region = region
        self._switch = switch
        self._draw = draw
        self._mark = mark
        self._lock = RLock()  # a signal's handler may come here from within
        self._on = True
        self._paused = False
        self._over = False
        self.steps = 0
        self._said_steps = 0  # those that the program counted itself
        self._ranges = 0  # that are open now, of those that the region is
        self.reached = False
        self._start_ns = now_ns()
        self._drawn = False
        self._timer = Collector(self._look)

    def begin(self, like: Regions | None = None) -> None:
        """The process is recorded from now on, by default; ``like`` is the one of the process that forked this one."""
        if like is not None:
            self._paused, self._ranges = like._paused, like._ranges
            self.steps, self._said_steps = like.steps, like._said_steps
        with self._lock:
            self.reached = self._on = self._wanted(now_ns())
            if not self._on:
                self._drawn = True
                self._draw(RECORDED, self._start_ns, 0)
                self._switch(False)
        self.resume_timer()

    @property
    def on(self) -> bool:
        """Is the process recorded now?"""
        return self._on and not self._over

    def end(self) -> None:
        """The recording is over: nothing is switched any more."""
        with self._lock:
            self._over = True
        self.stop_timer()

    # What the program says.

    def step(self) -> None:
        """A step is over. From the first call on, no others count."""
        with self._lock:
            self._said_steps += 1
            self._count(self._said_steps)

    def optimizer_step(self) -> None:
        """An optimizer stepped: that ends a step where the program counts none itself."""
        with self._lock:
            if not self._said_steps:
                self._count(self.steps + 1)

    def _count(self, steps: int) -> None:
        # The step that ends may be the last that is recorded, and the one that begins the first: either has both marks.
        if was_on := self.on:
            self._mark(steps - 1)
        self.steps = steps
        if self.region.first_step is not None:
            self._decide()
        if self.on and not was_on:
            self._mark(steps - 1)

    def pause(self) -> None:
        with self._lock:
            self._paused = True
            self._decide()

    def resume(self) -> None:
        with self._lock:
            self._paused = False
            self._decide()

    # What the program says to others, of ranges that the region is.

    def enter_range(self) -> None:
        """One more is open, on whichever thread."""
        self._set_ranges(lambda now: now + 1)

    def leave_range(self) -> None:
        """One has ended."""
        self._set_ranges(lambda now: max(now - 1, 0))

    def profile(self, on: bool) -> None:
        """A profiler is started or stopped, which is so for the whole process, however often it is said."""
        self._set_ranges(lambda _: int(on))

    def _set_ranges(self, change: Callable[[int], int]) -> None:
        with self._lock:
            self._ranges = change(self._ranges)
            if self.region.by_range:
                self._decide()

    # The clock.

    def stop_timer(self) -> None:
        """Have no thread here, as before a fork."""
        self._timer.stop(FORK_DEADLINE_S)

    def resume_timer(self) -> None:
        """Look at the clock again, if it still decides anything."""
        if self._wait() is not None:
            self._timer.start()

    def _look(self) -> None:
        with self._lock:
            if not self._over:
                self._decide()
        if self._wait() is None:
            self._timer.dismiss()

    def _wait(self) -> float | None:
        """Until when the timer sleeps next; None if the clock changes nothing any more."""
        now = now_ns()
        change = None if self._over else self.region.next_change_ns(now)
        if change is None:
            return None
        self._timer.period_s = min(max(change - now, 0) / 1e9 + 1e-4, LONGEST_WAIT_S)
        return self._timer.period_s

    def _wanted(self, now: int) -> bool:
        inside = self._ranges > 0 or not self.region.by_range
        return inside and not self._paused and self.region.holds(now, self.steps)

    def _decide(self) -> None:
        with self._lock:
            now = now_ns()
            on = self._wanted(now)
            self.reached = self.reached or on
            if self._over or on == self._on:
                return
            if not self._drawn:
                self._drawn = True
                self._draw(RECORDED, self._start_ns, 1)
            # What is drawn says no more than what was recorded: it ends before, and begins behind.
            if on:
                self._switch(True)
                self._draw(RECORDED, now_ns(), 1)
            else:
                self._draw(RECORDED, now, 0)
                self._switch(False)
            self._on = on

    def missed(self) -> str:
        """Why nothing of this process was recorded, for its user; "" if something was."""
        if self.reached or not self.region.asked:
            return ""
        if self.region.by_range:
            return f"a process came to no range that {self.region.asked} asks for, so nothing of it was recorded"
        if self.region.first_step is None:
            return f"a process ended before anything that {self.region.asked} asks for"
        if not self.steps:
            counted = "neither called gputrace.step() nor stepped an optimizer of PyTorch"
        else:
            counted = f"made {self.steps} step{'s' if self.steps > 1 else ''}"
        return f"a process {counted}, so {self.region.asked} recorded nothing of it"
