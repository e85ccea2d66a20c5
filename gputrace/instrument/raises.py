"""Exceptions as instants on the thread that raises them, each once, by its kind alone: a message may hold anything.

By `sys.monitoring`, so from Python 3.12 on. It is of the functions whose calls `--python` shows, and knows no calls.
"""

from __future__ import annotations

import os
import sys

from gputrace import hot
from gputrace.fence import let_through
from gputrace.hot.scope import ENTERS
from gputrace.instrument.python_calls import Filter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, FrameType
    from typing import Any, Final

    from gputrace.instrument.site import Site

#: Codes of which is remembered whether they are shown; a program that makes ever more has them looked up again.
MOST_CODES: Final = 1 << 16
_NAME: Final = "gputrace exceptions"
_OURS: Final = os.path.dirname(os.path.dirname(__file__)) + os.sep
#: Raised to say that there is no more, not that something went wrong.
_ENDINGS: Final = (StopIteration, StopAsyncIteration, GeneratorExit)
# Past what a program's class may have put in their place.
_name_of: Final = type.__dict__["__name__"].__get__
_traceback_of: Final = BaseException.__dict__["__traceback__"].__get__


class Raises:
    """``is_shown(frame)`` says whether calls of a frame's code are shown; it is asked once a code."""

    def __init__(self, is_shown: Callable[[FrameType], bool]) -> None:
        self._is_shown = is_shown
        self._known: dict[int, tuple[CodeType, bool]] = {}  # the code is held, so that its id means it

    def mark(self, frame: FrameType, raised: BaseException) -> None:
        """An exception is on its way out of a line of a frame, as of each that it passes: an instant in the first of
        them that is shown.
        """
        if issubclass(type(raised), _ENDINGS) or not self._shows(frame):
            return
        here = _traceback_of(raised)
        inner = here and here.tb_next
        while inner is not None:
            if self._shows(inner.tb_frame):
                return  # it was marked there, now or when it was raised before
            inner = inner.tb_next
        hot.instant(f"raise {_name_of(type(raised))}")

    def _shows(self, frame: FrameType) -> bool:
        code = frame.f_code
        known = self._known.get(id(code))
        if known is None:
            if len(self._known) >= MOST_CODES:
                self._known.clear()
            known = self._known[id(code)] = code, self._is_shown(frame)
        return known[1]


def exceptions(site: Site) -> None:
    """An instant an exception. Options: ``python_include`` and ``python_exclude``, as those of `python_calls.calls`."""
    if sys.version_info >= (3, 12):
        _monitor(site)


def _monitor(site: Site) -> None:
    include, exclude = (
        [glob for glob in str(site.options.get(name, "")).split(",") if glob]
        for name in ("python_include", "python_exclude")
    )
    wanted = Filter(include, exclude)

    def is_shown(frame: FrameType) -> bool:
        code, module = frame.f_code, frame.f_globals.get("__name__")
        if code.co_name in ENTERS or code.co_filename.startswith(_OURS):  # what starts us has not our name
            return False
        return wanted(module if type(module) is str else "", code.co_filename)

    raises = Raises(is_shown)

    def look(code: Any, offset: int, raised: BaseException) -> None:
        try:
            raises.mark(sys._getframe(1), raised)
        except Exception as error:
            let_through(error)
            site.fail(error)

    monitoring: Any = sys.monitoring  # type: ignore[attr-defined,unused-ignore]
    for tool in (3, 4, monitoring.PROFILER_ID):  # that of calls is looked for from the other end
        try:
            monitoring.use_tool_id(tool, _NAME)
            break
        except ValueError:
            continue
    else:
        raise RuntimeError("other tools hold all of sys.monitoring's ids: run without one of them")

    def undo() -> bool:
        if monitoring.get_tool(tool) == _NAME:
            monitoring.set_events(tool, 0)
            monitoring.register_callback(tool, monitoring.events.RAISE, None)
            monitoring.free_tool_id(tool)
        return True

    site.undo_with(undo)
    monitoring.register_callback(tool, monitoring.events.RAISE, look)
    monitoring.set_events(tool, monitoring.events.RAISE)
