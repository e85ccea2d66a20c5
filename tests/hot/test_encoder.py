"""The core's encoder against the Python one: the same edges, at any times, to the same bytes.

The core draws the same program twice, once as edges for an exporter in Python and once as bytes.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

from gputrace.exporters.sequence import Sequence
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gputrace.model import THREAD, Track
from tests.hot.twin import in_twin

KINDS = ("open", "close", "leaf", "leaf", "instant", "error")
#: The widths at which a time takes another byte, and steps back.
GAPS = st.one_of(
    st.integers(0, 400),
    st.sampled_from([2**7, 2**14 - 1, 2**14, 2**21 - 1, 2**21, 2**28, 2**35, 10**12, -1, -(10**6)]),
    st.integers(-(2**22), 2**22),
)
KNOWN = st.sampled_from(["a", "b", "c", "", "n\0ul", "half \udc80"])
TEXTS = st.one_of(KNOWN, st.text(max_size=8), st.text("é\0", max_size=3))
WIDE = st.sampled_from([2**63, 2**64 - 1, 2**64, -(2**63)])
VALUES = st.one_of(st.integers(-(2**70), 2**70), WIDE, st.floats(), st.booleans(), TEXTS)
ARGS = st.one_of(st.just({}), st.dictionaries(TEXTS, VALUES, max_size=4))
EDGES = st.lists(st.tuples(st.sampled_from(KINDS), GAPS, GAPS, TEXTS, ARGS), max_size=40)


class Sink:
    """Takes what the core draws: as edges, or as bytes."""

    def __init__(self, in_python: bool) -> None:
        self.in_python = in_python
        self.sequence = Sequence(12 << 12 | 7, 2**64 - 3, 2**61 + 5, 123_456)

    def open_thread(self, number: int, tid: int, name: str) -> Any:
        track = Track(1, THREAD, "t", tid=tid)
        return (1, track, [] if self.in_python else self.sequence.constants), None


def draw(edges: list[Any], in_python: bool) -> Any:
    """Play the edges as spans and collect them."""
    from gputrace.hot import _hot, compiled

    sink = Sink(in_python)
    compiled.forget_everything()
    nothing = ContextVar[Any]("nothing", default=None)
    generation = _hot.begin(
        None, 1 << 24, "p", in_python, lambda s: None, lambda: None, sink.open_thread, lambda n, t: None, nothing
    )
    at = 10**12
    stack: list[Any] = []

    def moved(gap: int) -> None:
        nonlocal at
        at = max(at + gap, 1)
        _hot.set_clock(at - 1, 1)

    try:
        for kind, gap, length, name, args in edges:
            moved(gap)
            args = {key: value for key, value in args.items() if key != "stream"}
            if kind == "open":
                stack.append(_hot.span(name, None, **args))
                stack[-1].__enter__()
            elif kind in ("close", "error") and stack:
                raised = ValueError if kind == "error" else None
                stack.pop().__exit__(raised, None, None)
            elif kind == "instant":
                _hot.instant(name, **args)
            else:
                span = _hot.span(name, None, **args)
                span.__enter__()
                moved(length)
                span.__exit__(OSError if kind == "error" else None, None, None)
        while stack:
            moved(1)
            stack.pop().__exit__(None, None, None)
        drawn, encoded, more = [], b"", True
        while more:
            more, _ = _hot.collect_host(generation, 1 << 20, True)
            if in_python:
                drawn += _hot.take_edges(generation)
            else:
                encoded += _hot.take_encoded(generation)
        return drawn if in_python else encoded
    finally:
        _hot.set_clock(0, 0)
        _hot.switch_off()
        compiled.forget_everything()


@in_twin("compiled")
@settings(max_examples=500, deadline=None, suppress_health_check=list(HealthCheck))
@given(EDGES)
def test_any_edges(edges: list[Any]) -> None:
    drawn = draw(edges, True)
    sequence = Sink(True).sequence
    expected = b"".join(sequence.encode(list(each)) for _, each in drawn)
    assert draw(edges, False) == expected


@in_twin("compiled")
def test_more_names_than_a_sequence_keeps() -> None:
    edges = [("leaf", 5, 5, f"name {n % 6000}", {f"key {n % 5000}": n} if n % 3 else {}) for n in range(25_000)]
    edges += [("leaf", 5, 5, f"name {n % 4000}", {}) for n in range(9000)]
    drawn = draw(edges, True)
    expected = b"".join(Sink(True).sequence.encode(list(each)) for _, each in drawn)
    assert draw(edges, False) == expected
