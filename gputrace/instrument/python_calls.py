"""Python function calls as slices on the thread that runs them: `sys.monitoring`, or `sys.setprofile` before 3.12.

A generator or coroutine is a slice a run, from its resumption to the next yield. What enters a span for its caller is
left out, as its slice would end before that span: ``__enter__`` methods, and generators that contextlib drives. It
knows the program's modules by name and file alone. The interpreter calls nothing of this while it is in here, so our
own work is never a slice.
"""

from __future__ import annotations

import os
import sys
from _thread import _local

from gputrace import hot
from gputrace.fence import let_through
from gputrace.hot.scope import ENTERS, SUSPENDABLE, is_contextlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, FrameType
    from typing import Any, Final

    from gputrace.instrument.site import Site

#: Codes whose label is remembered; a program that makes ever more has them looked up again.
MOST_CODES: Final = 1 << 16
_LIBRARY: Final = os.path.dirname(os.__file__) + os.sep
_INSTALLED: Final = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")


class Raised(Exception):
    """Stands for an exception of which the interpreter says no more than that there was one."""


Raised.__name__ = "an exception"


class Filter:
    """Which modules' functions are traced: those of ``include``, globs; without any, those of neither the standard
    library nor an installed package, nor made up by one. Those of ``exclude`` never are, nor are ours. A glob holds for
    submodules, too.
    """

    def __init__(self, include: list[str], exclude: list[str]) -> None:
        self._include, self._exclude = include, exclude

    def __call__(self, module: str, path: str) -> bool:
        if module.partition(".")[0] == "gputrace" or _matches(module, self._exclude):
            return False
        if self._include:
            return _matches(module, self._include)
        if path.startswith("<"):  # no file: what a program is made of, or what a library made up, as namedtuple does
            return module == "__main__"
        return not path.startswith(_LIBRARY) and not any(folder in path for folder in _INSTALLED)


def _matches(module: str, globs: list[str]) -> bool:
    if not globs:
        return False
    from fnmatch import fnmatchcase  # where somebody gave a glob, not in every program

    return any(fnmatchcase(module, glob) or fnmatchcase(module, f"{glob}.*") for glob in globs)


class Calls:
    """Open calls, a stack a thread, and the slices they are."""

    def __init__(self, chosen: Callable[[str, str], bool], depth: int) -> None:
        self._chosen = chosen
        self._depth = depth
        self._here = _local()
        self._labels: dict[int, tuple[CodeType, str | None]] = {}  # the code is held, so that its id means it

    def _label(self, frame: FrameType) -> str | None:
        """What a frame's slice is called; None for one that is left out."""
        code = frame.f_code
        known = self._labels.get(id(code))
        if known is not None:
            return known[1]
        module = frame.f_globals.get("__name__")
        module = module if type(module) is str else ""
        name = getattr(code, "co_qualname", code.co_name)
        chosen = code.co_name not in ENTERS and self._chosen(module, code.co_filename)
        label = f"{module}.{name}" if chosen else None
        if len(self._labels) >= MOST_CODES:
            self._labels.clear()
        self._labels[id(code)] = code, label
        return label

    def begin(self, frame: FrameType) -> bool:
        """Begin a frame's slice. False if calls of its code are left out, now and later."""
        label = self._label(frame)
        if label is None:
            return False
        if frame.f_code.co_flags & SUSPENDABLE and is_contextlib(frame.f_back):
            return True
        try:
            stack = self._here.stack
        except AttributeError:
            stack = self._here.stack = []
        stack.append((id(frame), hot.call(label) if len(stack) < self._depth else None))
        return True

    def end(self, frame: FrameType, raised: Callable[[FrameType], type[BaseException] | None] | None = None) -> bool:
        """End a frame's slice, and what a greenlet left open above it; nothing if it began before the recording. False
        as of `begin`. ``raised(frame)`` says what ended a frame that is shown, if that was no return.
        """
        if self._label(frame) is None:
            return False
        stack = getattr(self._here, "stack", None)
        if not stack:
            return True
        key = id(frame)
        if stack[-1][0] != key and not any(each == key for each, _ in stack):
            return True
        while True:
            each, span = stack.pop()
            if span is not None:
                span.__exit__(raised(frame) if raised and each == key else None, None, None)
            if each == key:
                return True


def calls(site: Site) -> None:
    """A slice a call. Options: ``python_include`` and ``python_exclude``, globs separated by commas; ``python_depth``,
    how many traced calls deep (0: no bound)."""
    include, exclude = (
        [glob for glob in str(site.options.get(name, "")).split(",") if glob]
        for name in ("python_include", "python_exclude")
    )
    traced = Calls(Filter(include, exclude), int(site.options.get("python_depth", 0)) or sys.maxsize)
    if sys.version_info >= (3, 12):
        _monitor(site, traced)
    else:
        _profile(site, traced)


def _monitor(site: Site, traced: Calls) -> None:
    monitoring: Any = sys.monitoring  # type: ignore[attr-defined,unused-ignore]
    events, disable = monitoring.events, monitoring.DISABLE
    for tool in (monitoring.PROFILER_ID, 3, 4):  # 3 and 4 are nobody's
        try:
            monitoring.use_tool_id(tool, "gputrace")
            break
        except ValueError:
            continue
    else:
        raise RuntimeError("other tools hold all of sys.monitoring's ids: run without one of them")

    def watching(do: Callable[[FrameType], bool], left_out: Any) -> Callable[..., Any]:
        def look(*_: Any) -> Any:
            try:
                return None if do(sys._getframe(1)) else left_out
            except Exception as error:
                let_through(error)
                site.fail(error)
            return None

        return look

    def unwind(code: Any, offset: int, raised: BaseException) -> None:
        try:
            traced.end(sys._getframe(1), lambda _: type(raised))
        except Exception as error:
            let_through(error)
            site.fail(error)

    callbacks = {
        events.PY_START: watching(traced.begin, disable),
        events.PY_RESUME: watching(traced.begin, disable),
        events.PY_THROW: watching(traced.begin, None),  # this event can not be left out, nor PY_UNWIND
        events.PY_RETURN: watching(traced.end, disable),
        events.PY_YIELD: watching(traced.end, disable),
        events.PY_UNWIND: unwind,
    }

    def undo() -> bool:
        if monitoring.get_tool(tool) == "gputrace":
            monitoring.set_events(tool, 0)
            for event in callbacks:
                monitoring.register_callback(tool, event, None)
            monitoring.free_tool_id(tool)
        return True

    site.undo_with(undo)
    for event, callback in callbacks.items():
        monitoring.register_callback(tool, event, callback)
    monitoring.restart_events()  # an earlier recording may have left out what this one does not
    monitoring.set_events(tool, sum(callbacks))


def _profile(site: Site, traced: Calls) -> None:
    import threading
    from opcode import opname

    ends = {opname.index(name) for name in ("RETURN_VALUE", "YIELD_VALUE") if name in opname}
    codes: dict[int, tuple[CodeType, bytes]] = {}

    def raised(frame: FrameType) -> type[BaseException] | None:
        """`Raised` if the frame ends with an exception: the interpreter then says None was returned."""
        code = frame.f_code
        known = codes.get(id(code))
        if known is None:
            if len(codes) >= MOST_CODES:
                codes.clear()
            known = codes[id(code)] = code, code.co_code
        return None if known[1][frame.f_lasti] in ends else Raised

    def look(frame: FrameType, event: str, value: Any) -> None:
        if site.broken or event not in ("call", "return"):
            return
        try:
            if event == "call":
                traced.begin(frame)
            else:
                traced.end(frame, raised if value is None else None)
        except Exception as error:
            let_through(error)
            site.fail(error)

    if sys.getprofile() is not None:
        raise RuntimeError("the program has a profile function of its own, which is left alone")

    def undo() -> bool:
        if getattr(threading, "_profile_hook", None) is look:
            threading.setprofile(None)
        if sys.getprofile() is look:
            sys.setprofile(None)
        return True

    site.undo_with(undo)
    if getattr(threading, "_profile_hook", None) is None:
        threading.setprofile(look)
    sys.setprofile(look)
