"""Python function calls as slices on the thread that runs them: `sys.monitoring`, or `sys.setprofile` before 3.12.

A generator or coroutine is a slice a run, from its resumption to the next yield. What enters a span for its caller is
left out, as its slice would end before that span: ``__enter__`` methods, and generators that contextlib drives. It
knows the program's modules by name and file alone. The interpreter calls nothing of this while it is in here, so our
own work is never a slice.
"""

from __future__ import annotations

import os
import sys

from gputrace import hot
from gputrace.fence import let_through
from gputrace.hot.scope import ENTERS
from gputrace.instrument.registry import CALLS_SHOWN, MODULES_SEEN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any, Final

    from gputrace.hot.calls import Calls
    from gputrace.instrument.site import Site
elif hot.TWIN == "compiled":
    from gputrace.hot.compiled import Calls
else:
    from gputrace.hot.calls import Calls

_LIBRARY: Final = os.path.dirname(os.__file__) + os.sep
_INSTALLED: Final = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")

#: So many modules are named where none of those that were called is to be shown.
_MOST_SEEN: Final = 6


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


def calls(site: Site) -> None:
    """A slice a call. Options: ``python_include`` and ``python_exclude``, globs separated by commas; ``python_depth``,
    how many traced calls deep (0: no bound); ``python_min_ns``, how long a call lasts that is shown; ``python_lines``,
    not 0 for each slice to say in which file and line its function begins."""
    include, exclude = (
        [glob for glob in str(site.options.get(name, "")).split(",") if glob]
        for name in ("python_include", "python_exclude")
    )
    wanted, own = Filter(include, exclude), Filter([], [])
    site.facts[CALLS_SHOWN], site.facts[MODULES_SEEN] = 0, []

    lines = bool(site.options.get("python_lines"))

    def choose(frame: FrameType) -> str | tuple[str, str] | None:
        """What a frame's slice is called, and where its code is if that is to be shown; None for one left out."""
        code, module = frame.f_code, frame.f_globals.get("__name__")
        module = module if type(module) is str else ""
        shown = code.co_name not in ENTERS and wanted(module, code.co_filename)
        if shown:
            site.facts[CALLS_SHOWN] = 1
        elif not site.facts[CALLS_SHOWN] and module.partition(".")[0] not in ("", "gputrace"):
            _add(site.facts[MODULES_SEEN], module, first=own(module, code.co_filename))
        if not shown:
            return None
        name = f"{module}.{getattr(code, 'co_qualname', code.co_name)}"
        return (name, f"{code.co_filename}:{code.co_firstlineno}") if lines else name

    def fail(error: Exception) -> None:
        let_through(error)
        site.fail(error)

    depth, least_ns = (int(site.options.get(name, 0)) for name in ("python_depth", "python_min_ns"))
    if sys.version_info >= (3, 12):
        left_out = sys.monitoring.DISABLE  # type: ignore[attr-defined,unused-ignore]
        _monitor(site, Calls(choose, fail, depth, least_ns, left_out, b"", Raised))
    else:
        from opcode import opname

        ends = bytes(opname.index(name) for name in ("RETURN_VALUE", "YIELD_VALUE") if name in opname)
        _profile(site, Calls(choose, fail, depth, least_ns, None, ends, Raised))


def _add(seen: list[str], module: str, *, first: bool) -> None:
    """Those that the program's user knows stand first."""
    if module not in seen and (first or len(seen) < _MOST_SEEN):
        seen.insert(0 if first else len(seen), module)
        del seen[_MOST_SEEN:]


def _monitor(site: Site, traced: Calls) -> None:
    monitoring: Any = sys.monitoring  # type: ignore[attr-defined,unused-ignore]
    events = monitoring.events
    for tool in (monitoring.PROFILER_ID, 3, 4):  # 3 and 4 are nobody's
        try:
            monitoring.use_tool_id(tool, "gputrace")
            break
        except ValueError:
            continue
    else:
        raise RuntimeError("other tools hold all of sys.monitoring's ids: run without one of them")

    callbacks = {
        events.PY_START: traced.begin,
        events.PY_RESUME: traced.begin,
        events.PY_THROW: traced.throw,
        events.PY_RETURN: traced.end,
        events.PY_YIELD: traced.end,
        events.PY_UNWIND: traced.unwind,
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

    if sys.getprofile() is not None:
        raise RuntimeError("the program has a profile function of its own, which is left alone")
    look = traced.profile

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
