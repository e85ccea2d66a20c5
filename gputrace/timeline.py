"""From edges to slices: which lane each window goes to, and what is written for it, in order.

An end on a Perfetto track closes whatever is innermost there, so slices that do not nest must not share a track. A
begin is written before its end is known, so its lane is chosen at once, by one rule (`LaneSet.begin`): a scoped span
nests only in a lane whose innermost open span is of the same thread and the same task or generator; everything else
takes an empty lane. Lanes of one row are drawn as one.

It knows no driver, no threads and no file: it is given edges in order and hands batches to a writer.
"""

from __future__ import annotations

from gputrace.model import BEGIN, END, INSTANT, Track

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Final

    from gputrace.clock import ClockMap, Piece
    from gputrace.hot import Span
    from gputrace.model import Args, Edge

#: Perfetto's engine keeps this many levels open on one track.
DEEPEST: Final = 512


class Counts:
    """What one process has written and what it could not. Plain counters; the report's words are in `told`."""

    __slots__ = (
        "clamped",
        "clock_violations",
        "failed",
        "out_of_order",
        "slices",
        "unfinished",
        "unreadable",
        "windows",
        "worst_error_ns",
    )

    def __init__(self) -> None:
        self.slices = 0
        self.windows = 0
        self.clamped = 0
        self.out_of_order = 0
        self.failed = 0
        self.unreadable = 0
        self.clock_violations = 0
        self.unfinished = 0
        self.worst_error_ns = 0


class Lane:
    """One track of a row: the spans open on it, outermost first, and the edges not yet given to the writer."""

    __slots__ = ("key", "last_ns", "out", "stack", "track")

    def __init__(self, track: Track) -> None:
        self.track = track
        self.stack: list[Span] = []
        self.key: object = None  # whose scoped spans may nest here now
        self.out: list[Edge] = []
        self.last_ns = 0


class LaneSet:
    """The lanes of one row. ``open_lane(index)`` makes the track of lane ``index``, counting from 0."""

    def __init__(self, open_lane: Callable[[int], Track], counts: Counts) -> None:
        self._open_lane = open_lane
        self._counts = counts
        self.lanes: list[Lane] = []
        self._owned: dict[object, Lane] = {}  # by key: the lane whose innermost span is of that key

    def begin(self, key: object) -> Lane:
        """The lane a window that begins now belongs on. ``key`` is None for an explicit window."""
        if key is not None:
            lane = self._owned.get(key)
            if lane is not None and lane.key == key and lane.stack and len(lane.stack) < DEEPEST:
                return lane
        for lane in self.lanes:
            if not lane.stack:
                break
        else:
            lane = Lane(self._open_lane(len(self.lanes)))
            self.lanes.append(lane)
        lane.key = key
        if key is not None:
            self._owned[key] = lane
        return lane

    def end(self, lane: Lane, span: Span, ts: int, args: Args | None) -> int:
        """Close a span on its lane and return the time used. One that is not innermost ends what is above it too."""
        stack = lane.stack
        if ts < lane.last_ns:
            self._counts.clamped += 1
            ts = lane.last_ns
        if stack[-1] is not span:
            while stack[-1] is not span:
                self.cut(lane, stack.pop(), ts)
        stack.pop()
        lane.out.append((ts, END, None, args, 0))
        lane.last_ns = ts
        if not stack and self._owned.get(lane.key) is lane:
            del self._owned[lane.key]
        return ts

    def cut(self, lane: Lane, above: Span, ts: int) -> None:
        """A scoped span closed out of order is ended where it stands; its own close then finds it gone."""
        self._counts.out_of_order += 1
        lane.out.append((ts, END, None, {"cut": "a span around it was closed first"}, 0))
        if above.host_lane is lane:
            above.host_lane = None
        if above.gpu_lane is lane:
            above.gpu_lane = None

    def flush(self, write: Callable[[Track, list[Edge]], None]) -> None:
        """Hand every lane's new edges to the writer."""
        for lane in self.lanes:
            if lane.out:
                out, lane.out = lane.out, []
                write(lane.track, out)


class HostTimeline:
    """One host thread's slices. Plain code's spans are on the thread's own track, which is never anyone else's; tasks,
    generators and explicit windows are on lanes below it.
    """

    def __init__(self, track: Track, open_lane: Callable[[int], Track], counts: Counts) -> None:
        self.home = Lane(track)
        self.lanes = LaneSet(open_lane, counts)
        self._counts = counts

    def add(self, edges: list[Any], next_flow: Callable[[], int], done: list[Span]) -> list[Any]:
        """Turn edges, in their thread's order, to slices. Returns the counter samples among them.

        ``done`` gets each span that nothing more will come of.
        """
        samples: list[Any] = []
        home = self.home
        out, stack = home.out, home.stack
        counts = self._counts
        begun = 0
        for span in edges:
            is_open = span.host_open
            if is_open:
                span.host_open = False
                lane = span.host_lane
                span.host_lane = None
                if span.gpu is None:
                    args = None if span.error is None and span.reason is None else _end_args(span, True)
                else:
                    args = None if span.error is None else _end_args(span, True)
                if lane is home and stack[-1] is span:
                    stack.pop()
                    ts = span.t1
                    if ts < home.last_ns:
                        counts.clamped += 1
                        ts = home.last_ns
                    home.last_ns = ts
                    out.append((ts, END, None, args, 0))
                elif lane is home:
                    self._end_home(span, args)
                elif lane is not None:
                    self.lanes.end(lane, span, span.t1, args)
                if span.gpu is None:
                    done.append(span)
            elif is_open is False:
                span.host_open = True
                ts = span.t0
                scope = span.scope
                if scope == 0 and len(stack) < DEEPEST:
                    lane = home
                else:
                    lane = self.lanes.begin(scope)
                if ts < lane.last_ns:
                    counts.clamped += 1
                    ts = lane.last_ns
                lane.last_ns = ts
                flow = 0
                if span.queue is not None:
                    flow = span.flow = next_flow()
                lane.out.append((ts, BEGIN, span.name, span.args or None, flow))
                lane.stack.append(span)
                span.host_lane = lane
                begun += 1
            elif hasattr(span, "value"):
                samples.append(span)
            else:
                ts = max(span.t0, home.last_ns)
                home.last_ns = ts
                out.append((ts, INSTANT, span.name, span.args or None, 0))
        counts.slices += begun
        return samples

    def _end_home(self, span: Span, args: Args | None) -> None:
        """A plain span closed before one inside it."""
        home = self.home
        ts = max(span.t1, home.last_ns)
        while home.stack[-1] is not span:
            self.lanes.cut(home, home.stack.pop(), ts)
        home.stack.pop()
        home.last_ns = ts
        home.out.append((ts, END, None, args, 0))

    def flush(self, write: Callable[[Track, list[Edge]], None]) -> None:
        """Hand the new edges to the writer."""
        if self.home.out:
            # In place: `add` keeps the list at hand.
            out, self.home.out = self.home.out, []
            write(self.home.track, out)
        self.lanes.flush(write)

    @property
    def open_spans(self) -> int:
        return len(self.home.stack) + sum(len(lane.stack) for lane in self.lanes.lanes)


class _NoLane:
    """Stands for a lane of a window that was not drawn."""


_UNREAD = _NoLane()  # its beginning could not be read
_ABANDONED = _NoLane()  # abandoned before its beginning was drawn

ABANDONED: Final = "abandoned"


class StreamTimeline:
    """One stream's slices, in the order the device passed their edges.

    Edges are added with their device time as they are read and drawn once the clock map reaches them.
    """

    def __init__(self, open_lane: Callable[[int], Track], counts: Counts) -> None:
        self.lanes = LaneSet(open_lane, counts)
        self._counts = counts
        #: (device time in ns or None, span or failure mark, is it an end), in order.
        self.waiting: list[tuple[int | None, Any, bool]] = []
        self.last_ns = 0  # host time of the last edge drawn
        self.last_device_ns: int | None = None

    def place(self, clock: ClockMap, read_error_ns: int, done: list[Span], most: int) -> bool:
        """Draw at most ``most`` of the waiting edges, in order, as far as the map reaches. True if more are within reach.

        ``read_error_ns`` is how far off their device times may be; ``done`` gets each window that is done with.
        """
        reach = clock.reach_ns
        if reach is None or not clock.pieces:
            return False
        counts = self._counts
        piece: Piece | None = None
        from_ns = to_ns = device0 = host0 = error_ns = 0
        slope = 1.0
        mark: Args | None = None
        last_ns = self.last_ns
        placed = 0
        for device_ns, span, is_end in self.waiting[:most]:
            if device_ns is None:
                self.last_ns = last_ns
                self._untimed(span, is_end, done)
                last_ns = self.last_ns
                placed += 1
                continue
            if device_ns > reach:
                break
            if piece is None or not from_ns <= device_ns <= to_ns:
                piece = clock.piece_at(device_ns)
                from_ns, to_ns = min(piece.device0, device_ns), piece.device1
                device0, host0, slope = piece.device0, piece.host0, piece.slope
                error_ns = int(max(piece.worst_error_ns, piece.error_ns(device_ns))) + read_error_ns + clock.tick_ns
                counts.worst_error_ns = max(counts.worst_error_ns, error_ns)
                mark = _APPROXIMATE if piece.extended else None
            ts = host0 + int((device_ns - device0) * slope)
            if ts < last_ns:
                counts.clamped += 1
                ts = last_ns
            last_ns = ts
            placed += 1
            if is_end:
                lane = span.gpu_lane
                span.gpu_lane = None
                if lane is _UNREAD:
                    self.last_ns = last_ns
                    self._draw_unread(span)
                elif lane is not None and lane is not _ABANDONED:
                    args = mark if span.error is None and span.reason is None else {**_end_args(span, False), **(mark or {})}
                    stack = lane.stack
                    if len(stack) > 1 and stack[-1] is span:
                        stack.pop()
                        lane.out.append((ts, END, None, args, 0))
                        lane.last_ns = ts
                    else:
                        self.lanes.end(lane, span, ts, args)
                done.append(span)
                continue
            if span.reason is not None and span.reason == ABANDONED:
                span.gpu_lane = _ABANDONED
                continue
            if ts + error_ns < span.t0:
                counts.clock_violations += 1
            scope = span.scope
            lane = self.lanes.begin(None if scope is None else (span.thread, scope))
            lane.out.append((ts, BEGIN, span.name, ({**span.args, **mark} if mark else span.args) or None, span.flow))
            lane.last_ns = ts
            lane.stack.append(span)
            span.gpu_lane = lane
            counts.windows += 1
        self.last_ns = last_ns
        del self.waiting[:placed]
        return placed == most

    def _untimed(self, span: Any, is_end: bool, done: list[Span]) -> None:
        """An edge without a time: a mark, a beginning that could not be read, or an end that was not recorded."""
        counts = self._counts
        if span.gpu_open is None:  # every window open here failed
            for lane in self.lanes.lanes:
                for open_span in lane.stack:
                    counts.failed += open_span.error is None
                    open_span.error = open_span.error or span.error
            return
        if not is_end:
            span.gpu_lane = _ABANDONED if span.reason == ABANDONED else _UNREAD
            return
        lane = span.gpu_lane
        span.gpu_lane = None
        if lane is _UNREAD:
            self._draw_unread(span)
        elif lane is not None and lane is not _ABANDONED:
            counts.failed += span.reason != ABANDONED
            self.last_ns = self.lanes.end(lane, span, self.last_ns, _end_args(span, False))
        done.append(span)

    def _draw_unread(self, span: Span) -> None:
        """A window that could not be read is an instant that carries the error, never an hour-long bar."""
        self._counts.unreadable += 1
        lane = self.lanes.begin(None)
        ts = max(self.last_ns, span.t0, lane.last_ns)
        self.last_ns = lane.last_ns = ts
        lane.out.append((ts, INSTANT, span.name, {**span.args, **_end_args(span, False)}, 0))

    def give_up(self, why: str, done: list[Span]) -> None:
        """Nothing that waits can be placed: each window becomes an instant that says why."""
        waiting, self.waiting = self.waiting, []
        for _, span, is_end in waiting:
            if span.gpu_open is not None:
                span.error = span.error or why
            self._untimed(span, is_end, done)

    def flush(self, write: Callable[[Track, list[Edge]], None]) -> None:
        """Hand the new edges to the writer."""
        self.lanes.flush(write)

    @property
    def earliest_ns(self) -> int | None:
        """The device time of the first edge that waits; None if none does."""
        return next((device_ns for device_ns, _, _ in self.waiting if device_ns is not None), None)

    @property
    def open_spans(self) -> int:
        return sum(len(lane.stack) for lane in self.lanes.lanes)


_APPROXIMATE: Args = {"placement": "approximate"}


def _end_args(span: Span, host: bool) -> dict[str, str]:
    """What a slice's end says of what went wrong."""
    args: dict[str, str] = {}
    if span.error is not None:
        args["error"] = span.error
    if span.reason is not None:
        if host:
            args["gpu"] = f"not recorded: {span.reason}"
        else:
            args["ended"] = span.reason
    return args
