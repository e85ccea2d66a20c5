"""`gputrace.annotate`: a span under the signature that the nvtx package gave its own, so that an import swaps them.

It knows neither the nvtx package nor how a span is kept.
"""

from __future__ import annotations

from gputrace import hot

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from gputrace.hot.pure import SpanLike


def annotate(
    message: str | None = None,
    color: str | int | None = None,
    domain: str | None = None,
    category: str | int | None = None,
    payload: Any = None,
) -> SpanLike:
    """`nvtx.annotate` as a `span`: ``from gputrace import annotate`` in place of ``from nvtx import annotate``.

    A context manager and a decorator, of coroutines and generators too. Without a ``message`` a decorated function
    gives its name. What else is given is kept as args of the slice: a ``color`` is not drawn, as Perfetto colours by
    name. The stream that `use_stream` made current gets a window. Raises nothing.
    """
    given = {"color": color, "domain": domain, "category": category, "payload": payload}
    args = {name: value for name, value in given.items() if value is not None}
    return hot.span("" if message is None else message, **args)
