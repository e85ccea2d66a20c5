"""Where one patch is at work: what it changed, how that is undone, and what happens when it fails.

It knows neither the frameworks nor who records. A patch that fails, as it is applied or later inside the program's own
calls, is undone, and told once.
"""

from __future__ import annotations

import functools

from gputrace import hot
from gputrace.fence import let_through
from gputrace.instrument.codeswap import swap
from gputrace.instrument.inclass import put

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import CodeType
    from typing import Any, Final, Protocol

    from gputrace.instrument.registry import Patch
    from gputrace.regions import Regions

    class OnCode(Protocol):
        def __call__(self, code: CodeType, *, wrapper: bool) -> object: ...


_ABSENT: Final = object()


class Nothing:
    """A span that is none."""

    __slots__ = ()

    def __enter__(self) -> Nothing:
        return self

    def __exit__(self, *_: object) -> None:
        return None


NOTHING: Final = Nothing()


class _Returning:
    """A span whose patch is told what the function returned."""

    __slots__ = ("_returned", "_site", "_span")

    def __init__(self, site: Site, span: Any, returned: Callable[[Any, Any], object] | None) -> None:
        self._site = site
        self._span = span
        self._returned = returned

    def __enter__(self) -> _Returning:
        self._span.__enter__()
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self._span.__exit__(kind, error, trace)

    def result(self, value: Any) -> Any:
        if self._returned is not None and not self._site.broken:
            try:
                self._returned(self._span, value)
            except Exception as error:
                let_through(error)
                self._site.fail(error)
        return value


class Site:
    """Handed to a patch's function, with ``module``, the one it waited for, and ``value``, the number it was given,
    ``options``, the recording's, ``regions``, which decides what part of the program is recorded, if anything does, and
    ``facts``, into which it may put what the process's report is to say.

    What it changes it changes with `swap` and `set`, or notes how to undo with `undo_with`.
    """

    __slots__ = ("_tell", "_undo", "broken", "facts", "module", "on_code", "options", "patch", "regions", "value")

    def __init__(
        self,
        patch: Patch,
        module: Any,
        value: int | None,
        tell: Callable[[str], None],
        options: Mapping[str, Any],
        regions: Regions | None = None,
        facts: dict[str, Any] | None = None,
    ) -> None:
        self.patch = patch
        self.module = module
        self.value = value
        self.options = options
        self.regions = regions
        self.facts: dict[str, Any] = {} if facts is None else facts
        self.broken = False
        #: Called with each code put into the program's way, for a framework's compiler; ``wrapper``: it calls the
        #: program's function.
        self.on_code: OnCode | None = None
        self._tell = tell
        self._undo: list[Callable[[], bool]] = []

    def swap(
        self, function: Any, around: Callable[..., Any], returned: Callable[[Any, Any], object] | None = None
    ) -> None:
        """Have ``with around(...)`` stand around each call of a function: see `gputrace.instrument.codeswap.swap`.

        ``returned`` is called, inside the block, with what ``around`` returned and what the function did. Either may
        raise: the patch is undone then, and the function runs as without.
        """

        def fenced(*args: Any, **kwargs: Any) -> Any:
            if self.broken:
                return NOTHING
            try:
                return around(*args, **kwargs)
            except Exception as error:
                let_through(error)
                self.fail(error)
                return NOTHING

        # Whoever asks whose frame a span was opened in (`gputrace.hot.scope`) sees the function's own name.
        fenced.__code__ = fenced.__code__.replace(co_name=getattr(function, "__name__", "fenced"))

        def returning(*args: Any, **kwargs: Any) -> Any:
            return _Returning(self, fenced(*args, **kwargs), returned)

        code, undo = swap(function, returning if returned else fenced, with_result=returned is not None)
        self._undo.append(undo)
        if self.on_code is not None:
            self.on_code(code, wrapper=True)
            for inner in (fenced, returning, _Returning.__enter__, _Returning.__exit__, _Returning.result):
                self.on_code(inner.__code__, wrapper=False)

    def wrap(self, owner: Any, name: str, around: Callable[..., Any], *others: Any) -> None:
        """Have ``with around(...)`` stand around each call of what an attribute of a module or class holds, for what
        `swap` refuses: functions in C. ``others`` hold the same by the same name.

        Who took the function from there before keeps it as it was. ``around`` gets what the function gets, which may be
        what it refuses, and may raise: the function runs as without, and the patch is undone unless that raises, too.
        """
        function = vars(owner)[name]

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            fault = None
            try:
                block = NOTHING if self.broken else around(*args, **kwargs)
            except Exception as error:
                let_through(error)
                block, fault = NOTHING, error
            with block:
                result = function(*args, **kwargs)
            if fault is not None:
                self.fail(fault)
            return result

        for holder in (owner, *others):
            if vars(holder).get(name) is function:
                self.set(holder, name, wrapper)

    def spans(self, function: Any, name: str) -> None:
        """A span of this name around each call of a function."""
        self.swap(function, lambda *args, **kwargs: hot.span(name))

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Put ``value`` where an attribute was, or none; of a class made in C, too, where that is no ``__method__``."""
        before = vars(owner).get(name, _ABSENT)
        put(owner, name, value)

        def undo() -> bool:
            if vars(owner).get(name, _ABSENT) is not value:
                return False  # somebody put theirs there since, and keeps ours for the original
            if before is _ABSENT:
                delattr(owner, name)
            else:
                put(owner, name, before)
            return True

        self._undo.append(undo)

    def undo_with(self, undo: Callable[[], bool]) -> None:
        """Call ``undo()`` at the end, too. It says whether it is done; if not, it may be asked once more."""
        self._undo.append(undo)

    def undo(self) -> None:
        """Put everything back as it was, the last first; again, what could not be put back then. Raises nothing."""
        self.broken = True
        left = []
        while self._undo:
            undo = self._undo.pop()
            try:
                if not undo():
                    left.append(undo)
            except Exception as error:
                let_through(error)
        self._undo = left[::-1]

    def fail(self, error: BaseException) -> None:
        """The patch does not work here: undo it, and say so once. Raises nothing."""
        if not self.broken:
            self.undo()
            text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            self._tell(
                f"{self.patch.name} does not work here and was switched off ({text}); "
                f"--no-instrument {self.patch.name} leaves it out"
            )
