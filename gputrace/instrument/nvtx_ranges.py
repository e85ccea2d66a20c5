"""What a program says through the nvtx package: its ranges become spans and windows, its marks instants.

The package's own functions still run, for whatever tool NVTX has loaded beside us. Without one it hands out domains
that do nothing; those are stood in for, here. It knows no copy of the package: torch's, CuPy's.
"""

from __future__ import annotations

import functools
import sys
from _thread import _local

from gputrace import hot
from gputrace.fence import let_through
from gputrace.hot.arguments import as_name
from gputrace.hot.decorate import decorate
from gputrace.hot.shared import last_use, note_use
from gputrace.instrument.capturing import Ranges

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Final

    from gputrace.instrument.site import Site

#: What `push_range` and `mark` take where no colour is given: it says nothing.
_DEFAULT_COLOR: Final = "blue"
_frame_of_caller: Final = sys._getframe


def ranges(site: Site) -> None:
    """`annotate`, ``push_range``, ``start_range``, ``mark`` and domains, of a module that is the nvtx package."""
    nvtx = site.module
    if not nvtx.enabled():
        return  # the user has switched its ranges off: NVTX_DISABLE
    opening = Ranges(site)
    state = OpenRanges(opening)
    _annotate(site, nvtx.annotate, opening)
    for name, ours in (("push_range", state.push), ("pop_range", state.pop), ("mark", state.mark)):
        site.set(nvtx, name, beside(site, getattr(nvtx, name), ours))
    start, end, get_domain = nvtx.start_range, nvtx.end_range, nvtx.get_domain
    domains: dict[Any, _Domain] = {}

    @functools.wraps(start)
    def start_range(*args: Any, **kwargs: Any) -> Any:
        theirs = start(*args, **kwargs)
        return theirs if site.broken else _Range(fenced(site, state.open, *args, **kwargs), theirs)

    @functools.wraps(end)
    def end_range(range_id: Any) -> Any:
        if type(range_id) is not _Range:
            return end(range_id)
        range_id.close()
        return end(range_id.theirs)

    @functools.wraps(get_domain)
    def domain_of(name: Any = None) -> Any:
        theirs = get_domain(name)
        if site.broken or type(theirs).__name__ != "DummyDomain":
            return theirs  # a tool is there, and gets what it is told
        return domains.setdefault(name, _Domain(site, name, theirs, state))

    site.set(nvtx, "start_range", start_range)
    site.set(nvtx, "end_range", end_range)
    site.set(nvtx, "get_domain", domain_of)


def _annotate(site: Site, annotate: Any, opening: Ranges) -> None:
    """A span for each block and each call of a decorated function, whoever holds the class already."""
    init, enter, leave, call = annotate.__init__, annotate.__enter__, annotate.__exit__, annotate.__call__

    @functools.wraps(init)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        self._gputrace = fenced(site, _described, *args, **kwargs), []

    # These names tell the hot path to look at whoever wrote the `with`: see `gputrace.hot.scope`.
    @functools.wraps(enter)
    def __enter__(self: Any) -> Any:
        given = getattr(self, "_gputrace", None)
        if not site.broken and given is not None and given[0] is not None:
            try:
                name, args = given[0]
                made = opening.span(name, **args)
                made.__enter__()
                note_use(given[1], made, _frame_of_caller(1))
            except Exception as error:
                let_through(error)
                site.fail(error)
        return enter(self)

    @functools.wraps(leave)
    def __exit__(self: Any, kind: Any, error: Any, trace: Any) -> Any:
        given = getattr(self, "_gputrace", None)
        if given is not None and given[1]:
            made = last_use(given[1], _frame_of_caller(1))
            if made is not None:
                made.__exit__(kind, error, trace)
        return leave(self, kind, error, trace)

    @functools.wraps(call)
    def __call__(self: Any, function: Any) -> Any:
        inner = call(self, function)
        given = getattr(self, "_gputrace", None)
        if site.broken or given is None or given[0] is None:
            return inner
        name, args = given[0]
        named = name or as_name(getattr(function, "__name__", ""))
        try:
            return decorate(inner, lambda: opening.span(named, **args))
        except TypeError:
            return inner  # what it decorates is nothing that runs

    for name, ours in (
        ("__init__", __init__),
        ("__enter__", __enter__),
        ("__exit__", __exit__),
        ("__call__", __call__),
    ):
        site.set(annotate, name, ours)


class OpenRanges:
    """What is open: ranges that were pushed, by thread and domain; ranges that were started belong to nobody."""

    def __init__(self, opening: Ranges) -> None:
        self._local = _local()
        self._opening = opening

    def _stack(self, domain: Any) -> list[Any]:
        try:
            stacks: dict[Any, list[Any]] = self._local.stacks
        except AttributeError:
            stacks = self._local.stacks = {}
        return stacks.setdefault(domain, [])

    def push(
        self, message: Any = None, color: Any = None, domain: Any = None, category: Any = None, payload: Any = None
    ) -> None:
        name, args = _described(message, None if color == _DEFAULT_COLOR else color, domain, category, payload)
        made = self._opening.span(name, **args)
        made.__enter__()
        self._stack(domain).append(made)

    def pop(self, domain: Any = None) -> None:
        stack = self._stack(domain)
        if stack:
            stack.pop().__exit__(None, None, None)

    def mark(
        self, message: Any = None, color: Any = None, domain: Any = None, category: Any = None, payload: Any = None
    ) -> None:
        name, args = _described(message, None if color == _DEFAULT_COLOR else color, domain, category, payload)
        hot.instant(name, **args)

    def open(
        self, message: Any = None, color: Any = None, domain: Any = None, category: Any = None, payload: Any = None
    ) -> Any:
        """A window, which any thread may close."""
        name, args = _described(message, color, domain, category, payload)
        return self._opening.window(name, **args)


class _Range:
    """What `start_range` returns: our window, and what the package returned."""

    __slots__ = ("_window", "theirs")

    def __init__(self, window: Any, theirs: Any) -> None:
        self._window = window
        self.theirs = theirs

    def close(self) -> None:
        if self._window is not None:
            self._window.close()


class _Attributes:
    """What a domain is given with each range: as the package's own, a holder that the program may change."""

    __slots__ = ("category", "color", "message", "payload")

    def __init__(self, message: Any = None, color: Any = None, category: Any = None, payload: Any = None) -> None:
        self.message = message
        self.color = color
        self.category = category
        self.payload = payload


class _Domain:
    """Stands for a domain that nobody listens to but us. What it has not, the package's own has."""

    def __init__(self, site: Site, name: Any, theirs: Any, ranges: OpenRanges) -> None:
        self._site = site
        self._name = name
        self._theirs = theirs
        self._ranges = ranges

    def __getattr__(self, name: str) -> Any:
        return getattr(self._theirs, name)

    def get_registered_string(self, string: Any) -> Any:
        return string

    def get_category_id(self, name: Any) -> Any:
        return name

    def get_event_attributes(
        self, message: Any = None, color: Any = None, category: Any = None, payload: Any = None
    ) -> _Attributes:
        return _Attributes(message, color, category, payload)

    def set_event_attributes(self, attributes: Any, **changes: Any) -> None:
        for name, value in changes.items():
            setattr(attributes, name, value)

    def mark(self, attributes: Any = None, **given: Any) -> None:
        self._with(self._ranges.mark, attributes, given)

    def push_range(self, attributes: Any = None, **given: Any) -> None:
        self._with(self._ranges.push, attributes, given)

    def pop_range(self) -> None:
        self._ranges.pop(self._name)

    def start_range(self, attributes: Any = None, **given: Any) -> _Range:
        return _Range(self._with(self._ranges.open, attributes, given), 0)

    def end_range(self, range_id: Any) -> None:
        if type(range_id) is _Range:
            range_id.close()

    def _with(self, do: Callable[..., Any], attributes: Any, given: dict[str, Any]) -> Any:
        event = attributes if isinstance(attributes, _Attributes) else _Attributes(**given)
        if self._site.broken:
            return None
        return fenced(self._site, do, event.message, event.color, self._name, event.category, event.payload)


def _described(
    message: Any = None, color: Any = None, domain: Any = None, category: Any = None, payload: Any = None
) -> tuple[str, dict[str, Any]]:
    """A span's name and args for what the package's functions take."""
    given = {"color": color, "domain": domain, "category": category, "payload": payload}
    args = {name: value for name, value in given.items() if value is not None}
    return "" if message is None else as_name(message), args


def beside(site: Site, original: Any, ours: Callable[..., Any]) -> Any:
    """``original``, and then ours with the same arguments."""

    @functools.wraps(original)
    def both(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        if not site.broken:
            fenced(site, ours, *args, **kwargs)
        return result

    return both


def fenced(site: Site, do: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What ours returns; None, and the patch's end, where it fails."""
    try:
        return do(*args, **kwargs)
    except Exception as error:
        let_through(error)
        site.fail(error)
        return None
