"""The functions whose calls are traced: see `tests.hot.called`.

A tree is (kind, µs before what is in it, trees, µs after).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def call(tree: Any, acts: Any) -> None:
    acts.run(tree)


def raises(tree: Any, acts: Any) -> None:
    acts.run(tree)
    raise KeyError("x")


def generates(tree: Any, acts: Any) -> Iterator[None]:
    _, before, inner, after = tree
    acts.pass_us(before)
    for each in inner:
        acts.walk(each)
        yield
    acts.pass_us(after)
