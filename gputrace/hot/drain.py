"""Reading back: from a stream's queue of spans to edges with the device's time.

The dense loop of the collector's half of the hot path; a compiled twin does the same without the GIL. It knows raw
device calls and spans, neither anchors nor lanes: whoever calls it says which event to measure from, and draws what
comes out.
"""

from __future__ import annotations

from gputrace.hot.arguments import of_window

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Hashable
    from typing import Any, Final

    from gputrace.hot.pure import Span
    from gputrace.model import Args

    #: An edge the device has passed. The fields are: its device time in ns (None: it could not be read, or is not
    #: timed); for a window that holds no other edge, the device time of its end; its flow id, which identifies the
    #: window (0: every window open here failed); its name, None for an end; its args; whose scope it nests in, None for
    #: an explicit window; the host time of its enqueue.
    Passed = tuple[int | None, int | None, int, str | None, Args | None, Hashable, int]

NOT_READY: Final = 600  # CUDA_ERROR_NOT_READY
#: What the end of a window says that was given up on purpose.
ABANDONED: Final[Args] = {"ended": "abandoned"}
#: And of one that nobody could close any more.
NEVER_CLOSED: Final[Args] = {"ended": "never closed"}
_ABANDONED_REASON: Final = ABANDONED["ended"]


class Drained:
    """What one call of `drain` took off a queue's front.

    ``passed`` are the edges, in the queue's order; ``done`` the spans that are read whole; ``taken`` how many entries
    are dealt with; ``opened`` how many more windows are open than before; ``code`` the last result that was neither
    success nor "not yet" (an int, or a binding's own words), 0 if none was.
    """

    __slots__ = ("code", "done", "opened", "passed", "taken")

    def __init__(self) -> None:
        self.passed: list[Passed] = []
        self.done: list[Span] = []
        self.taken = 0
        self.opened = 0
        self.code: Any = 0


def drain(entries: list[Any], elapsed: Callable[[Any, Any], Any], anchor: Any, base_ns: int) -> Drained:
    """Read the queue's entries, in order, for as long as the device has reached them.

    ``elapsed(anchor, event)`` is the device's raw call; ``base_ns`` the anchor's device time. Raises nothing.
    """
    out = Drained()
    passed, done = out.passed.append, out.done.append
    taken = opened = 0
    paired = False
    for span, after in zip(entries, [*entries[1:], None], strict=True):
        if paired:
            paired = False
            continue
        is_open = span.gpu_open
        if is_open is False:
            try:
                code, ms = elapsed(anchor, span.start)
                if not code and after is span and span.reason is None:
                    # Nothing was recorded inside: both edges are one entry, if the device has passed both.
                    code, end_ms = elapsed(anchor, span.end)
                    if not code:
                        scope = span.scope
                        args = span.args and of_window(span.args)
                        passed(
                            (
                                base_ns + int(ms * 1e6),
                                base_ns + int(end_ms * 1e6),
                                span.flow,
                                span.name,
                                args if span.error is None else {**(args or {}), "error": span.error},
                                span.thread.number if scope == 0 else _key(span),
                                span.t0,
                            )
                        )
                        done(span)
                        taken += 2
                        paired = True
                        continue
                    code = 0  # the begin alone, now
            except Exception as error:  # a result code that the binding does not know
                code = str(error) or -1
            if not code:
                span.gpu_open = True
                opened += 1
                taken += 1
                if span.reason != _ABANDONED_REASON:  # else it need not be drawn at all
                    args = span.args and of_window(span.args)
                    passed((base_ns + int(ms * 1e6), None, span.flow, span.name, args, _key(span), span.t0))
                continue
        elif is_open and span.reason is None:
            try:
                code, ms = elapsed(anchor, span.end)
            except Exception as error:
                code = str(error) or -1
            if not code:
                span.gpu_open = False
                opened -= 1
                taken += 1
                passed((base_ns + int(ms * 1e6), None, span.flow, None, end_args(span), None, 0))
                done(span)
                continue
        else:  # a failure's mark, or an end without an event
            code = 0
        if code:
            if code == NOT_READY:
                break
            out.code = code
            if span.misread is None:
                span.misread = f"its event could not be read back: error {code if type(code) is str else int(code)}"
        passed(untimed(span))
        taken += 1
        if is_open is not None:
            opened += -1 if is_open else 1
            if is_open:
                done(span)
    out.taken, out.opened = taken, opened
    return out


def untimed(span: Any) -> Passed:
    """An edge without a device time, and why. Marks the span's other edge as the next one."""
    is_open = span.gpu_open
    if is_open is None:
        return (None, None, 0, None, {"error": span.error}, None, 0)
    span.gpu_open = not is_open
    if is_open:
        return (None, None, span.flow, None, end_args(span), None, 0)
    error = span.misread or "its event could not be read back"
    return (None, None, span.flow, span.name, {**of_window(span.args or {}), "error": error}, None, span.t0)


def end_args(span: Span) -> Args | None:
    """What a window says at its end of what went wrong."""
    error = span.misread if span.error is None else span.error
    if span.reason is None:
        return None if error is None else {"error": error}
    if span.reason == _ABANDONED_REASON:
        return ABANDONED
    args = {"ended": span.reason}
    if error is not None:
        args["error"] = error
    return args


def _key(span: Span) -> Hashable:
    """Whose scope a window nests in: its thread's plain code, or one task or generator of it; None if explicit."""
    scope = span.scope
    number = span.thread.number
    return number if scope == 0 else None if scope is None else (number, scope)
