"""From edges to slices: which lane each window goes to, and what is written for it, in order.

An end on a Perfetto track closes whatever is innermost there, so slices that do not nest must not share a track. A
begin is written before its end is known, so its lane is chosen at once, by one rule (`LaneSet.choose`): a scoped span
nests only in a lane whose innermost open span is of the same thread and the same task or generator; everything else
takes an empty lane. Lanes of one row are drawn as one.

It knows no driver, no threads and no file: it is given edges in order and hands batches to a writer.
"""

from __future__ import annotations

from _heapq import heapify, heappop, heappush  # the builtin part of `heapq`

from gputrace.hot.drain import ABANDONED, NEVER_CLOSED
from gputrace.model import BEGIN, END, INSTANT, SLICE, Track

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Hashable
    from typing import Any, Final

    from gputrace.clock import ClockMap, Piece
    from gputrace.counts import Counts
    from gputrace.hot.drain import Passed
    from gputrace.hot.pure import Span
    from gputrace.model import Args, Edge

    Writer = Callable[[Track, list[Edge]], None]

#: Perfetto's engine keeps this many levels open on one track.
DEEPEST: Final = 512
#: Edges of one stream that are this much out of order are so for the rounding of their times: they are clamped.
CLOSE_NS: Final = 1_000
_VIOLATION: Final[Args] = {"clock": "placed before its own enqueue: the device's clock cannot be trusted here"}
_APPROXIMATE: Final[Args] = {"placement": "approximate"}


class Lane:
    """One track of a row: what is open on it, outermost first, and the edges not yet given to the writer."""

    __slots__ = ("index", "key", "last_ns", "out", "stack", "track")

    def __init__(self, track: Track, index: int = 0) -> None:
        self.track = track
        self.index = index
        self.stack: list[Hashable] = []
        self.key: Hashable = None  # whose scoped spans may nest here now
        self.out: list[Edge] = []
        self.last_ns = 0

    def flush(self, write: Writer) -> None:
        if self.out:
            out, self.out = self.out, []
            write(self.track, out)


class LaneSet:
    """The lanes of one row. ``open_lane(index)`` makes the track of lane ``index``, counting from 0."""

    def __init__(self, open_lane: Callable[[int], Track], counts: Counts) -> None:
        self._open_lane = open_lane
        self._counts = counts
        self.lanes: list[Lane] = []
        self.touched: list[Lane] = []  # lanes with edges that the writer does not have
        self._empty: list[int] = []  # a heap of the lanes with nothing open: there may be thousands of lanes
        self._owned: dict[Hashable, Lane] = {}  # by key: the lane whose innermost span is of that key
        self._lane_of: dict[Hashable, Lane] = {}  # of each open span

    def choose(self, key: Hashable, ts: int) -> Lane:
        """The lane for a window that begins at ``ts``. ``key`` is whose scope it nests in, None for an explicit window.

        An empty lane must be free by then: edges that threads handed over late may be older than what is drawn.
        """
        if key is not None:
            lane = self._owned.get(key)
            if lane is not None and len(lane.stack) < DEEPEST:
                return lane
        if self._empty:
            lane = self.lanes[self._empty[0]]
            if lane.last_ns <= ts + CLOSE_NS:
                return lane
        index = len(self.lanes)
        lane = Lane(self._open_lane(index), index)
        self.lanes.append(lane)
        heappush(self._empty, index)
        return lane

    def emit(self, lane: Lane, edge: Edge) -> None:
        """Draw an edge on a lane."""
        if not lane.out:
            self.touched.append(lane)
        lane.out.append(edge)

    def begin(self, lane: Lane, item: Hashable, key: Hashable) -> None:
        """``item`` is open on the lane that was chosen for it."""
        lane.stack.append(item)
        self._lane_of[item] = lane
        if len(lane.stack) == 1:
            if self._empty[0] == lane.index:
                heappop(self._empty)
            else:  # a lane below it was empty, but not yet free
                self._empty.remove(lane.index)
                heapify(self._empty)
            lane.key = key
            if key is not None:
                self._owned[key] = lane

    def end(self, item: Hashable, ts: int, args: Args | None) -> int:
        """Close an item on its lane and return the time used. One that was cut, or never begun, is passed over."""
        lane = self._lane_of.pop(item, None)
        if lane is None:
            return ts
        if ts < lane.last_ns:
            self._counts.clamped += 1
            ts = lane.last_ns
        lane.last_ns = ts
        self.cut_down_to(lane, item, ts)
        lane.stack.pop()
        self.emit(lane, (ts, END, None, args, 0, 0))
        if not lane.stack:
            heappush(self._empty, lane.index)
            if self._owned.get(lane.key) is lane:
                del self._owned[lane.key]
        return ts

    def cut_down_to(self, lane: Lane, item: Hashable, ts: int) -> None:
        """A span closed out of order: what is still open inside it is ended where it stands, and counted."""
        while lane.stack[-1] != item:
            self._counts.out_of_order += 1
            self._lane_of.pop(lane.stack.pop(), None)
            self.emit(lane, (ts, END, None, {"ended": "a span around it was closed first"}, 0, 0))

    def flush(self, write: Writer) -> None:
        """Hand every lane's new edges to the writer."""
        touched, self.touched = self.touched, []
        for lane in touched:
            lane.flush(write)

    @property
    def open_items(self) -> list[Hashable]:
        return list(self._lane_of)


class HostTimeline:
    """One host thread's slices. Plain code's spans are on the thread's own track, which is never anyone else's; tasks,
    generators and explicit windows are on lanes below it.
    """

    def __init__(self, track: Track, open_lane: Callable[[int], Track], counts: Counts) -> None:
        self.home = Lane(track)
        self.lanes = LaneSet(open_lane, counts)
        self._counts = counts

    def add(self, edges: list[Any], next_number: Callable[[], int], done: list[Span]) -> list[Any]:
        """Turn edges, in their thread's order, to slices. Returns the counter samples among them.

        ``next_number`` numbers the spans; the number of one with a window is the flow that joins its two slices.
        Numbers, not spans, stand for what is open, so that a span which nobody can close any more dies, and says so.
        ``done`` gets each span that nothing more will come of.
        """
        samples: list[Any] = []
        home = self.home
        emit, stack = home.out.append, home.stack
        last_ns = home.last_ns
        counts = self._counts
        slices = 0
        paired = False
        for span, after in zip(edges, [*edges[1:], None], strict=True):
            if paired:
                paired = False
                continue
            is_open = span.host_open
            if is_open is False:
                number = span.flow = next_number()
                flow = 0 if span.queue is None else number
                slices += 1
                ts = span.t0
                if span.scope != 0 or len(stack) >= DEEPEST:
                    span.host_open = True
                    self._begin_on_lane(span, ts, flow)
                    continue
                if ts < last_ns:
                    counts.clamped += 1
                    ts = last_ns
                if after is span:  # nothing happened inside: one entry for both edges
                    paired = True
                    last_ns = max(span.t1, ts)
                    args = span.args
                    if span.error is not None or span.reason is not None:
                        args = {**(args or {}), **_end_args(span)}
                    emit((ts, SLICE, span.name, args, flow, last_ns))
                    if span.gpu is None:
                        done.append(span)
                    continue
                span.host_open = True
                last_ns = ts
                emit((ts, BEGIN, span.name, span.args, flow, 0))
                stack.append(number)
            elif is_open:
                span.host_open = False
                args = None if span.error is None and span.reason is None else _end_args(span)
                ts = span.t1
                number = span.flow
                if stack and stack[-1] == number:
                    stack.pop()
                    if ts < last_ns:
                        counts.clamped += 1
                        ts = last_ns
                    last_ns = ts
                    emit((ts, END, None, args, 0, 0))
                elif number in stack:
                    last_ns = max(ts, last_ns)
                    self.lanes.cut_down_to(home, number, last_ns)
                    stack.pop()
                    emit((last_ns, END, None, args, 0, 0))
                else:
                    self.lanes.end(number, ts, args)
                if span.gpu is None:
                    done.append(span)
            elif span.value is not None:
                samples.append(span)
            else:
                last_ns = max(span.t0, last_ns)
                emit((last_ns, INSTANT, span.name, span.args, 0, 0))
        home.last_ns = last_ns
        counts.slices += slices
        return samples

    def _begin_on_lane(self, span: Span, ts: int, flow: int) -> None:
        lane = self.lanes.choose(span.scope, ts)
        if ts < lane.last_ns:
            self._counts.clamped += 1
            ts = lane.last_ns
        lane.last_ns = ts
        self.lanes.emit(lane, (ts, BEGIN, span.name, span.args, flow, 0))
        self.lanes.begin(lane, span.flow, span.scope)

    def flush(self, write: Writer) -> None:
        """Hand the new edges to the writer."""
        self.home.flush(write)
        self.lanes.flush(write)

    def close(self, close_track: Callable[[Track], None]) -> None:
        """The thread is gone and all is closed: let its tracks go."""
        for lane in (*self.lanes.lanes, self.home):
            close_track(lane.track)

    @property
    def open_spans(self) -> int:
        return len(self.home.stack) + len(self.lanes.open_items)


class StreamTimeline:
    """One stream's slices. Threads that share it may hand over in another order than they recorded; each alone is in
    order, and so is each lane.

    Edges are added to ``waiting`` as they are read, and drawn once the clock map reaches their device time.
    """

    def __init__(self, open_lane: Callable[[int], Track], counts: Counts) -> None:
        self.lanes = LaneSet(open_lane, counts)
        self.waiting: list[Passed] = []
        self.last_ns = 0  # host time of the last edge drawn
        self._counts = counts
        self._unread: dict[int, Passed] = {}  # windows whose beginning could not be read, by flow
        self._failed: dict[int, str] = {}  # errors of open windows, by flow

    def place(self, clock: ClockMap, read_error_ns: int, most: int) -> bool:
        """Draw at most ``most`` of the waiting edges, in order, as far as the map reaches. True if there may be more.

        ``read_error_ns`` is how far off their device times may be.
        """
        reach = clock.reach_ns
        if reach is None or not clock.ready:
            return False
        counts, lanes = self._counts, self.lanes
        piece: Piece | None = None
        from_ns = to_ns = device0 = host0 = error_ns = 0
        off_ns = read_error_ns + clock.tick_ns
        slope = 1.0
        mark: Args | None = None
        last_ns = self.last_ns
        placed = windows = 0
        # Where the last leaf went: until something begins or ends, the next of its scope goes there too.
        leaf_key: Hashable = None
        leaf_lane: Lane | None = None
        for device_ns, end_device_ns, flow, name, args, key, enqueued_ns in self.waiting[:most]:
            if device_ns is None:
                self.last_ns = last_ns
                self._untimed(flow, name, args, key, enqueued_ns)
                last_ns = self.last_ns
                placed += 1
                leaf_key = None
                continue
            if (end_device_ns or device_ns) > reach:
                break
            if piece is None or not from_ns <= device_ns <= to_ns:
                piece = clock.piece_at(device_ns)
                from_ns, to_ns = min(piece.device0, device_ns), piece.device1
                device0, host0, slope = piece.device0, piece.host0, piece.slope
                error_ns = _error_ns(piece, device_ns) + off_ns
                counts.worst_error_ns = max(counts.worst_error_ns, error_ns)
                mark = _APPROXIMATE if piece.extended else None
            ts = host0 + int((device_ns - device0) * slope)
            placed += 1
            if mark:
                args = {**(args or {}), **mark}
            if name is None:
                leaf_key = None
                if self._failed:
                    args = self._with_failure(flow, args)
                if flow in self._unread:
                    self.last_ns = max(last_ns, ts)
                    self._draw_unread(flow, args)
                    last_ns = self.last_ns
                else:
                    ts = lanes.end(flow, ts, args)
                    if ts > last_ns:
                        last_ns = ts
                continue
            if ts + error_ns < enqueued_ns:
                counts.clock_violations += 1
                args = {**(args or {}), **_VIOLATION}
            windows += 1
            if leaf_lane is not None and key == leaf_key is not None and leaf_lane.last_ns <= ts:
                lane = leaf_lane
            else:
                lane = lanes.choose(key, ts)
                if ts < lane.last_ns:
                    counts.clamped += 1
                    ts = lane.last_ns
            if not lane.out:
                lanes.touched.append(lane)
            if end_device_ns is None:
                leaf_key = None
                lane.out.append((ts, BEGIN, name, args, flow, 0))
                lanes.begin(lane, flow, key)
                lane.last_ns = ts
            else:
                leaf_key, leaf_lane = key, lane
                end_ns = host0 + int((end_device_ns - device0) * slope)
                if end_device_ns > to_ns:
                    end = clock.piece_at(end_device_ns)  # within reach, as was checked above
                    end_ns = end.host_ns(end_device_ns)
                    counts.worst_error_ns = max(counts.worst_error_ns, _error_ns(end, end_device_ns) + off_ns)
                if end_ns < ts:
                    end_ns = ts
                lane.out.append((ts, SLICE, name, args, flow, end_ns))
                lane.last_ns = ts = end_ns
            if ts > last_ns:
                last_ns = ts
        self.last_ns = last_ns
        counts.windows += windows
        counts.slices += windows
        del self.waiting[:placed]
        return placed == most

    def give_up(self, why: str) -> None:
        """Nothing that waits can be placed: each window becomes an instant that says why."""
        waiting, self.waiting = self.waiting, []
        for _, end_device_ns, flow, name, args, key, enqueued_ns in waiting:
            if name is not None:
                args = {**(args or {}), "error": why}
            self._untimed(flow, name, args, key, enqueued_ns)
            if end_device_ns is not None:
                self._untimed(flow, None, None, None, 0)

    def _untimed(self, flow: int, name: str | None, args: Args | None, key: Hashable, enqueued_ns: int) -> None:
        """An edge without a time: a mark, a beginning that could not be read, or an end that was not recorded."""
        if not flow:
            error = str((args or {}).get("error", "failed"))
            for item in self.lanes.open_items:
                assert isinstance(item, int)
                self._counts.failed += item not in self._failed
                self._failed.setdefault(item, error)
        elif name is not None:
            self._unread[flow] = (None, None, flow, name, args, key, enqueued_ns)
        elif flow in self._unread:
            self._draw_unread(flow, args)
        else:
            self._counts.failed += args is not ABANDONED and args != NEVER_CLOSED
            self.last_ns = self.lanes.end(flow, self.last_ns, self._with_failure(flow, args))

    def _with_failure(self, flow: int, args: Args | None) -> Args | None:
        error = self._failed.pop(flow, None)
        return args if error is None else {**(args or {}), "error": error}

    def _draw_unread(self, flow: int, end_args: Args | None) -> None:
        """A window that could not be read is an instant that carries the error, never an hour-long bar."""
        _, _, _, name, args, _, enqueued_ns = self._unread.pop(flow)
        self._counts.unreadable += 1
        lane = self.lanes.choose(None, self.last_ns)
        self.last_ns = lane.last_ns = max(self.last_ns, enqueued_ns, lane.last_ns)
        self.lanes.emit(lane, (self.last_ns, INSTANT, name, {**(end_args or {}), **(args or {})}, 0, 0))

    def flush(self, write: Writer) -> None:
        """Hand the new edges to the writer."""
        self.lanes.flush(write)

    @property
    def earliest_ns(self) -> int | None:
        """The device time of the first edge that waits; None if none does."""
        return next((edge[0] for edge in self.waiting if edge[0] is not None), None)

    @property
    def latest_ns(self) -> int | None:
        """The latest device time of an edge that waits; None if none does."""
        return max((edge[1] or edge[0] for edge in self.waiting if edge[0] is not None), default=None)

    @property
    def open_spans(self) -> int:
        return len(self.lanes.open_items)


def _end_args(span: Span) -> Args:
    """What a host slice says at its end of what went wrong."""
    args = {}
    if span.error is not None:
        args["error"] = span.error
    if span.reason is not None:
        if span.queue is None or span.gpu is not None:
            args["ended"] = span.reason
        else:
            args["gpu"] = f"not recorded: {span.reason}"
    return args


def _error_ns(piece: Piece, device_ns: int) -> int:
    """How far off a time on this piece may be, but for the reading: one number for all of the piece."""
    return int(max(piece.worst_error_ns, piece.error_ns(device_ns)))
