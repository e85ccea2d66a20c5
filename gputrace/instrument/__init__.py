"""Shows what frameworks do in programs that nobody annotated: named patches, applied once the program imports them.

`start` and `stop` are the tracer's; `gputrace.instrument.registry` has the names. It imports no framework, and a fault
of a patch ends that patch alone.
"""

from __future__ import annotations

from gputrace.fence import let_through
from gputrace.instrument import finder
from gputrace.instrument.registry import PATCHES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any, Final

    from gputrace.instrument.registry import Patch
    from gputrace.instrument.site import Site
    from gputrace.regions import Regions

_sites: list[Site] = []
_NO_OPTIONS: Final[Mapping[str, Any]] = {}


def start(
    chosen: Iterable[str],
    tell: Callable[[str], None],
    options: Mapping[str, Any] = _NO_OPTIONS,
    regions: Regions | None = None,
    facts: dict[str, Any] | None = None,
) -> None:
    """Apply patches ("name" or "name=number"), now or as soon as the program imports what they wait for.

    ``options``: a recording's, by name; a patch says what it reads. ``regions``: what decides which part of the program
    is recorded, None where nothing does. ``facts`` get what a patch has to report, by name. What goes wrong is told,
    once a patch. Names that this version has not are left out. Raises nothing.
    """
    stop()
    by_module: dict[str, list[tuple[Patch, int | None]]] = {}
    for word in chosen:
        name, _, number = word.partition("=")
        patch = PATCHES.get(name)
        if patch is not None:
            by_module.setdefault(patch.module, []).append((patch, int(number) if number.isdecimal() else None))
    for module, patches in by_module.items():
        finder.when_imported(module, _applier(patches, tell, options, regions, facts))


def stop() -> None:
    """Wait for no framework any more, and undo every patch. Raises nothing."""
    finder.forget_all()
    while _sites:
        _sites.pop().undo()


def _applier(
    patches: list[tuple[Patch, int | None]],
    tell: Callable[[str], None],
    options: Mapping[str, Any],
    regions: Regions | None,
    facts: dict[str, Any] | None,
) -> Callable[[Any], None]:
    def apply(module: Any) -> None:
        try:  # here, as most of what starts under a recording imports no framework
            from gputrace.instrument.site import Site
        except Exception as error:
            let_through(error)
            tell(f"frameworks are not shown: {error}")
            return
        for patch, value in patches:
            site = Site(patch, module, value, tell, options, regions, facts)
            _sites.append(site)
            try:
                where, _, function = patch.where.partition(":")
                getattr(__import__(where, fromlist=[function]), function)(site)
            except Exception as error:
                let_through(error)
                site.fail(error)

    return apply
