"""Python's function calls as slices, by the pure twin: what the interpreter calls at the begin and the end of each.

native/calls.c has its twin. A frame is told from another of the same code by its identity. It knows neither which
functions are shown nor who asks for them.
"""

from __future__ import annotations

import sys
from _thread import _local

from gputrace.hot import pure
from gputrace.hot.scope import SUSPENDABLE, is_contextlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, FrameType
    from typing import Any, Final

    #: What a code's slices are called, and their arguments.
    Label = tuple[str, dict[str, Any] | None]

#: Codes whose label is remembered; a program that makes ever more has them looked up again.
MOST_CODES: Final = 1 << 16


class Calls:
    """Open calls, a stack a thread, and the slices they are.

    ``choose(frame)`` says what calls of a frame's code are called, or that and where it stands, if each slice is to
    show it; None for one that is left out. It is asked once a code. ``fail(error)`` is told of what a fault of ours
    raised, and lets the program's own through. At most ``depth`` calls in one another are shown, 0: all. A call shorter
    than ``least_ns`` is left out, unless something else is recorded in it. ``left_out`` is what a callback returns so
    as not to be called for a code again. ``ends`` are the opcodes that end a frame, of which `profile` tells that it
    raised: a slice's end then says ``raised``, a class.
    """

    def __init__(
        self,
        choose: Callable[[FrameType], str | tuple[str, str] | None],
        fail: Callable[[Exception], object],
        depth: int,
        least_ns: int,
        left_out: Any,
        ends: bytes,
        raised: type[BaseException],
        /,
    ) -> None:
        self._choose = choose
        self._fail = fail
        self._depth = depth or sys.maxsize
        self._least_ns = least_ns
        self._left_out = left_out
        self._ends = ends
        self._raised = raised
        self._here = _local()
        self._labels: dict[int, tuple[CodeType, Label | None]] = {}  # the code is held, so that its id means it
        self._instructions: dict[int, bytes] = {}

    # Callbacks of sys.monitoring: a code, where in it, a value.

    def begin(self, code: CodeType, *_: Any) -> Any:
        """A call begins, or a generator goes on."""
        try:
            return None if self._begin(sys._getframe(1)) else self._left_out
        except Exception as error:
            self._fail(error)

    def throw(self, code: CodeType, *_: Any) -> None:
        """A generator goes on with an exception. It can not be left out."""
        try:
            self._begin(sys._getframe(1))
        except Exception as error:
            self._fail(error)

    def end(self, code: CodeType, *_: Any) -> Any:
        """A call returns, or a generator yields."""
        try:
            return None if self._end(sys._getframe(1), None) else self._left_out
        except Exception as error:
            self._fail(error)

    def unwind(self, code: CodeType, offset: int, raised: BaseException) -> None:
        """A call is left by an exception. It can not be left out."""
        try:
            self._end(sys._getframe(1), type(raised))
        except Exception as error:
            self._fail(error)

    def profile(self, frame: FrameType, event: str, value: Any) -> None:
        """A profile function, for the Pythons without sys.monitoring."""
        try:
            if event == "call":
                self._begin(frame)
            elif event == "return":
                self._end(frame, self._raised if value is None and self._raises(frame) else None)
        except Exception as error:
            self._fail(error)

    # What they do.

    def _label(self, frame: FrameType) -> Label | None:
        code = frame.f_code
        known = self._labels.get(id(code))
        if known is not None:
            return known[1]
        chosen = self._choose(frame)
        label: Label | None = None
        if chosen is not None:
            label = (chosen, None) if isinstance(chosen, str) else (chosen[0], {"source": chosen[1]})
        if len(self._labels) >= MOST_CODES:
            self._labels.clear()
            self._instructions.clear()
        self._labels[id(code)] = code, label
        return label

    def _begin(self, frame: FrameType) -> bool:
        """False if calls of this code are left out, now and later."""
        label = self._label(frame)
        if label is None:
            return False
        if frame.f_code.co_flags & SUSPENDABLE and is_contextlib(frame.f_back):
            return True
        try:
            stack = self._here.stack
        except AttributeError:
            stack = self._here.stack = []
        stack.append((id(frame), pure.call(*label, self._least_ns) if len(stack) < self._depth else None))
        return True

    def _end(self, frame: FrameType, raised: type[BaseException] | None) -> bool:
        """End a frame's slice, and what a greenlet left open above it; nothing if it began before the recording."""
        if self._label(frame) is None:
            return False
        stack = getattr(self._here, "stack", None)
        key = id(frame)
        if not stack or (stack[-1][0] != key and not any(each == key for each, _ in stack)):
            return True
        while True:
            each, span = stack.pop()
            if span is not None:
                pure.end_call(span, raised if each == key else None)
            if each == key:
                return True

    def _raises(self, frame: FrameType) -> bool:
        """Does a frame, which the interpreter says to return None, end with an exception?"""
        code = frame.f_code
        if self._label(frame) is None:
            return False
        instructions = self._instructions.get(id(code))
        if instructions is None:
            instructions = self._instructions[id(code)] = code.co_code
        return instructions[frame.f_lasti] not in self._ends
