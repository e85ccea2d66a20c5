"""Trees of Python function calls, as a traced program makes them, and what a trace is to show of them.

It knows no twin.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, NamedTuple

from tests.hot import callees

#: Trees: a call or several, and what else a program does; a span, too, has trees in it.
KINDS = ("call", "raises", "generates", "span", "instant", "counter", "cycle")
#: Shorter calls are left out.
LEAST_NS = 10_000


class Acts:
    """Makes the calls. Here nothing records them."""

    def walk(self, tree: Any) -> None:
        kind, _, inner, _ = tree
        if kind == "generates":
            runs = callees.generates(tree, self)
            while self.called(kind, lambda: next(runs, 0)) is None:
                pass
        elif kind in ("call", "raises"):
            with contextlib.suppress(KeyError):
                self.called(kind, lambda: getattr(callees, kind)(tree, self))
        elif kind == "span":
            self.span(lambda: [self.walk(each) for each in inner])
        else:
            getattr(self, kind)()

    def run(self, tree: Any) -> None:
        """What is in a call. It is no call of its own: not in `callees`, it is not traced."""
        _, before, inner, after = tree
        self.pass_us(before)
        for each in inner:
            self.walk(each)
        self.pass_us(after)

    def called(self, kind: str, run: Callable[[], Any]) -> Any:
        return run()

    def pass_us(self, us: int) -> None:
        raise NotImplementedError

    def span(self, inside: Callable[[], Any]) -> None:
        raise NotImplementedError

    def instant(self) -> None:
        raise NotImplementedError

    def counter(self) -> None:
        raise NotImplementedError

    def cycle(self) -> None:
        """The collector comes by."""


class Shown(NamedTuple):
    name: str
    ts_ns: int
    dur_ns: int
    depth: int


class Model(Acts):
    """Every span, and of the calls those that last long enough or in which something is recorded, outermost first."""

    def __init__(self, at_ns: int) -> None:
        self.at_ns, self.read_ns = at_ns, at_ns - 1
        self.shown: list[Shown] = []
        self.left_out = 0
        self._recorded = 0

    def pass_us(self, us: int) -> None:
        if us:
            self.at_ns += us * 1000
            self.read_ns = self.at_ns - 1

    def _read(self) -> int:
        self.read_ns += 1
        return self.read_ns

    def called(self, kind: str, run: Callable[[], Any]) -> Any:
        place, recorded, begin_ns = len(self.shown), self._recorded, self._read()
        try:
            return run()
        finally:
            dur_ns = self._read() - begin_ns
            if dur_ns >= LEAST_NS or self._recorded > recorded:
                self._show(kind, begin_ns, dur_ns, place)
            else:
                self.left_out += 1

    def _show(self, name: str, begin_ns: int, dur_ns: int, place: int) -> None:
        inner = [each._replace(depth=each.depth + 1) for each in self.shown[place:]]
        self.shown[place:] = [Shown(name, begin_ns, dur_ns, 0), *inner]

    def span(self, inside: Callable[[], Any]) -> None:
        place, begin_ns = len(self.shown), self._read()
        self._recorded += 1
        inside()
        self._show("span", begin_ns, self._read() - begin_ns, place)

    def instant(self) -> None:
        self._recorded += 1
        self._read()

    def counter(self) -> None:
        self._read()
